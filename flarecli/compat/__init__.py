"""Drop-in replacements for other libraries. A program that uses them changes only its imports.

The packages implement the documented APIs of mosaicml-streaming, granular, ffrecord and sds.
`docs/compat.md` lists the differences. Only modules that define torch classes or return tensors
load torch.
"""

from __future__ import annotations

import sys
from types import ModuleType, TracebackType
from typing import Self


def loaded_torch_data() -> ModuleType | None:
    """Return torch.utils.data if the program has loaded torch, else None.

    torch is not imported here, because the import takes more than a second and many programs do not
    use torch.
    """
    return sys.modules.get("torch.utils.data")


def register(base: type, subclass: type) -> None:
    """Make torch treat instances of `base` as an IterableDataset, if torch is loaded.

    `base` becomes a virtual subclass of IterableDataset. Nothing changes if `subclass`, which is
    `base` or a subclass of it, already inherits from IterableDataset.
    """
    data = loaded_torch_data()
    if data is not None and not issubclass(subclass, data.IterableDataset):
        data.IterableDataset.register(base)


class Closeable:
    """A context manager that calls `close` at the end of the block, or `abort` after an error."""

    closed = False

    def close(self) -> None:
        """Release all resources."""
        self.closed = True

    def abort(self) -> None:
        """Release all resources after an error in the block."""
        self.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is None:
            self.close()
        else:
            self.abort()
