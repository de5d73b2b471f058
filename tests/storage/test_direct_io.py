"""Direct I/O: the same bytes for any sizes of pieces, on any file system."""

import errno
import fcntl
import hashlib
import os
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import ReachError
from flarecli.storage import direct_io as sink
from flarecli.storage import locate
from tests.properties import examples

BUFFER = 16384


needs_direct_writes = pytest.mark.skipif(
    not hasattr(os, "O_DIRECT"), reason="this system has no direct writes"
)


@pytest.fixture(autouse=True)
def small(monkeypatch):
    """Use a small buffer, so that small files exercise every branch."""
    monkeypatch.setattr(sink, "_BUFFER_BYTES", BUFFER)


@pytest.fixture
def writes(monkeypatch):
    """Record (bytes, whether direct) of each write; direct I/O is simulated if the file system has
    none.
    """
    seen, write = [], os.write

    def noted(fd, data):
        seen.append((len(data), bool(fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT)))
        return write(fd, data)

    monkeypatch.setattr(os, "write", noted)
    return seen


def direct_is_there(folder) -> bool:
    with open(folder / "try", "wb") as file:
        return sink._alignment(file.fileno()) > 0


@pytest.mark.parametrize(
    "size",
    [
        0,
        1,
        4096,
        BUFFER - 1,
        BUFFER,
        BUFFER + 1,
        2 * BUFFER - 1,
        2 * BUFFER,
        2 * BUFFER + 1,
        5 * BUFFER + 4097,
    ],
)
@pytest.mark.parametrize("step", [1000, 4096, BUFFER, 7 * BUFFER])
def test_written_bytes_and_checksums_are_correct(tmp_path, size, step):
    data = random.Random(size).randbytes(size)
    written = (locate(str(tmp_path)) / "x").write(
        [data[at : at + step] for at in range(0, size, step)], ["sha256"]
    )
    assert (tmp_path / "x").read_bytes() == data
    assert written.hashes["sha256"] == hashlib.sha256(data).hexdigest()
    assert written.size == size


@settings(max_examples=examples(60), deadline=None)
@given(pieces=st.lists(st.integers(0, 40_000), max_size=12), seed=st.integers(0, 99))
def test_pieces_of_any_size_are_joined(tmp_path_factory, pieces, seed):
    folder = tmp_path_factory.mktemp("pieces")
    parts = [random.Random(seed + i).randbytes(size) for i, size in enumerate(pieces)]
    (locate(str(folder)) / "x").write(parts)
    assert (folder / "x").read_bytes() == b"".join(parts)


@needs_direct_writes
def test_complete_blocks_bypass_the_page_cache(tmp_path, writes):
    if not direct_is_there(tmp_path):
        pytest.skip("this file system names no alignment of direct writes")
    (locate(str(tmp_path)) / "x").write([bytes(2 * BUFFER + 8192 + 5)])
    assert writes == [(BUFFER, True), (BUFFER, True), (8192, True), (5, False)]


@needs_direct_writes
def test_a_file_of_one_buffer_stays_in_the_page_cache(tmp_path, writes):
    (locate(str(tmp_path)) / "x").write([bytes(BUFFER - 1), b"x"])
    assert {direct for _, direct in writes} == {False}


@needs_direct_writes
def test_without_a_reported_alignment_the_page_cache_is_used(tmp_path, monkeypatch, writes):
    monkeypatch.setattr(sink, "_alignment", lambda fd: 0)
    data = os.urandom(4 * BUFFER)
    (locate(str(tmp_path)) / "x").write([data])
    assert (tmp_path / "x").read_bytes() == data
    assert not any(direct for _, direct in writes)


@needs_direct_writes
@pytest.mark.parametrize("taken", [0, 4096])
def test_with_a_wrong_alignment_the_rest_goes_through_the_page_cache(tmp_path, monkeypatch, taken):
    write, refused = os.write, []

    def refuses(fd, data):
        if not fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            return write(fd, data)
        if taken and not refused:
            refused.append(0)
            return write(fd, data[:taken])
        refused.append(len(data))
        raise OSError(errno.EINVAL, "Invalid argument")

    monkeypatch.setattr(sink, "_alignment", lambda fd: 512)
    monkeypatch.setattr(os, "write", refuses)
    data = os.urandom(4 * BUFFER + 77)
    (locate(str(tmp_path)) / "x").write([data])
    assert (tmp_path / "x").read_bytes() == data
    assert refused == ([0, BUFFER - taken] if taken else [BUFFER])


@needs_direct_writes
def test_a_full_disk_is_reported_with_direct_io(tmp_path, monkeypatch):
    write = os.write

    def full(fd, data):
        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            raise OSError(errno.ENOSPC, "No space left on device")
        return write(fd, data)

    monkeypatch.setattr(sink, "_alignment", lambda fd: 512)
    monkeypatch.setattr(os, "write", full)
    with pytest.raises(ReachError) as caught:
        (locate(str(tmp_path)) / "x").write([bytes(2 * BUFFER)])
    assert caught.value.message == "the disk is full: No space left on device"
    assert os.listdir(tmp_path) == []
