"""Use obstore, the library for S3, GCS and Azure, in a forked process.

The tokio runtime of obstore does not survive a fork, so each call in a child would block forever.
Therefore, a child whose parent has used the library loads a copy of the library from a temporary
file; the copy has its own runtime. The obstore project documents that obstore is not fork-safe
(developmentseed/obstore, pull request 441; tokio-rs/tokio, issue 4301). Only this file uses private
names of obstore, because a copy must be loaded from the compiled module.
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

from flarecli import lifetimes
from flarecli.errors import MissingLibraryError, ReachError

__all__ = ["client_classes", "compiled", "inherited", "opening", "pid"]

_lock = threading.Lock()
opening = threading.Lock()  # locked while a client is opened
# The last copy is in use. Earlier copies belong to parent processes and are never finalized.
_loaded: list[ModuleType] = []
_pid = 0
inherited: list[Any] = []  # references that keep the parent's clients open


def pid() -> int:
    """Return the id of the process that loaded the current copy of the library."""
    return _pid


def compiled() -> Any:
    """Return the compiled module of obstore for this process.

    raises  MissingLibraryError if obstore is not installed
    """
    global _pid
    if _pid == os.getpid():
        return _loaded[-1]
    with _lock:
        if _pid != os.getpid():
            _loaded.append(_copied(_loaded[0]) if _loaded else _imported())
            _pid = os.getpid()
    return _loaded[-1]


def client_classes(library: Any) -> dict[str, Any]:
    """Return a dict from each scheme to the client class of a loaded copy of obstore."""
    classes = library._store
    return {"s3": classes.S3Store, "gs": classes.GCSStore, "az": classes.AzureStore}


def _imported() -> ModuleType:
    try:
        return importlib.import_module("obstore._obstore")
    except ImportError:
        raise MissingLibraryError(
            "the library obstore is not installed", hint="Run `pip install obstore`."
        ) from None


def _copied(module: ModuleType) -> ModuleType:
    """Load a copy of the compiled module from a copied file.

    The dynamic linker treats the copy as a different library. Raises ReachError if the copy cannot
    be loaded.
    """
    try:
        with tempfile.NamedTemporaryFile(prefix="flare-obstore-", suffix=".so") as file:
            with open(str(module.__file__), "rb") as original:
                shutil.copyfileobj(original, file, 1 << 20)
            file.flush()
            loader = importlib.machinery.ExtensionFileLoader("obstore._obstore", file.name)
            spec = importlib.machinery.ModuleSpec("obstore._obstore", loader, origin=file.name)
            copy = importlib.util.module_from_spec(spec)
            loader.exec_module(copy)
            return copy
    except (OSError, ImportError) as error:  # the disk is full, or the folder is mounted noexec
        if isinstance(error, OSError) and error.errno:
            reason = os.strerror(error.errno).lower()
        else:
            reason = "the folder does not allow executable files"
        raise ReachError(
            f"obstore cannot be loaded again after a fork: {reason}",
            where=tempfile.gettempdir(),
            hint="Set TMPDIR to a folder that allows executable files, or start processes with spawn.",
        ) from None


def _forked() -> None:
    global _lock, opening
    _lock, opening = threading.Lock(), threading.Lock()


lifetimes.after_fork(_forked)
