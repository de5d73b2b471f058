"""Multipart uploads: they end when a request fails and when their caller fails, without deadlocks."""

from __future__ import annotations

import os
import signal
import threading
import time
from queue import Empty, Full, Queue

import pytest

from flarecli.hashes import Sums
from flarecli.storage.cloud import multipart
from flarecli.storage.cloud.multipart import upload
from flarecli.storage.ranges import REQUEST_BYTES


def test_a_failed_upload_reads_no_further_parts():
    taken = []

    def parts():
        for i in range(12):
            taken.append(i)
            yield bytes(REQUEST_BYTES)

    def put_pieces(pieces):
        next(pieces)
        raise ConnectionError("refused")

    with pytest.raises(ConnectionError):
        upload(parts(), Sums(()), None, put_pieces)
    assert len(taken) < 8


def test_aborting_an_upload_does_not_block():
    class Taken(Queue):  # the upload empties the queue after each failed put
        def put_nowait(self, item):
            try:
                super().put_nowait(item)
            except Full:
                with self.mutex:
                    self.queue.clear()
                raise

    queue = Taken(2)
    queue.put(b"1")
    queue.put(b"2")
    thread = threading.Thread(target=multipart._abort, args=(queue,), daemon=True)
    thread.start()
    thread.join(60)
    assert not thread.is_alive()
    assert isinstance(queue.get_nowait(), multipart._AbortedError)
    with pytest.raises(Empty):
        queue.get_nowait()


def test_an_interrupt_waits_a_moment_for_the_upload_to_delete_its_pieces():
    ended = threading.Event()

    def put_pieces(pieces):
        assert sum(map(len, pieces)) == 2 * REQUEST_BYTES
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.9)
        ended.set()

    with pytest.raises(KeyboardInterrupt):
        upload([bytes(2 * REQUEST_BYTES)], Sums(()), None, put_pieces)
    assert ended.is_set()


def test_parts_are_read_only_as_fast_as_the_upload_sends_them():
    taken, go = [], threading.Event()

    def parts():
        for i in range(9):
            taken.append(i)
            if i > 6:
                go.set()
            yield bytes(REQUEST_BYTES)

    def put_pieces(pieces):
        go.wait(0.5)
        assert len(taken) < 7
        assert sum(map(len, pieces)) == 9 * REQUEST_BYTES

    upload(parts(), Sums(()), None, put_pieces)
    assert len(taken) == 9
