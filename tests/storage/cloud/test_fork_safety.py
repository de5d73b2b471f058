"""obstore in a forked process."""

from __future__ import annotations

import importlib.util
import tempfile

import pytest

from flarecli.errors import ReachError
from flarecli.storage.cloud import fork_safety as native


def test_a_library_that_cannot_be_loaded_after_a_fork_is_explained(monkeypatch):
    native.compiled()

    def not_there(spec):
        raise ImportError("failed to map segment from shared object")

    monkeypatch.setattr(native, "_pid", 1)
    monkeypatch.setattr(importlib.util, "module_from_spec", not_there)
    with pytest.raises(ReachError) as caught:
        native.compiled()
    assert (
        str(caught.value)
        == f"{tempfile.gettempdir()}: obstore cannot be loaded again after a fork: the folder does not allow executable files"
    )
    assert (
        caught.value.hint
        == "Set TMPDIR to a folder that allows executable files, or start processes with spawn."
    )
