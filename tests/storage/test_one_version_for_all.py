"""Threads that look at a file for the first time while it changes: what is given out is of one version, and whoever has another is told."""

from __future__ import annotations

import threading

import pytest

from flarecli.errors import IntegrityError
from flarecli.storage import locate

SIZES = 3_000_000, 3_000_001
PIECES = [(0, 10), (1_000_000, 1_000_010), (2_999_990, 3_000_000)]
READS = {
    "a range": lambda at: at.read(5, 15)[:1],
    "ranges": lambda at: b"".join({data[:1] for data in at.read_many(PIECES)}),
    "the whole of it": lambda at: at.read()[:1],
    "the size": lambda at: b"ab"[SIZES.index(at.size()) :][:1],
    "block by block": lambda at: b"".join(
        sorted(
            {bytes(block)[i : i + 1] for block in at.blocks(SIZES[0]) for i in (0, -1) if block[i:]}
        )
    )[:1],
    "one of many": lambda at: bytes(next(iter(at.store.read_each([at.path]))))[:1],
}


class Swapped:
    """An object that is another one as soon as a first reader has what it asked for, while a second one waits for its first answer."""

    def __init__(self, web, path, tells):
        self.second, self.over, self.lock, self.count, self.tells = (
            threading.Event(),
            threading.Event(),
            threading.Lock(),
            0,
            tells,
        )
        web.pages[path] = self.page

    def page(self, handler, times):
        with self.lock:
            self.count += 1
            count = self.count
        if count == 2:
            self.second.set()
        (self.over if count == 2 else self.second).wait(20)
        is_second = self.over.is_set()
        etag, size, data = f'"{int(is_second)}"', SIZES[is_second], b"ab"[is_second : is_second + 1]
        head = {"ETag": etag} if self.tells == "ETag" else {}
        head["Last_Modified"] = f"{'Tue, 06' if is_second else 'Mon, 05'} Jan 2026 00:00:00 GMT"
        if handler.headers.get("If-Match", etag) != etag:
            return handler.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", **head)
        if "Range" not in handler.headers:
            return handler.answer(200, data * size, **head)
        start, _, stop = handler.headers["Range"].removeprefix("bytes=").partition("-")
        start, stop = int(start), min(int(stop or size), size - 1)
        return handler.answer(
            206, data * (stop + 1 - start), Content_Range=f"bytes {start}-{stop}/{size}", **head
        )


def come_at_once(swapped, read, at):
    """Give what two threads got, the first that had something first."""
    out = []

    def work():
        try:
            out.append(read(at))
        except IntegrityError as error:
            out.append(error.message)
        finally:
            swapped.over.set()

    threads = [threading.Thread(target=work) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    return out


@pytest.fixture(params=["http", "s3"])
def path(request, web, no_cloud, monkeypatch):
    if request.param == "http":
        return web.url("/b/a")
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{web.port}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    return "s3://b/a"


@pytest.mark.parametrize("tells", ["ETag", "size"])
@pytest.mark.parametrize("name", READS)
def test_two_readers_that_are_first_at_once_never_have_two_versions(web, path, name, tells):
    out = come_at_once(Swapped(web, "/b/a", tells), READS[name], locate(path))
    assert out == [b"a", "changed while it was read"]


def test_a_reader_that_has_nothing_yet_begins_again_alone(web, path):
    swapped = Swapped(web, "/b/a", "ETag")
    swapped.count = 2  # nobody else is first
    swapped.second.set()

    def swap(handler, times):
        if times > 1:  # a bucket is asked for several pieces at once
            swapped.over.wait(20)
        try:
            return swapped.page(handler, times)
        finally:
            swapped.over.set()

    web.pages["/b/a"] = swap
    assert READS["ranges"](locate(path)) == b"b"


@pytest.mark.parametrize(
    "read", [lambda at: at.read(5, 15)[:1], lambda at: at.read_many([(0, 5), (7, 9)])[0][:1]]
)
def test_other_file_systems_give_one_version_to_all_who_come_at_once(read, monkeypatch):
    pytest.importorskip("fsspec")
    at = locate("memory://swapped/a")
    at.write([b"a" * 100])
    store, real, inner = at.store, at.store._do, []

    def swapped(path, call):
        given = real(path, call)
        if (
            isinstance(given, bytes) and not inner
        ):  # the first has its bytes, and the second all it wants, before it is another file
            inner.append(None)
            inner[0] = read(at)
            type(at)(type(store)(store.address, store.guard), at.path).write([b"b" * 101])
        return given

    monkeypatch.setattr(store, "_do", swapped)
    with pytest.raises(IntegrityError) as caught:
        read(at)
    assert (caught.value.message, inner) == ("changed while it was read", [b"a"])
    at.delete()
