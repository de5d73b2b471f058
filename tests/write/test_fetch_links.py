"""Link downloads: rows are complete and in order, failures are reported, and forbidden addresses
are refused.
"""

import gzip
import os
import threading
import time
import zlib

import numpy as np
import pyarrow as pa
import pytest

from flarecli.errors import UsageError
from flarecli.progress import Progress
from flarecli.storage import Guard, Limits, locate
from flarecli.write.fetch_links import Link, fetch

QUICK = Limits(timeout_s=1.0, deadline_s=3.0, retries=1)
IMPATIENT = Limits(timeout_s=0.4, deadline_s=1.2, retries=1)
LINKS = [Link("url", "data")]
JPEG = b"\xff\xd8\xff\xe0" + bytes(1000)


@pytest.fixture
def at(tmp_path):
    return locate(str(tmp_path))


LOOPBACK = Guard(allow_hosts=("127.0.0.0/8",))  # the test servers


def start(batches, at, links=LINKS, limits=QUICK, guard=None, **more):
    return fetch(
        batches,
        links,
        key="key",
        at=at,
        guard=guard or LOOPBACK,
        limits=limits,
        **{"progress": Progress(), **more},
    )


def index(urls, **columns):
    return pa.record_batch(
        {"key": [f"k{i}" for i in range(len(urls))], "url": pa.array(urls, pa.string()), **columns}
    )


def collected(batches, at, **more):
    """Return all rows as {position: value} and all failures as {position: (key, kind, reason)};
    check each Fetched.
    """
    values, failures, until = {}, {}, more.get("first_row", 0)
    for part in start(batches, at, **more):
        rows = part.rows.tolist()
        assert part.batch.num_rows == len(rows) <= 8192
        assert rows == sorted(rows) and all(until <= row < part.until for row in rows)
        assert part.batch.schema.field("data").type == pa.large_binary()
        values |= dict(zip(rows, part.batch.column("data").to_pylist(), strict=True))
        assert part.batch.column("key").to_pylist() == [
            f"k{row - more.get('first_row', 0)}" for row in rows
        ]
        assert [one.row for one in part.failures] == sorted(one.row for one in part.failures)
        failures |= {one.row: (one.key, one.kind, one.reason) for one in part.failures}
        assert set(range(until, part.until)) <= set(values) | set(failures)
        until = part.until
    return values, failures


def outcome(url, at, **more):
    """Return the result of one address: its bytes, or (kind, reason)."""
    values, failures = collected([index([url])], at, **more)
    return values[0] if values else failures[0][1:]


def test_rows_are_in_order_for_any_order_of_arrival(web, at):
    def serve(handler, times):
        number = int(handler.path.partition("?")[2])
        time.sleep(0.02 * (number % 5 == 0))
        handler.answer(200, b"body %d" % number)

    web.pages["/a"] = serve
    urls = [web.url(f"/a?{i}") for i in range(300)]
    values, failures = collected([index(urls)], at)
    assert not failures
    assert values == {i: b"body %d" % i for i in range(300)}


def test_the_order_of_columns_does_not_depend_on_the_size_of_batches(web, at):
    web.file("/a.JPG", JPEG)
    url = web.url("/a.JPG")
    batches = [index([url] * n, n=list(range(n))) for n in (3, 0, 1)]
    parts = list(start(batches, at, first_row=10))
    assert parts[0].batch.schema.names == ["key", "data", "n"]
    assert parts[0].extensions == {"data": "jpg"}
    assert np.concatenate([part.rows for part in parts]).tolist() == [10, 11, 12, 13]
    assert parts[-1].until == 14
    assert [n for part in parts for n in part.batch.column("n").to_pylist()] == [0, 1, 2, 0]


def test_without_links_batches_are_unchanged(at):
    batch = pa.record_batch({"key": ["a", "b"]})
    parts = list(
        fetch(
            [batch, batch],
            [],
            key=None,
            at=at,
            guard=LOOPBACK,
            limits=QUICK,
            first_row=5,
            progress=Progress(),
        )
    )
    assert [
        (part.batch, part.rows.tolist(), list(part.failures), part.until) for part in parts
    ] == [(batch, [5, 6], [], 7), (batch, [7, 8], [], 9)]


def test_a_local_index_may_link_only_to_files_in_its_folder(at, tmp_path):
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "a.jpg").write_bytes(JPEG)
    (tmp_path.parent / "secret").write_bytes(b"secret")
    (tmp_path / "link").symlink_to(tmp_path.parent / "secret")
    (tmp_path / "https.txt").write_bytes(b"named like a scheme")
    assert outcome("https.txt", at) == b"named like a scheme"
    for own in (f"{tmp_path}/sub/a.jpg", f"file://{tmp_path}/sub/a.jpg", "x/../sub/a.jpg"):
        assert outcome(own, at) == JPEG
    bad = [
        "../secret",
        str(tmp_path.parent / "secret"),
        f"file://{tmp_path.parent}/secret",
        "link",
        "sub",
        "missing.jpg",
        "pipe:cat secret",
    ]
    values, failures = collected([index(["sub/a.jpg", *bad])], at)
    assert values == {0: JPEG}
    assert sorted(failures) == list(range(1, 8))
    up = tmp_path.parent
    assert [failures[row][1:] for row in range(1, 8)] == [
        ("unsafe", "the address '../secret' points outside the folder"),
        ("unsafe", f"the address '{up}/secret' points outside the folder"),
        ("unsafe", f"the address 'file://{up}/secret' points outside the folder"),
        ("unsafe", "link: is a symbolic link; its target may be outside the folder"),
        ("format", "sub: is a folder; expected a file"),
        ("missing", "missing.jpg: no such file or folder"),
        ("unsafe", "'pipe' is not a supported address scheme"),
    ]
    guard = Guard(allow_local=True)
    assert outcome("../secret", locate(str(tmp_path), guard), guard=guard) == b"secret"


def test_the_number_of_downloads_is_a_verbose_note(web, at, tmp_path):
    (tmp_path / "a.bin").write_bytes(bytes(1500))
    web.file("/b", bytes(500))
    notes = []

    class NoteCollector(Progress):
        def note(self, text, verbose=False):
            notes.append((text, verbose))

    batch = index(["a.bin", web.url("/b"), web.url("/none")])
    list(start([batch], at, progress=NoteCollector()))
    assert notes == [("fetched 2 links, 2.0 kB, 2 of them over HTTP", True)]
    notes.clear()
    list(start([index(["a.bin"])], at, progress=NoteCollector()))
    assert notes == [("fetched 1 link, 1.5 kB", True)]


@pytest.mark.parametrize(
    "url",
    [
        "ftp://127.0.0.1/x",
        "gopher://127.0.0.1/",
        "data:text/plain,x",
        "simplecache::http://127.0.0.1/",
        "zip://x.zip",
    ],
)
def test_an_unsupported_address_scheme_is_a_failed_row(at, url):
    kind, reason = outcome(url, at)
    assert kind in ("unsafe", "usage", "format", "missing"), reason


def test_null_and_empty_links_are_failed_rows(at, tmp_path):
    (tmp_path / "a").write_bytes(b"a")
    values, failures = collected([index([None, "a", ""])], at)
    assert values == {1: b"a"}
    assert failures[0] == ("k0", "null", "url is null")
    assert failures[2][1] == "null"


def test_a_row_fails_if_any_of_its_links_fails(web, at):
    web.file("/a", b"a")
    batch = pa.record_batch(
        {"key": ["x", "y"], "one": [web.url("/a")] * 2, "two": [web.url("/a"), web.url("/missing")]}
    )
    parts = list(start([batch], at, links=[Link("one", "one"), Link("two", "second")]))
    assert [part.batch.to_pydict() for part in parts] == [
        {"key": ["x"], "one": [b"a"], "second": [b"a"]}
    ]
    assert [(one.row, one.key, one.column) for one in parts[0].failures] == [(1, "y", "second")]


def test_rows_do_not_depend_on_the_number_of_rows_per_step(web, at, tmp_path, monkeypatch):
    """Images, files, pages, text that starts like a page, empty bodies and failures, in one large
    batch and in small batches.
    """
    (tmp_path / "file.jpg").write_bytes(b"file")
    web.file("/a.jpg", JPEG)
    web.page("/text", b"\n<- text")
    web.page("/page.jpg", b"<html>", Content_Type="text/html")
    web.page("/empty", b"")
    kinds = [web.url("/a.jpg")] * 9 + [
        "file.jpg",
        web.url("/text"),
        web.url("/page.jpg"),
        web.url("/empty"),
        web.url("/missing"),
        None,
    ]
    one, two = ([kinds[(step * row + row // 50) % 15] for row in range(400)] for step in (7, 11))
    links = [Link("one", "first"), Link("two", "second")]

    def outcomes(batch, step):
        values, failures = {}, {}
        for part in start((batch.slice(i, step) for i in range(0, 400, step)), at, links=links):
            rows = zip(
                part.batch.column("first").to_pylist(),
                part.batch.column("second").to_pylist(),
                strict=True,
            )
            values |= dict(zip(part.rows.tolist(), rows, strict=True))
            failures |= {
                failure.row: (failure.key, failure.column, failure.kind, failure.reason)
                for failure in part.failures
            }
        return values, failures

    batch = pa.record_batch({"key": [f"k{i}" for i in range(400)], "one": one, "two": two})
    complete = outcomes(batch, 400)
    assert outcomes(batch, 30) == complete
    bodies = {kinds[0]: JPEG, "file.jpg": b"file", web.url("/text"): b"\n<- text"}
    assert complete[0] == {
        row: (bodies[one[row]], bodies[two[row]])
        for row in range(400)
        if one[row] in bodies and two[row] in bodies
    }
    assert {row: failure[1] for row, failure in complete[1].items()} == {
        row: "first" if one[row] not in bodies else "second"
        for row in range(400)
        if row not in complete[0]
    }


def test_a_web_page_is_a_failed_row_unless_the_column_is_text(web, at):
    page = b"<!doctype html><title>Log in</title>"
    web.page("/a.jpg", page)
    web.page("/b", b"Please log in", Content_Type="text/html; charset=utf-8")
    web.page("/c.bin", b'<?xml version="1.0"?><Error><Code>AccessDenied</Code></Error>')
    web.page("/d.html", page, Content_Type="text/html")
    web.page("/e.jpg", JPEG, Content_Type="text/html")
    for path in ("/a.jpg", "/b", "/c.bin"):
        assert outcome(web.url(path), at)[0] == "media"
        assert isinstance(outcome(web.url(path), at, links=[Link("url", "data", "str")]), bytes)
    assert outcome(web.url("/d.html"), at) == page
    assert outcome(web.url("/e.jpg"), at) == JPEG


def test_an_empty_body_is_a_failed_row_unless_it_is_allowed(web, at, tmp_path):
    (tmp_path / "a").write_bytes(b"")
    for url in (web.page("/a", b""), web.page("/b", b"", status=204, Content_Length=None), "a"):
        assert outcome(url, at)[0] in ("empty", "status")
    assert outcome(web.url("/a"), at, allow_empty=True) == outcome("a", at, allow_empty=True) == b""


def truncate(handler, times):
    handler.begin(1000)
    handler.wfile.write(b"x" * 500)


def reset(handler, times):
    truncate(handler, times)
    handler.reset()


def chunked(handler, times):
    handler.send_response(200)
    handler.send_header("Transfer-Encoding", "chunked")
    handler.end_headers()
    handler.wfile.write(b"5\r\nhello\r\n")
    handler.close_connection = True


def garbage(handler, times):
    handler.wfile.write(b"SMTP ready\x00\xff\r\n\r\n")
    handler.close_connection = True


def hang(handler, times):
    handler.server.web.over.wait(20)


def stall(handler, times):
    handler.begin(1000)
    handler.wfile.flush()
    handler.server.web.over.wait(20)


def drip(handler, times):
    handler.begin(1000)
    for _ in range(100):
        handler.wfile.write(b"x")
        handler.wfile.flush()
        if handler.server.web.over.wait(0.05):
            return


@pytest.mark.parametrize(
    "fault",
    [truncate, reset, chunked, garbage, hang, stall, drip],
    ids=lambda fault: fault.__name__,
)
def test_a_broken_response_is_a_failed_row_with_a_reproducible_reason(web, other_web, at, fault):
    for server in (web, other_web):
        server.pages["/a"] = fault
    urls = [server.url("/a") for server in (web, other_web)]
    limits = IMPATIENT if fault in (hang, stall, drip) else QUICK
    values, failures = collected([index(urls)], at, limits=limits)
    assert not values
    assert (
        len(
            {
                (kind, reason.replace(str(server.port), "PORT"))
                for server, (_, kind, reason) in zip(
                    (web, other_web), failures.values(), strict=True
                )
            }
        )
        == 1
    )
    assert web.asked["/a"] <= 2 and other_web.asked["/a"] <= 2


@pytest.mark.parametrize("fault", [truncate, reset, chunked], ids=lambda fault: fault.__name__)
def test_a_transient_error_is_retried(web, at, fault):
    web.pages["/a"] = lambda handler, times: (
        fault(handler, times) if times == 1 else handler.answer(200, b"whole")
    )
    assert outcome(web.url("/a"), at) == b"whole"
    assert web.asked["/a"] == 2


_PACKED = gzip.compress(JPEG)
ENCODED = {  # status, body and headers of the response; the result of the row
    "whole": ((200, JPEG, {}), JPEG),
    "a range that was not asked for": (
        (206, JPEG[:10], {"Content_Range": f"bytes 0-9/{len(JPEG)}"}),
        "range",
    ),
    "all of it as a range": (
        (206, JPEG, {"Content_Range": f"bytes 0-{len(JPEG) - 1}/{len(JPEG)}"}),
        "range",
    ),
    "a range without saying which": ((206, JPEG, {}), "range"),
    "a range with 200": ((200, JPEG[:10], {"Content_Range": f"bytes 0-9/{len(JPEG)}"}), "range"),
    "no range to be had": ((416, b"", {"Content_Range": f"bytes */{len(JPEG)}"}), "status"),
    "not modified": ((304, b"", {}), "status"),
    "a condition that was not set": ((412, b"no", {}), "changed"),
    "a weak tag": ((200, JPEG, {"ETag": 'W/"1"'}), JPEG),
    "no content": ((204, b"", {}), "status"),
    "gzip": ((200, _PACKED, {"Content_Encoding": "gzip"}), JPEG),
    "two members of gzip": (
        (200, gzip.compress(JPEG[:9]) + gzip.compress(JPEG[9:]), {"Content_Encoding": "gzip"}),
        JPEG,
    ),
    "gzip cut short": ((200, _PACKED[:-9], {"Content_Encoding": "gzip"}), "encoding"),
    "gzip and more": ((200, _PACKED + b"more", {"Content_Encoding": "gzip"}), "encoding"),
    "gzip in name alone": ((200, JPEG, {"Content_Encoding": "gzip"}), "encoding"),
    "gzip of gzip": ((200, gzip.compress(_PACKED), {"Content_Encoding": "gzip, gzip"}), "encoding"),
    "gzip with a wrong sum": (
        (200, _PACKED[:-8] + bytes(4) + _PACKED[-4:], {"Content_Encoding": "gzip"}),
        "encoding",
    ),
    "far too much in gzip": (
        (200, gzip.compress(bytes(32 << 20), 1), {"Content_Encoding": "gzip"}),
        "encoding",
    ),
    "a range of gzip": (
        (
            206,
            _PACKED[:10],
            {"Content_Encoding": "gzip", "Content_Range": f"bytes 0-9/{len(_PACKED)}"},
        ),
        "range",
    ),
    "deflate": ((200, zlib.compress(JPEG), {"Content_Encoding": "deflate"}), JPEG),
    "br": ((200, JPEG, {"Content_Encoding": "br"}), "encoding"),
    "identity": ((200, JPEG, {"Content_Encoding": "identity"}), JPEG),
}


def test_unrequested_ranges_and_encodings_are_decoded_or_refused(web, at):
    for i, (sent, _) in enumerate(ENCODED.values()):
        web.page(f"/{i}", sent[1], status=sent[0], **sent[2])
    values, failures = collected([index([web.url(f"/{i}") for i in range(len(ENCODED))])], at)
    result = {name: values[i] if i in values else failures[i][1] for i, name in enumerate(ENCODED)}
    assert result == {name: expected for name, (_, expected) in ENCODED.items()}


def test_permanent_errors_are_requested_once_and_transient_errors_are_retried(web, at):
    statuses = {404: 1, 410: 1, 403: 1, 401: 1, 400: 1, 500: 2, 502: 2, 503: 2, 429: 2, 408: 2}
    urls = [web.page(f"/{status}", b"", status=status) for status in statuses]
    values, failures = collected(
        [index(urls)], at, limits=Limits(retries=1, timeout_s=5, deadline_s=30)
    )
    assert not values and len(failures) == len(statuses)
    for status, reason in zip(statuses, failures.values(), strict=True):
        assert str(status) in reason[2]
        assert web.asked[f"/{status}"] == statuses[status], status


def test_retries_have_a_budget(web, at):
    web.pages["/a"] = lambda handler, times: handler.answer(500)
    _, failures = collected(
        [index([web.url("/a")] * 300)], at, limits=Limits(retries=4, timeout_s=5, deadline_s=60)
    )
    assert len(failures) == 300
    assert web.asked["/a"] <= 300 + 150


def test_an_object_above_the_size_limit_is_a_failed_row(web, at, tmp_path):
    (tmp_path / "a").write_bytes(bytes(2000))
    limits = Limits(max_bytes=1000, timeout_s=5, deadline_s=10)
    web.page("/told", bytes(2000))
    web.page("/untold", bytes(2000), Content_Length=None)
    kinds = {
        outcome(url, at, limits=limits)[0] for url in (web.url("/told"), web.url("/untold"), "a")
    }
    assert len(kinds) == 1
    assert outcome(web.page("/fits", b"x" * 1000), at, limits=limits) == b"x" * 1000


def test_redirects_reach_private_addresses_only_at_the_origin_of_the_row(web, other_web, at):
    other_web.file("/secret", b"secret")
    web.file("/a", b"a")
    web.page("/ok", b"", status=302, Location=web.url("/a"))
    assert outcome(web.url("/ok"), at) == b"a"
    for i, target in enumerate(
        [
            other_web.url("/secret"),
            "file:///etc/passwd",
            web.url("/a", host="localhost"),
            "//[::1]:1/x",
        ]
    ):
        web.page(f"/{i}", b"", status=302, Location=target)
        assert outcome(web.url(f"/{i}"), at)[0] == "unsafe", target
    assert not other_web.asked
    assert outcome(web.url("/0"), at, guard=Guard(allow_private=True)) == b"secret"


def test_a_remote_index_may_link_only_to_public_addresses_and_its_own_folder(
    web, other_web, tmp_path
):
    other_web.file("/secret", b"secret")
    (tmp_path / "secret").write_bytes(b"secret")
    web.file("/d/a.bin", b"beside")
    remote = locate(web.url("/d/index.csv")).folder
    assert (
        outcome("a.bin", remote)
        == outcome("/d/a.bin", remote)
        == outcome(web.url("/d/a.bin"), remote)
        == b"beside"
    )
    for url in (other_web.url("/secret"), f"file://{tmp_path}/secret"):
        assert outcome(url, remote, guard=Guard())[0] == "unsafe"
    assert not other_web.asked
    assert outcome(other_web.url("/secret"), remote, guard=Guard(allow_private=True)) == b"secret"


def test_reasons_contain_no_secrets(web, at):
    web.page("/a", b"", status=403)
    _, reason = outcome(web.url("/a?X-Amz-Signature=hunter2", "me:hunter2"), at)
    assert "hunter2" not in reason and "me:" not in reason
    web.page("/b", b"", status=302, Location="http://me:hunter2@127.0.0.2:1/?sig=hunter2")
    assert "hunter2" not in outcome(web.url("/b"), at)[1]


def test_read_ahead_is_bounded_and_a_larger_object_is_still_read(web, at):
    """The server counts the bytes that it can send while no row is consumed."""
    size, sent = 200_000, []

    def serve(handler, times):
        handler.answer(200, os.urandom(size))
        sent.append(size)

    web.pages["/a"] = serve
    web.page("/large", bytes(3_000_000))
    urls = [web.url("/a?1"), web.url("/large"), *[web.url(f"/a?{i}") for i in range(200)]]
    batches = [index([url]) for url in urls]
    stream = start(
        batches, at, limits=Limits(jobs=4, ahead_bytes=1_000_000, timeout_s=20, deadline_s=60)
    )
    first = next(stream)
    assert first.batch.num_rows == 1
    time.sleep(0.7)
    assert sum(sent) < 1_000_000 + 4 * 1_500_000  # the bound, and the buffers of sockets
    sizes = [len(value) for part in stream for value in part.batch.column("data").to_pylist()]
    assert sizes == [3_000_000] + [size] * 200


def test_closing_early_ends_all_transfers_and_the_thread(web, at):
    web.file("/a", b"a")
    web.pages["/hang"] = hang

    def web_threads():
        return [
            thread for thread in threading.enumerate() if "process_request_thread" in thread.name
        ]

    before = threading.active_count() - len(web_threads())
    stream = start([index([web.url("/a")]), index([web.url("/hang")] * 50)], at, limits=Limits())
    began = time.monotonic()
    assert next(stream).batch.num_rows == 1
    stream.close()
    assert time.monotonic() - began < 15  # the server hangs for 20 s
    assert threading.active_count() - len(web_threads()) == before


def test_a_link_column_that_is_not_text_is_refused(at):
    with pytest.raises(UsageError, match="url"):
        list(start([pa.record_batch({"key": ["a"], "url": [1]})], at))


@pytest.mark.parametrize(
    "kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())]
)
def test_every_type_of_text_column_can_contain_links(at, tmp_path, kind):
    (tmp_path / "a").write_bytes(b"a")
    batch = pa.record_batch(
        {
            "key": ["k0"],
            "url": pa.array(["a"], pa.string()).cast(kind)
            if not pa.types.is_dictionary(kind)
            else pa.array(["a"]).dictionary_encode(),
        }
    )
    assert collected([batch], at)[0] == {0: b"a"}


def test_a_bug_in_the_transfer_thread_is_not_a_failed_row(web, at, monkeypatch):
    web.file("/a.jpg", JPEG)
    monkeypatch.setattr("flarecli.storage.http.transfer.Handle.finish", lambda self, code: 1 // 0)
    with pytest.raises(RuntimeError, match=r"^ZeroDivisionError: "):
        collected([index([web.url("/a.jpg")])], at)


def test_an_address_that_is_not_utf8_fails_only_its_row(at, tmp_path):
    (tmp_path / "a.jpg").write_bytes(JPEG)
    text = pa.Array.from_buffers(
        pa.string(),
        2,
        [None, pa.py_buffer(np.array([0, 2, 7], np.int32)), pa.py_buffer(b"\xff\xfea.jpg")],
    )
    values, failures = collected([pa.record_batch({"key": ["k0", "k1"], "url": text})], at)
    assert (values, failures) == ({1: JPEG}, {0: ("k0", "value", "url is not UTF-8")})


def test_two_columns_may_exchange_their_names(web, at):
    web.file("/a.jpg", b"a")
    web.file("/b.jpg", b"b")
    batch = pa.record_batch(
        {"key": ["k"], "one": [web.url("/a.jpg")], "two": [web.url("/b.jpg")], "n": [1]}
    )
    (part,) = start([batch], at, links=[Link("one", "two"), Link("two", "one")])
    assert part.batch.schema.names == ["key", "two", "one", "n"]
    assert part.batch.to_pylist() == [{"key": "k", "two": b"a", "one": b"b", "n": 1}]
