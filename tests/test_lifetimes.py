"""Shared state of a process: everything registered is closed, whatever fails."""

import pytest

import flarecli
from flarecli import lifetimes


@pytest.fixture
def closers(monkeypatch):
    registered = {}
    monkeypatch.setattr(lifetimes, "_closers", registered)
    return registered


def test_everything_registered_is_closed_the_latest_first(closers):
    closed = []
    lifetimes.register("first", lambda: closed.append("first"))
    lifetimes.register("second", lambda: closed.append("second"))
    lifetimes.register("first", lambda: closed.append("replaced"))
    flarecli.close()
    assert closed == ["second", "replaced"]


def test_an_error_of_one_owner_does_not_keep_the_others_open(closers):
    closed = []

    def fails():
        raise OSError("cannot close")

    lifetimes.register("first", lambda: closed.append("first"))
    lifetimes.register("second", fails)
    with pytest.raises(OSError, match="^cannot close$"):
        flarecli.close()
    assert closed == ["first"]
