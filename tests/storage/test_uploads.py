"""Uploads in pieces: they end when they fail, when their caller does, and never wait for each other."""

from __future__ import annotations

import threading
from queue import Empty, Full, Queue

import pytest

from flarecli.hashes import Sums
from flarecli.storage.cloud import multipart as uploads
from flarecli.storage.cloud.multipart import upload
from flarecli.storage.ranges import REQUEST_BYTES


def test_an_upload_that_has_failed_takes_no_more_of_what_is_to_be_written():
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


def test_to_give_up_waits_for_nobody():
    class Taken(Queue):  # the upload takes what there is between two looks
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
    thread = threading.Thread(target=uploads._give_up, args=(queue,), daemon=True)
    thread.start()
    thread.join(5)
    assert not thread.is_alive()
    assert isinstance(queue.get_nowait(), uploads._Dropped)
    with pytest.raises(Empty):
        queue.get_nowait()


def test_an_interrupt_at_the_end_waits_a_moment_for_the_upload_to_end(monkeypatch):
    """Else its parts would stay with the store, out of sight."""
    done, waits = threading.Event(), []
    real = uploads.wait_for

    def interrupted(arrived):
        waits.append(arrived)
        if len(waits) == 1:
            raise KeyboardInterrupt
        return real(arrived)

    def put_pieces(pieces):
        assert sum(map(len, pieces)) == 2 * REQUEST_BYTES
        threading.Event().wait(0.3)
        done.set()

    monkeypatch.setattr(uploads, "wait_for", interrupted)
    with pytest.raises(KeyboardInterrupt):
        upload([bytes(2 * REQUEST_BYTES)], Sums(()), None, put_pieces)
    assert done.is_set()


def test_only_so_much_is_taken_as_the_upload_has_room_for():
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
