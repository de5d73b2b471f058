"""Locks of the cache: turns of threads and processes, and files of processes that have ended."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import pytest

from flarecli.cache import CacheWarning, directory, locks
from flarecli.cache.locks import Turns, is_abandoned
from tests.cache.samples import lie, put_data


def test_the_callback_runs_while_waiting_for_a_turn(tmp_path):
    here, other, done = os.open(tmp_path, os.O_RDONLY), Turns(), []
    with (
        Turns().turn(here, "ab", "w", 5),
        other.turn(here, "ab", "w", 0.01, lambda: done.append("asked")),
    ):
        pass
    with (
        other.turn(here, "ab", "w", 5, lambda: done.append("free")),
        Turns().turn(here, "ac", "w", 5, lambda: done.append("another key")),
    ):
        pass
    os.close(here)
    assert done == ["asked"]
    assert [path.stat().st_size for path in (tmp_path / "turns").iterdir()] == [0, 0]


HOLDER = """
    import os, sys
    from flarecli.cache.locks import Turns

    here = os.open(sys.argv[1], os.O_RDONLY)
    with Turns().turn(here, "ab", "b", 5):
        print(flush=True)
        sys.stdin.readline()
"""


def test_a_long_wait_names_the_other_process(tmp_path, monkeypatch):
    monkeypatch.setattr(locks, "NOTICE_AFTER_S", 0.02)
    monkeypatch.setattr(directory, "_OTHERS_S", 0.2)
    one = directory.Folder(str(tmp_path), 10**6)
    assert one.fd >= 0
    script = [sys.executable, "-c", textwrap.dedent(HOLDER), one.path]
    with subprocess.Popen(script, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as child:
        child.stdout.readline()
        with pytest.warns(CacheWarning) as told, one.turn("ab"):
            pass
        child.communicate(b"\n")
    who = f"process {child.pid}" if Path("/proc/locks").exists() else "another process"
    assert [str(one.message) for one in told] == [
        f"the cache in {tmp_path}: waiting for {who}, which is fetching the same file"
    ]


def test_a_forked_child_does_not_keep_the_turn_of_its_parent(tmp_path):
    here, began, over = os.open(tmp_path, os.O_RDONLY), threading.Event(), threading.Event()

    def take():
        with Turns().turn(here, "ab", "w", 5):
            began.set()
            over.wait(10)

    thread = threading.Thread(target=take)
    thread.start()
    began.wait(10)
    stays, ends = os.pipe()
    ready, tells = os.pipe()
    child = os.fork()
    if not child:
        os.close(ends)
        os.write(tells, b".")
        os.read(stays, 1)
        os._exit(0)
    os.read(ready, 1)
    over.set()
    thread.join()
    waited = []
    with Turns().turn(here, "ab", "w", 5, lambda: waited.append(True)):
        pass
    for fd in (stays, ends, ready, tells, here):
        os.close(fd)
    assert os.waitpid(child, 0)[1] == 0
    assert waited == []


def test_a_turn_without_a_folder_locks_only_against_threads(tmp_path):
    done = []
    turns = Turns()
    with (
        turns.turn(-1, "ab", "w", 5, lambda: done.append("asked")),
        turns.turn(-1, "ab", "w", 0.01, lambda: done.append("asked")),
    ):
        done.append("inside")
    assert done == ["inside"]
    assert os.listdir(tmp_path) == []


def test_an_impossible_process_id_counts_as_an_ended_process(large_folder):
    put_data(large_folder, "a")
    left = lie(large_folder, f"{'0' * 40}.{locks.host()}.{10**20}.0.part")
    put_data(large_folder, "b")
    assert not os.path.exists(left)


def test_a_partial_file_is_kept_for_a_minute_if_a_process_of_another_user_has_the_id(
    large_folder, monkeypatch
):
    def another(pid, sign):
        raise PermissionError

    assert large_folder.fd >= 0
    left = lie(large_folder, f"{'0' * 40}.{locks.host()}.1234.0.part")
    monkeypatch.setattr(os, "kill", another)
    for seconds, gone in ((0, False), (60, True)):
        os.utime(left, (1, os.stat(left).st_mtime - seconds))
        assert is_abandoned(large_folder.fd, os.path.basename(left), os.stat(left)) is gone
