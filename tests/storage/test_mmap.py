"""Read-ahead never changes the bytes that are read."""

import os

import pytest

from flarecli.storage import locate
from flarecli.storage.mmap import needs_read_ahead, read_ahead, read_ahead_of_file


def drop_pages(fd):
    """Drop the pages of a file from the page cache, if the system can."""
    if hasattr(os, "posix_fadvise"):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)


@pytest.fixture
def cold(tmp_path):
    """A file of 4 MiB whose pages were dropped from the page cache."""
    path = tmp_path / "cold"
    path.write_bytes(bytes(range(256)) * (1 << 14))
    fd = os.open(path, os.O_RDWR)
    os.fsync(fd)
    drop_pages(fd)
    yield path, fd
    os.close(fd)


def test_read_ahead_stops_once_the_whole_map_was_requested(cold):
    path, _ = cold
    view = locate(str(path)).map()
    half = len(view) // 2
    assert needs_read_ahead(view) and not needs_read_ahead(memoryview(b"bytes"))
    read_ahead(view, [(0, half)])
    assert needs_read_ahead(view)
    read_ahead(view, [(half, len(view))])
    assert not needs_read_ahead(view)
    assert needs_read_ahead(locate(str(path)).map())


def test_read_ahead_includes_small_gaps_between_ranges_in_ascending_order(cold):
    path, _ = cold
    view = locate(str(path)).map()
    half = len(view) // 2
    read_ahead(view, [(half + 1, len(view)), (0, half - 8192)])  # in descending order: two requests
    assert needs_read_ahead(view)
    view = locate(str(path)).map()
    read_ahead(view, [(0, half - 8192), (half + 1, len(view))])
    assert not needs_read_ahead(view)


def test_read_ahead_of_an_uncached_map_returns_the_same_bytes(cold):
    path, _ = cold
    view = locate(str(path)).map()
    ranges = [
        (0, 10),
        (4095, 4097),
        (1 << 20, 2 << 20),
        (len(view) - 1, len(view)),
        (5, 5),
        (len(view), len(view)),
    ]
    read_ahead(view, ranges)
    read_ahead(memoryview(b"bytes"), ranges)
    read_ahead(view, [(len(view) + 4096, len(view) + 8192), (1, 2)])  # outside the file
    data = path.read_bytes()
    assert [bytes(view[start:stop]) for start, stop in ranges] == [
        data[start:stop] for start, stop in ranges
    ]


def test_read_ahead_of_an_uncached_file_returns_the_same_bytes(cold):
    path, fd = cold
    data = path.read_bytes()
    drop_pages(fd)
    ranges = [(3, 10), (1 << 20, 2 << 20), (len(data) - 1, len(data)), (7, 7)]
    assert locate(str(path)).unmapped().read_many(ranges) == [
        data[start:stop] for start, stop in ranges
    ]
    read_ahead_of_file(
        fd, len(data), [(-1, 5), (1 << 70, 1 << 71), (5, 1), (0, 1 << 70), (1 << 20, 1 << 21)]
    )


def test_a_file_that_cannot_be_mapped_is_read(cold, monkeypatch):
    def refuse(*args, **how):
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr("flarecli.storage.mmap.FileMap", refuse)
    assert locate(str(cold[0])).map() is None
