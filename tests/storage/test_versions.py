"""Version pins: comparison of versions, the first dropped pin, and data that is read again."""

from __future__ import annotations

import threading

import pytest

from flarecli.errors import IntegrityError
from flarecli.storage import locate, versions
from flarecli.storage.versions import ObjectPin, Pins


@pytest.fixture
def pins():
    return Pins(lambda path: f"x://{path}")


@pytest.mark.parametrize(
    ("first", "second", "differs"),
    [
        (ObjectPin("a", 5), ObjectPin("a", 5), False),
        (ObjectPin("a", 5), ObjectPin("b", 5), True),
        (ObjectPin("a", 5), ObjectPin("", 5), False),
        (ObjectPin("a", 5), ObjectPin("a", 6), True),
        (ObjectPin("a", 0), ObjectPin("a", 6), True),
        (ObjectPin("a", -1), ObjectPin("a", 6), False),
        (ObjectPin("", 5, False, "Monday"), ObjectPin("", 5, False, "Tuesday"), True),
        (ObjectPin("a", 5, True, "Monday"), ObjectPin("", 5, False, "Tuesday"), True),
    ],
)
def test_versions_are_compared_by_the_fields_of_both_responses(first, second, differs):
    assert first.differs(second) is second.differs(first) is differs


def test_only_a_strong_version_names_copies():
    assert ObjectPin("a", 5).version == "a"
    assert ObjectPin("a", 5, False).version == ""
    assert ObjectPin("", 5, True, "Monday").version == "Monday"
    assert ObjectPin("", 5, False, "Monday").version == ""


def test_another_version_than_the_pinned_one_is_an_error(pins):
    assert pins.pin("a", ObjectPin("one", 5)) == ObjectPin("one", 5)
    with pytest.raises(IntegrityError) as caught:
        pins.pin("a", ObjectPin("two", 5))
    assert str(caught.value) == "x://a: changed while it was being read"
    pins.drop("a")
    assert pins.pin("a", ObjectPin("two", 5)) == ObjectPin("two", 5)


def test_the_least_recently_used_pin_is_dropped_first(pins, monkeypatch):
    monkeypatch.setattr(versions, "MAX_PINS", 3)
    for name in "abc":
        pins.pin(name, ObjectPin(name, 1))
    assert pins.get("a") == ObjectPin("a", 1)
    pins.pin("d", ObjectPin("d", 1))
    assert [name for name in "abcd" if name in pins] == ["a", "c", "d"]


def test_a_change_before_any_data_was_returned_is_read_again_once(pins):
    asked = []

    def read(pin):
        asked.append(pin)
        return "data", pins.check("a", ObjectPin("one", 1), ObjectPin("two", 1)) if len(
            asked
        ) == 1 else ObjectPin("two", 1)

    assert pins.read("a", read) == "data" and asked == [None, None]
    asked.clear()
    with pytest.raises(IntegrityError):
        pins.read("a", read)
    assert asked == [ObjectPin("two", 1)]


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
    """An object that changes as soon as a first reader has its data, while a second one waits for
    its first response.
    """

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
    """Return the results of two threads; the first result is first."""
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
def test_two_concurrent_first_readers_get_one_version(web, path, name, tells):
    out = come_at_once(Swapped(web, "/b/a", tells), READS[name], locate(path))
    assert out == [b"a", "changed while it was being read"]


def test_a_reader_without_data_reads_the_new_version(web, path):
    swapped = Swapped(web, "/b/a", "ETag")
    swapped.count = 2  # no concurrent reader
    swapped.second.set()

    def swap(handler, times):
        if times > 1:  # several pieces of an object are requested in parallel
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
def test_concurrent_readers_of_fsspec_get_one_version(read, monkeypatch):
    pytest.importorskip("fsspec")
    at = locate("memory://swapped/a")
    at.write([b"a" * 100])
    store, real, inner = at.store, at.store._call, []

    def swapped(path, call):
        given = real(path, call)
        if (
            isinstance(given, bytes) and not inner
        ):  # both readers have their bytes before the file changes
            inner.append(None)
            inner[0] = read(at)
            type(at)(type(store)(store.address, store.guard), at.path).write([b"b" * 101])
        return given

    monkeypatch.setattr(store, "_call", swapped)
    with pytest.raises(IntegrityError) as caught:
        read(at)
    assert (caught.value.message, inner) == ("changed while it was being read", [b"a"])
    at.delete()


DATA = bytes(range(256)) * 4096


@pytest.fixture
def forgetful(monkeypatch):
    """Drop all pins between two requests, as if other threads had read many objects."""
    for name, real in (("check", Pins.check), ("pin", Pins.pin)):

        def forget(self, path, *more, real=real):
            pin = real(self, path, *more)
            self.clear()
            return pin

        monkeypatch.setattr(Pins, name, forget)


def test_an_http_version_stays_pinned_during_a_read(web, forgetful):
    at = locate(
        web.file(
            "/a", lambda times: bytes([min(times, 2)]) * 900_000, lambda times: f'"{min(times, 2)}"'
        )
    )
    assert at.read_many([(0, 10), (400_000, 400_010), (800_000, 800_010)]) == 3 * [
        bytes([2]) * 10
    ]  # read again
    other = locate(web.file("/b", DATA, '"one"'))
    assert (other.size(), other.store.version(other.path)) == (len(DATA), ('"one"', len(DATA)))


def test_an_object_version_stays_pinned_during_a_read(web, no_cloud, monkeypatch, forgetful):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{web.port}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    body = {"Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT"}
    tag = {1: '"1"'}

    def page(handler, times):
        etag = tag.get(times, '"2"')
        if handler.headers.get("If-Match", etag) != etag:
            return handler.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", ETag=etag)
        start, stop = (
            int(number) for number in handler.headers["Range"].removeprefix("bytes=").split("-")
        )
        data = DATA[start : stop + 1]
        return handler.answer(
            206, data, ETag=etag, Content_Range=f"bytes {start}-{stop}/{len(DATA)}", **body
        )

    web.pages["/b/a"] = page
    at = locate("s3://b/a")
    with pytest.raises(IntegrityError):
        at.store._get_many("a", [(0, 10), (400_000, 400_010), (800_000, 800_010)])
    assert at.store.read_many("a", [(0, 10), (400_000, 400_010)]) == [
        DATA[:10],
        DATA[400_000:400_010],
    ]


def test_an_object_version_stays_pinned_while_blocks_are_read(
    web, no_cloud, monkeypatch, forgetful
):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{web.port}")
    monkeypatch.setenv("AWS_SKIP_SIGNATURE", "true")
    monkeypatch.setattr("flarecli.storage.cloud.store._READ_BYTES", 1 << 16)

    def page(handler, times):
        etag = '"1"' if times < 4 else '"2"'
        if handler.headers.get("If-Match", etag) != etag:
            return handler.answer(412, b"<Error><Code>PreconditionFailed</Code></Error>", ETag=etag)
        start, stop = (
            int(number) for number in handler.headers["Range"].removeprefix("bytes=").split("-")
        )
        more = {
            "ETag": etag,
            "Last_Modified": "Thu, 01 Jan 2026 00:00:00 GMT",
            "Content_Range": f"bytes {start}-{stop}/{len(DATA)}",
        }
        return handler.answer(206, DATA[start : stop + 1], **more)

    web.pages["/b/a"] = page
    with pytest.raises(IntegrityError):
        list(locate("s3://b/a").blocks(len(DATA)))
