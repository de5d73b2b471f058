"""Calls on other threads: what one of them raises keeps nothing of its caller any longer than the caller keeps it."""

from __future__ import annotations

import contextlib
import gc
import weakref

import pytest

from flarecli.storage.threads import ahead, alone, begin, side_by_side, wait_for
from flarecli.write.shard_queue import ShardQueue


class Held:
    """What a caller has in a name of its own."""


def failing(item=None):
    raise KeyError(item)


def behind():
    making = ShardQueue(2)
    making.add(failing, 1, 1, lambda chunk, next: None)
    making.close(lambda chunk, next: None)


CALLS = {
    "alone": lambda: alone(failing),
    "begin": lambda: wait_for(begin(failing)).get(),
    "side by side": lambda: side_by_side(failing, [1, 2, 3], 2),
    "side by side, one": lambda: side_by_side(failing, [1], 2),
    "ahead": lambda: list(ahead(failing, [1, 2, 3], 2)),
    "behind": behind,
}


@pytest.mark.parametrize("name", CALLS)
def test_what_is_raised_on_another_thread_holds_nobody_that_was_waiting(name):
    def caller():
        held = Held()
        with contextlib.suppress(KeyError):
            CALLS[name]()
            raise AssertionError("it raised nothing")
        return weakref.ref(held)

    gc.collect()
    gc.disable()
    try:
        assert caller()() is None
    finally:
        gc.enable()
