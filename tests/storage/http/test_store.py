"""Files over HTTP: complete responses or errors, and only addresses that data may name."""

from __future__ import annotations

import gzip
import os
import pickle
import random
import shutil
import socket
import ssl
import subprocess
import sys
import threading
import zlib
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer

import pycurl
import pytest

from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    ReachError,
    UnsafeError,
    UsageError,
)
from flarecli.storage import Guard, Limits, locate
from flarecli.storage.http import ip_guard as permits
from flarecli.storage.http import transfer as slots

DATA = random.Random(1).randbytes(300_000)


def caught(error, call, *args):
    """Return the error that a call raises, as text without the port."""
    with pytest.raises(FlareError) as found:
        call(*args)
    assert type(found.value) is error, repr(found.value)
    return str(found.value)


def test_a_file_is_read_whole_in_ranges_and_in_blocks(web):
    at = locate(web.file("/d/a.bin", DATA, '"one"'))
    assert at.size() == len(DATA)
    assert at.read() == DATA
    assert at.read(10, 20) == DATA[10:20]
    assert at.read(299_990) == DATA[299_990:]
    assert at.read_many([(5, 9), (200_000, 200_100), (0, 3), (7, 7)]) == [
        DATA[5:9],
        DATA[200_000:200_100],
        DATA[:3],
        b"",
    ]
    assert b"".join(at.blocks()) == DATA
    assert at.map() is None
    assert at.exists() and not (at.folder / "b.bin").exists()
    assert not at.is_local


def test_close_ranges_share_a_request_and_distant_ones_do_not(web):
    at = locate(web.file("/a", DATA))
    ranges = [(start, start + 10) for start in (0, 100, 1000, 200_000, 200_100)]
    assert at.read_many(ranges) == [DATA[a:b] for a, b in ranges]
    assert sum("range" in headers for _, headers in web.requests) == 2


def test_an_empty_file_is_empty(web):
    at = locate(web.file("/a", b""))
    assert at.size() == 0
    assert at.read() == b""
    assert at.read(0, 0) == b""


def test_a_read_past_the_end_is_an_error(web):
    for address in (web.file("/a", DATA), web.page("/b", DATA)):
        at = locate(address)
        assert (
            caught(FormatError, at.read, 299_990, 300_010)
            == f"{address}: ends at byte 300000; expected at least 300010 bytes"
        )
        assert issubclass(FormatError, ValueError)
        with pytest.raises(FormatError):
            at.read(300_005, 300_010)
        with pytest.raises(FormatError):
            at.read_many([(0, 5), (400_000, 400_001)])


def test_a_server_that_ignores_ranges_returns_the_right_bytes(web):
    at = locate(web.page("/a", DATA))
    assert at.size() == len(DATA)
    assert at.read(1000, 1010) == DATA[1000:1010]
    assert at.read_many([(299_999, 300_000), (0, 2)]) == [DATA[-1:], DATA[:2]]


def test_a_response_with_status_200_and_content_range_is_a_range(web):
    def serve(handler, times):
        start, stop = (int(n) for n in handler.headers["Range"].removeprefix("bytes=").split("-"))
        handler.answer(
            200, DATA[start : stop + 1], Content_Range=f"bytes {start}-{stop}/{len(DATA)}"
        )

    web.pages["/a"] = serve
    assert locate(web.url("/a")).read(1000, 1010) == DATA[1000:1010]


@pytest.mark.parametrize(
    ("said", "body"),
    [
        ("bytes 0-9/300000", DATA[:10]),
        ("bytes 1001-1010/300000", DATA[1001:1011]),
        ("bytes 1000-1004/300000", DATA[1000:1005]),
        ("bytes 1000-1019/300000", DATA[1000:1020]),
        ("bytes 1000-1009/1005", DATA[1000:1010]),
        ("bytes 1009-1000/300000", DATA[:10]),
        ("bytes 1000-1009/300000", DATA[1000:1005]),
        ("octets 1000-1009/300000", DATA[1000:1010]),
        (None, DATA[1000:1010]),
    ],
)
def test_another_range_than_requested_is_refused(web, said, body):
    web.pages["/a"] = lambda handler, times: handler.answer(
        206, body, **({"Content-Range": said} if said else {})
    )
    try:
        assert (
            locate(web.url("/a")).read(1000, 1010) == DATA[1000:1010]
        )  # a longer range may be cut
        assert said == "bytes 1000-1019/300000"
    except (FormatError, ReachError):
        pass


def test_a_missing_file_is_requested_once(web):
    address = web.page("/a", b"gone", status=404)
    at = locate(address)
    assert "404" in caught(MissingError, at.read)
    assert web.asked["/a"] == 1
    for status, error in (
        (410, MissingError),
        (403, ReachError),
        (401, ReachError),
        (400, ReachError),
    ):
        path = f"/{status}"
        assert str(status) in caught(error, locate(web.page(path, b"no", status=status)).read)
        assert web.asked[path] == 1


def test_transient_faults_are_retried(web):
    web.pages["/a"] = lambda handler, times: (
        handler.answer(503, b"", Retry_After=0) if times < 3 else handler.answer(200, DATA)
    )
    assert locate(web.url("/a")).read() == DATA
    assert web.asked["/a"] == 3


def test_an_object_that_changes_between_reads_is_an_error(web):
    tags = ['"one"']
    for path, honours in (("/a", True), ("/b", False)):
        tags[:] = ['"one"']
        if honours:
            web.file(path, lambda times: DATA, lambda times: tags[0])
        else:  # ignores If-Match, but sends its version
            web.pages[path] = lambda handler, times: handler.answer(
                206, DATA[:10], ETag=tags[0], Content_Range=f"bytes 0-9/{len(DATA)}"
            )
        at = locate(web.url(path))
        assert at.read(0, 10) == DATA[:10]
        tags[:] = ['"two"']
        assert (
            caught(IntegrityError, at.read, 0, 10)
            == f"{web.url(path)}: changed while it was being read"
        )


def test_a_weak_etag_does_not_identify_a_version(web):
    at = locate(web.file("/a", DATA, lambda times: f'W/"{times}"'))
    assert at.read(0, 10) + at.read(10, 20) == DATA[:20]


@pytest.mark.parametrize("coding", ["gzip", "deflate"])
def test_an_unrequested_content_encoding_is_decoded(web, coding):
    packed = gzip.compress(DATA) if coding == "gzip" else zlib.compress(DATA)
    at = locate(web.page("/a", packed, Content_Encoding=coding))
    assert at.read() == DATA
    assert at.size() == len(DATA)
    assert at.read(1000, 1010) == DATA[1000:1010]
    assert all(headers["accept-encoding"] == "identity" for _, headers in web.requests)


def test_a_range_of_encoded_bytes_is_refused(web):
    packed = gzip.compress(DATA)
    web.pages["/a"] = lambda handler, times: handler.answer(
        206, packed[:10], Content_Encoding="gzip", Content_Range=f"bytes 0-9/{len(packed)}"
    )
    with pytest.raises((FormatError, ReachError)):
        locate(web.url("/a")).read(0, 10)


@pytest.mark.parametrize(
    "body",
    [
        gzip.compress(DATA)[:-9],
        gzip.compress(DATA)[:1000],
        b"no gzip at all",
        gzip.compress(bytes(32 << 20)),
    ],
)
def test_a_damaged_or_oversized_encoding_is_an_error(web, body):
    at = locate(web.page("/a", body, Content_Encoding="gzip"))
    with pytest.raises((FormatError, ReachError)):
        at.read()


def test_an_unknown_encoding_is_refused(web):
    with pytest.raises((FormatError, ReachError)):
        locate(web.page("/a", DATA, Content_Encoding="br")).read()


def test_only_the_user_may_name_a_private_address(web, other_web):
    at = locate(web.file("/d/list", b"x"))
    other_web.file("/secret", b"secret")
    for url in (
        other_web.url("/secret"),
        other_web.url("/secret", host="localhost"),
        f"http://2130706433:{other_web.port}/secret",
    ):
        with pytest.raises(UnsafeError):
            at.folder.join(url).read()
    assert not other_web.asked
    assert locate(other_web.url("/secret")).read() == b"secret"
    assert (
        locate(web.url("/d/list"), Guard(allow_private=True))
        .folder.join(other_web.url("/secret"))
        .read()
        == b"secret"
    )
    assert at.folder.join(web.url("/d/list")).read() == b"x"  # the origin of the credentials


@pytest.mark.parametrize(
    ("host", "ip"),
    [
        ("127.0.0.1", "127.0.0.1"),
        ("2130706433", "127.0.0.1"),
        ("0177.0.0.1", "127.0.0.1"),
        ("0x7f.0.0.1", "127.0.0.1"),
        ("0x7f000001", "127.0.0.1"),
        ("127.1", "127.0.0.1"),
        ("0", "0.0.0.0"),
        ("[::ffff:127.0.0.1]", "::ffff:127.0.0.1"),
        ("[::ffff:7f00:1]", "::ffff:127.0.0.1"),
        ("[::1]", "::1"),
    ],
)
def test_private_addresses_are_recognised_in_every_notation(web, other_web, host, ip):
    other_web.file("/secret", b"secret")
    at = locate(web.file("/d/list", b"x")).folder
    with pytest.raises(UnsafeError) as found:
        at.join(f"http://{host}:{other_web.port}/secret").read()
    assert found.value.message in (
        f"leads to {ip}, a loopback address",
        f"leads to {ip}, an unspecified address",
    )
    web.page("/d/moved", b"", status=302, Location=f"http://{host}:{other_web.port}/secret")
    with pytest.raises(UnsafeError):
        (at / "moved").read()
    assert not other_web.asked


@pytest.mark.parametrize(
    ("answers", "seconds"),
    [("127.0.0.2,127.0.0.1", 7), ("127.0.0.1,127.0.0.2", 8), ("127.0.0.2,[::1],127.0.0.1", 9)],
)
def test_only_the_public_addresses_of_a_host_are_connected_to(
    web, other_web, monkeypatch, answers, seconds
):
    other_web.file("/a", b"public")
    opened, open_, begin = [], slots.Handle._open, slots.Handle.begin

    def resolving(slot, request, now, fresh):
        slot.easy.setopt(pycurl.RESOLVE, [f"many.example:{other_web.port}:{answers}"])
        begin(slot, request, now, fresh)

    def opening(slot, purpose, address):
        made = open_(slot, purpose, address)
        opened.append((address[3][0], isinstance(made, socket.socket)))
        return made

    monkeypatch.setattr(
        permits, "reserved", lambda ip: "" if ip == "127.0.0.1" else "loopback"
    )  # counts as a public address
    monkeypatch.setattr(slots.Handle, "begin", resolving)
    monkeypatch.setattr(slots.Handle, "_open", opening)
    at = locate(
        web.file("/d/list", b"x"), Guard(limits=Limits(retries=0, timeout_s=seconds))
    ).folder  # other limits: new connections
    assert at.join(f"http://many.example:{other_web.port}/a").read() == b"public"
    assert ("127.0.0.1", True) in opened and all(made == (ip == "127.0.0.1") for ip, made in opened)
    monkeypatch.setattr(permits, "reserved", lambda ip: "loopback")
    with pytest.raises(UnsafeError) as found:
        locate(
            web.url("/d/list"), Guard(limits=Limits(retries=0, timeout_s=seconds + 0.5))
        ).folder.join(f"http://many.example:{other_web.port}/a").read()
    assert "a loopback address" in found.value.message and other_web.asked == {"/a": 1}


def test_a_connection_is_not_reused_by_requests_without_its_permit(web, other_web):
    other_web.file("/secret", b"secret")
    assert locate(other_web.url("/secret")).read() == b"secret"
    with pytest.raises(UnsafeError):
        locate(web.url("/d/list")).folder.join(other_web.url("/secret")).read()
    assert other_web.asked["/secret"] >= 1
    count = other_web.asked["/secret"]
    with pytest.raises(UnsafeError):
        locate(web.url("/d/list")).folder.join(other_web.url("/secret")).read(0, 3)
    assert other_web.asked["/secret"] == count


def test_a_redirect_is_followed_within_its_origin_only(web, other_web):
    web.file("/real", DATA)
    other_web.file("/secret", b"secret")
    web.page("/moved", b"", status=302, Location="/real")
    web.page("/away", b"", status=302, Location=other_web.url("/secret"))
    web.page("/file", b"", status=302, Location="file:///etc/passwd")
    web.page("/ftp", b"", status=302, Location="ftp://127.0.0.1/x")
    web.page("/nowhere", b"", status=302)
    assert locate(web.url("/moved")).read(5, 10) == DATA[5:10]
    for path in ("/away", "/file", "/ftp"):
        with pytest.raises(UnsafeError):
            locate(web.url(path)).read()
        assert web.asked[path] == 1
    with pytest.raises(ReachError):
        locate(web.url("/nowhere")).read()
    assert not other_web.asked


def test_at_most_five_redirects_are_followed(web):
    for i in range(10):
        web.page(f"/{i}", b"", status=307, Location=f"/{i + 1}")
    web.file("/10", b"end")
    assert locate(web.url("/5")).read() == b"end"
    with pytest.raises(ReachError):
        locate(web.url("/4")).read()
    web.page("/loop", b"", status=301, Location="/loop")
    with pytest.raises(ReachError):
        locate(web.url("/loop")).read()
    assert web.asked["/loop"] == 6


def test_credentials_are_sent_only_to_their_origin(web):
    web.file("/a", b"a")
    assert locate(web.url("/a", "m%40e:p%3Aw")).read() == b"a"
    assert web.requests[-1][1]["authorization"] == "Basic bUBlOnA6dw=="  # m@e:p:w
    web.page("/same", b"", status=302, Location="/a")
    web.page("/other", b"", status=302, Location=web.url("/a", host="localhost"))
    guard = Guard(allow_private=True)
    assert locate(web.url("/a", "me:hunter2")).read() == b"a"
    assert "authorization" in web.requests[-1][1]
    assert locate(web.url("/same", "me:hunter2")).read() == b"a"
    assert "authorization" in web.requests[-1][1]
    assert locate(web.url("/other", "me:hunter2"), guard).read() == b"a"
    assert web.requests[-1][1]["host"].startswith("localhost")
    assert "authorization" not in web.requests[-1][1]
    at = locate(web.url("/d/list", "me:hunter2"), guard).folder
    assert at.join(web.url("/a", host="localhost")).read() == b"a"
    assert "authorization" not in web.requests[-1][1]
    web.file("/d/b", b"b")
    assert (at / "b").read() == at.join("b").read() == b"b"
    assert all("authorization" in headers for path, headers in web.requests if path == "/d/b")


def test_secrets_are_not_shown(web):
    web.page("/a", b"", status=403)
    at = locate(web.url("/a?X-Amz-Signature=hunter2", "me:hunter2"))
    assert "hunter2" not in str(at) + str(at.folder) + str(at / "x") + caught(ReachError, at.read)
    assert web.requests[-1][0] == "/a?X-Amz-Signature=hunter2"


def test_names_and_references_are_resolved_below_a_folder(web):
    web.file("/d/a%20b%23.bin", b"1")
    web.file("/d/sub/c.bin", b"2")
    web.file("/e.bin", b"3")
    at = locate(web.url("/d/list.yaml?sig=x")).folder
    assert (at / "a b#.bin").read() == b"1"
    assert (
        (at / "sub/c.bin").read()
        == at.join("sub/c.bin").read()
        == at.join("./sub/../sub/c.bin").read()
        == b"2"
    )
    assert at.join("../e.bin").read() == at.join("/e.bin").read() == b"3"
    assert (locate(web.url("/d/")) / "sub/c.bin").read() == b"2"
    assert (locate(web.url("/d")) / "sub/c.bin").read() == b"2"
    with pytest.raises(UnsafeError):
        at / "../e.bin"


@pytest.mark.parametrize(
    "url",
    [
        "file:///etc/passwd",
        "file:/etc/passwd",
        "hf://datasets/a/b",
        "ftp://example.org/x",
        "pipe:ls",
        "data:,x",
    ],
)
def test_other_schemes_are_refused_to_data_from_the_network(web, url):
    at = locate(web.url("/d/list")).folder
    with pytest.raises((UnsafeError, FormatError)) as found:
        at.join(url)
    if url.startswith("file"):
        assert type(found.value) is UnsafeError


def test_data_may_name_a_local_file_if_the_guard_allows_it(web, tmp_path):
    (tmp_path / "a.bin").write_bytes(b"local")
    at = locate(web.url("/d/list"), Guard(allow_local=True)).folder
    assert at.join(f"file://{tmp_path}/a.bin").read() == b"local"


def test_data_from_the_network_may_name_other_schemes_if_the_guard_allows_it(web):
    pytest.importorskip("fsspec")
    locate("memory://named/a.bin").write([b"in memory"])
    at = locate(web.url("/d/list"), Guard(allow_local=True)).folder
    assert at.join("memory://named/a.bin").read() == b"in memory"
    with pytest.raises(UnsafeError):
        locate(web.url("/d/list")).folder.join("memory://named/a.bin")


def test_certificates_are_verified_and_located_once(tmp_path):
    """A server with a self-signed certificate is refused, unless SSL_CERT_FILE names it."""
    openssl = shutil.which("openssl")
    if openssl is None:
        pytest.skip("openssl makes the certificate")
    made = [
        "req",
        "-x509",
        "-newkey",
        "ec",
        "-pkeyopt",
        "ec_paramgen_curve:prime256v1",
        "-nodes",
        "-days",
        "2",
        "-subj",
        "/CN=127.0.0.1",
    ]
    files = [
        "-addext",
        "subjectAltName=IP:127.0.0.1",
        "-keyout",
        str(tmp_path / "key"),
        "-out",
        str(tmp_path / "cert"),
    ]
    subprocess.run([openssl, *made, *files], check=True, capture_output=True)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(tmp_path))
    )
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(tmp_path / "cert", tmp_path / "key")
    server.socket = context.wrap_socket(
        server.socket, server_side=True, do_handshake_on_connect=False
    )
    threading.Thread(
        target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
    ).start()
    address = f"https://127.0.0.1:{server.server_address[1]}/cert"
    code = f"from flarecli.storage import locate\ntry: print(len(locate({address!r}).read()))\nexcept OSError as error: print(error)"
    try:
        said = []
        for more in ({"SSL_CERT_FILE": str(tmp_path / "cert")}, {}):
            env = {
                name: value
                for name, value in os.environ.items()
                if name not in ("SSL_CERT_FILE", "CURL_CA_BUNDLE")
            } | more
            run = subprocess.run(
                [sys.executable, "-c", code],
                env=env,
                cwd=tmp_path,
                capture_output=True,
                text=True,
                check=True,
            )
            said.append(run.stdout.strip())
        assert said == [
            str((tmp_path / "cert").stat().st_size),
            f"{address}: the TLS certificate is not trusted",
        ]
    finally:
        server.shutdown()
        server.server_close()


def test_a_web_server_is_neither_written_nor_listed(web):
    at = locate(web.url("/a"))
    for call in (lambda: at.write([b"x"]), at.delete, lambda: list(at.list())):
        with pytest.raises((UsageError, ReachError)):
            call()
    assert not web.asked


def test_a_location_is_picklable_and_equal(web):
    at = locate(web.file("/a", DATA, '"one"'))
    at.read(0, 10)
    again = pickle.loads(pickle.dumps(at))
    assert again == at and hash(again) == hash(at)
    assert again.read(0, 10) == DATA[:10]


def test_a_forked_process_opens_its_own_connections(web):
    at = locate(web.file("/a", DATA))
    assert at.read(0, 10) == DATA[:10]
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        try:
            os.write(
                writer,
                b"+" if all(at.read(i, i + 10) == DATA[i : i + 10] for i in range(20)) else b"-",
            )
        finally:
            os._exit(0)
    assert all(at.read(i, i + 10) == DATA[i : i + 10] for i in range(20, 40))
    os.close(writer)
    assert os.read(reader, 1) == b"+"
    os.close(reader)
    os.waitpid(child, 0)


def test_many_threads_read_at_the_same_time(web):
    at, wrong = locate(web.file("/a", DATA)), []

    def read(seed):
        for i in range(seed, 200_000, 20_011):
            if at.read(i, i + 1000) != DATA[i : i + 1000]:
                wrong.append(i)

    threads = [threading.Thread(target=read, args=(i * 101,)) for i in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not wrong


def test_addresses_in_data_do_not_use_a_proxy(web, other_web, monkeypatch):
    for name in ("http_proxy", "HTTP_PROXY", "all_proxy", "ALL_PROXY"):
        monkeypatch.setenv(name, other_web.url(""))
    assert locate(web.file("/a", b"a")).read() == b"a"
    assert not other_web.requests


def test_importing_storage_loads_no_client():
    code = "import sys, flarecli.storage; print(sorted({'pycurl', 'numpy', 'pyarrow', 'ssl'} & set(sys.modules)))"
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "[]\n"
    )


SMALL_DATA = bytes(range(256)) * 40


def test_a_range_without_its_last_byte_is_refused(web):
    web.pages["/a"] = lambda handler, times: handler.answer(
        206, SMALL_DATA[10:19], Content_Range=f"bytes 10-18/{len(SMALL_DATA)}"
    )
    with pytest.raises(ReachError) as caught:
        locate(web.url("/a")).read(10, 20)
    assert caught.value.message == "the server sent a shorter range than requested"


def test_an_encoded_whole_object_instead_of_a_range_is_bounded(web, monkeypatch):
    monkeypatch.setattr(slots, "MAX_WHOLE_BYTES", 1000)
    web.page("/a", gzip.compress(os.urandom(5000)), Content_Encoding="gzip")
    with pytest.raises(ReachError) as caught:
        locate(web.url("/a")).read(10, 20)
    assert (caught.value.message, caught.value.hint) == ("larger than the limit of 1000 bytes", "")


def test_modification_times_are_compared_if_there_is_no_etag(web):
    days = {1: "05"}

    def page(handler, times):
        start, stop = (
            int(number) for number in handler.headers["Range"].removeprefix("bytes=").split("-")
        )
        modified = f"Mon, {days.get(times, '06')} Jan 2026 00:00:00 GMT"
        handler.answer(
            206,
            SMALL_DATA[start : stop + 1],
            Content_Range=f"bytes {start}-{stop}/{len(SMALL_DATA)}",
            Last_Modified=modified,
        )

    web.pages["/a"] = page
    at = locate(web.url("/a"))
    assert at.read(0, 10) == SMALL_DATA[:10]
    with pytest.raises(IntegrityError):
        at.read(10, 20)
