"""Shared state of a process: all registered state is closed, even after an error."""

import pytest

import flarecli
from flarecli import lifetimes


@pytest.fixture
def closers(monkeypatch):
    registered = {}
    monkeypatch.setattr(lifetimes, "_closers", registered)
    return registered


def test_registered_state_is_closed_in_reverse_order(closers):
    closed = []
    lifetimes.register("first", lambda: closed.append("first"))
    lifetimes.register("second", lambda: closed.append("second"))
    lifetimes.register("first", lambda: closed.append("replaced"))
    flarecli.close()
    assert closed == ["second", "replaced"]


def test_an_error_of_one_owner_does_not_prevent_closing_the_others(closers):
    closed = []

    def fails():
        raise OSError("cannot close")

    lifetimes.register("first", lambda: closed.append("first"))
    lifetimes.register("second", fails)
    with pytest.raises(OSError, match="^cannot close$"):
        flarecli.close()
    assert closed == ["first"]
