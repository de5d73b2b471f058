"""Fixtures of the tests of the cache."""

import pytest

from flarecli.cache import directory


@pytest.fixture
def one(tmp_path):
    """An open cache folder with a limit of 64,000 bytes."""
    return directory.Folder(str(tmp_path / "cache"), 64_000)


@pytest.fixture
def large_folder(tmp_path):
    """An open cache folder with a limit of 64 MB."""
    return directory.Folder(str(tmp_path / "cache"), 64_000_000)
