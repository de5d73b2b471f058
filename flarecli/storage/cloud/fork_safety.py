"""obstore, the library behind S3, GCS and Azure, in a process that may have been forked.

Its tokio runtime does not survive a fork: in a child each of its calls would wait for ever. A child whose parent has
used the library therefore loads a copy of it, from a temporary file, with a runtime of its own; that takes 15 ms.
obstore is documented upstream as not safe to fork (developmentseed/obstore, pull request 441; tokio-rs/tokio, issue
4301). This is the one file that uses private names of obstore: a copy can only be loaded from its compiled module.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import shutil
import tempfile
import threading
from types import ModuleType
from typing import Any

from flarecli.errors import MissingLibraryError, ReachError

__all__ = ["client_classes", "compiled", "inherited", "opening", "pid"]

_lock = threading.Lock()
opening = threading.Lock()  # of clients, one at a time
_loaded: list[
    ModuleType
] = []  # the copy in use is the last; earlier ones are the ancestors', and nothing of theirs is ever finalized
_pid = 0
inherited: list[Any] = []  # clients of the parent


def pid() -> int:
    """Give the process that the library was loaded by."""
    return _pid


def compiled() -> Any:
    """Give the library's compiled module. Raises MissingLibraryError if it is not installed."""
    global _pid
    if _pid == os.getpid():
        return _loaded[-1]
    with _lock:
        if _pid != os.getpid():
            _loaded.append(_again(_loaded[0]) if _loaded else _imported())
            _pid = os.getpid()
    return _loaded[-1]


def client_classes(library: Any) -> dict[str, Any]:
    """Return the class of a bucket's client by scheme, of one copy of the library."""
    classes = library._store
    return {"s3": classes.S3Store, "gs": classes.GCSStore, "az": classes.AzureStore}


def _imported() -> ModuleType:
    try:
        return importlib.import_module("obstore._obstore")
    except ImportError:
        raise MissingLibraryError(
            "the library obstore is not installed", hint="pip install obstore"
        ) from None


def _again(module: ModuleType) -> ModuleType:
    try:
        return _copied(module)
    except (OSError, ImportError) as error:  # no room, or a folder from which nothing may be run
        what = (
            os.strerror(error.errno).lower()
            if isinstance(error, OSError) and error.errno
            else "nothing may be run from there"
        )
        hint = (
            "Let TMPDIR name a folder from which programs may be run, or start processes by spawn."
        )
        raise ReachError(
            f"obstore cannot be loaded again after a fork: {what}",
            where=tempfile.gettempdir(),
            hint=hint,
        ) from None


def _copied(module: ModuleType) -> ModuleType:
    """Load the library's file once more under another name: to the linker it is another library."""
    source = str(module.__file__)
    with tempfile.NamedTemporaryFile(prefix="flare-obstore-", suffix=".so") as file:
        with open(source, "rb") as original:
            shutil.copyfileobj(original, file, 1 << 20)
        file.flush()
        loader = importlib.machinery.ExtensionFileLoader("obstore._obstore", file.name)
        spec = importlib.util.spec_from_file_location("obstore._obstore", file.name, loader=loader)
        if spec is None:
            raise MissingLibraryError(
                "the library obstore cannot be loaded again after a fork",
                hint="Start processes by spawn.",
            )
        copy = importlib.util.module_from_spec(spec)
        loader.exec_module(copy)
    return copy


def _forked() -> None:
    global _lock, opening
    _lock, opening = threading.Lock(), threading.Lock()


os.register_at_fork(after_in_child=_forked)
