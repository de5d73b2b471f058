"""Names of sources in outputs, independent of how a path was typed."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass, replace

from flarecli.names import is_url, local_path, scheme_of, whole_path
from flarecli.redact import redact
from flarecli.write import Failure

__all__ = ["UNNAMED", "SourceName", "source_name"]


@dataclass(frozen=True)
class SourceName:
    """The name of a source in playlists and journals, and of its files in lists of failed rows.

    text    the name of the one file or folder, or of the folder that holds all of several; the
            addresses as typed, without secrets, of a source that is not on a disk
    folder  the folder that files are named in, without links; empty if the source is not on a disk
    """

    text: str
    folder: str = ""

    def of_file(self, file: str) -> str:
        """Return the path of a file in the folder, or an address without secrets."""
        if not self.folder or _is_remote(file):
            return redact(file)
        name = os.path.relpath(_real(file), self.folder)
        return self.text if name == "." else name

    def listed(self, failure: Failure) -> Failure:
        """Return a failure as outputs list it."""
        if failure.file is None:
            return failure
        return replace(failure, file=self.of_file(failure.file))


UNNAMED = SourceName("")  # of a source without an address


def source_name(addresses: Sequence[str], expanded: Sequence[str]) -> SourceName:
    """Return the name of a source.

    addresses  as typed
    expanded   what they match
    """
    if any(_is_remote(one) for one in expanded) or not expanded:
        return SourceName(" ".join(redact(one) for one in addresses))
    paths = [_real(one) for one in expanded]
    folders = [one if os.path.isdir(one) else os.path.dirname(one) for one in paths]
    folder = os.path.commonpath(folders)
    return SourceName(os.path.basename(paths[0] if len(paths) == 1 else folder), folder)


def _is_remote(address: str) -> bool:
    return address == "-" or (is_url(address) and scheme_of(address) != "file")


def _real(address: str) -> str:
    return os.path.realpath(whole_path(local_path(address)))
