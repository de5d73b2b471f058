"""Options of `flare.open`: retries and limits of transfers, against a server that fails."""

from __future__ import annotations

import pytest

import flarecli as flare
from flarecli.errors import ReachError, UsageError


@pytest.fixture
def playlist(web, tmp_path):
    """Return the address of a dataset of one row on the server."""
    with flare.Writer(str(tmp_path / "d"), columns={"n": "int"}) as writer:
        writer.write({"n": 7})
    for path in (tmp_path / "d").iterdir():
        web.file(f"/d/{path.name}", path.read_bytes())
    return web.url("/d/playlist.yaml")


def fail_once(web, path):
    """Answer the first request of a file with 503 Service Unavailable."""
    serve = web.pages[path]

    def serve_later(handler, times):
        if times == 1:
            handler.answer(503)
        else:
            serve(handler, times)

    web.pages[path] = serve_later


def test_a_transient_error_is_retried(web, playlist):
    fail_once(web, "/d/playlist.yaml")
    assert flare.open(playlist, retries=1)[0] == {"n": 7}


def test_without_retries_a_transient_error_is_reported(web, playlist):
    fail_once(web, "/d/playlist.yaml")
    with pytest.raises(ReachError, match="503 Service Unavailable"):
        flare.open(playlist, retries=0)


def test_a_stalled_transfer_ends_after_the_timeout(web, playlist):

    def stall(handler, times):
        handler.begin(100)
        web.over.wait(60)

    web.pages["/d/playlist.yaml"] = stall
    with pytest.raises(ReachError, match=r"0\.2 s"):
        flare.open(playlist, retries=0, timeout=0.2)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"retries": -1}, "--retries: expected at least 0, got -1"),
        ({"timeout": "soon"}, "--timeout: "),
        ({"deadline": -1.0}, "--deadline: expected at least 0, got -1.0"),
    ],
)
def test_invalid_limits_are_refused(options, message):
    with pytest.raises(UsageError) as caught:
        flare.open("d", **options)
    assert str(caught.value).startswith(message)
