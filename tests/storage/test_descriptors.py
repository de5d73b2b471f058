"""Locks, sync and access at an offset, on the systems that differ in these calls."""

import errno
import os
import sys

import pytest

from flarecli.errors import ReachError
from flarecli.storage import descriptors

FULL_SYNC = 51  # F_FULLFSYNC of macOS (source: sys/fcntl.h)


@pytest.fixture
def macos(monkeypatch):
    """Let this process act as on macOS, and record the calls; F_FULLFSYNC raises the errors in
    `errors`.
    """
    fcntl = pytest.importorskip("fcntl")
    calls, errors = [], []

    def full_sync(fd, command):
        calls.append(command)
        if errors:
            raise OSError(errors[0], os.strerror(errors[0]))

    monkeypatch.setattr(sys, "platform", "darwin")
    monkeypatch.setattr(fcntl, "F_FULLFSYNC", FULL_SYNC, raising=False)
    monkeypatch.setattr(fcntl, "fcntl", full_sync)
    monkeypatch.setattr(os, "fsync", lambda fd: calls.append("fsync"))
    return calls, errors


def test_macos_empties_the_cache_of_the_disk(macos):
    calls, _ = macos
    descriptors.sync(1)
    assert calls == [FULL_SYNC]


@pytest.mark.parametrize("code", [errno.ENOTSUP, errno.EINVAL, errno.ENOTTY])
def test_a_file_system_that_refuses_a_full_sync_is_synced_with_fsync(macos, code):
    calls, errors = macos
    errors.append(code)
    descriptors.sync(1)
    assert calls == [FULL_SYNC, "fsync"]


def test_a_failed_full_sync_is_reported(macos):
    calls, errors = macos
    errors.append(errno.EIO)
    with pytest.raises(OSError, match="Input/output error"):
        descriptors.sync(1)
    assert calls == [FULL_SYNC]


@pytest.mark.windows
def test_a_locked_file_cannot_be_locked_again_until_it_is_unlocked(tmp_path):
    path = tmp_path / "lock"
    path.write_bytes(b"content")
    first, second = (os.open(path, os.O_RDWR | descriptors.FILE) for _ in range(2))
    try:
        descriptors.lock(first)
        with pytest.raises(BlockingIOError):
            descriptors.lock(second)
        with pytest.raises(BlockingIOError):
            descriptors.lock_or_fail(second, "here", "")
        assert os.read(second, 7) == b"content"
        descriptors.unlock(first)
        descriptors.lock(second, wait=True)
    finally:
        os.close(first)
        os.close(second)


@pytest.mark.windows
def test_a_closed_descriptor_cannot_be_locked(tmp_path):
    fd = os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)
    os.close(fd)
    with pytest.raises(ReachError, match="cannot lock: .*bad file descriptor"):
        descriptors.lock_or_fail(fd, "here", "")


@pytest.mark.windows
def test_bytes_are_read_and_written_at_an_offset(tmp_path):
    fd = os.open(tmp_path / "file", os.O_RDWR | os.O_CREAT | descriptors.FILE)
    try:
        assert descriptors.pwrite(fd, memoryview(b"line\nline\r\n"), 3) == 11
        buffer = memoryview(bytearray(20))
        assert descriptors.pread_into(fd, buffer, 2) == 12
        assert bytes(buffer[:12]) == b"\0line\nline\r\n"
        assert descriptors.pread(fd, 4, 8) == b"line"
    finally:
        os.close(fd)
