"""Polite downloads: a limit per host, a chosen User-Agent, and X-Robots-Tag headers that disallow
the use of an object.
"""

import threading
import time
from collections import Counter

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli import __version__, read
from flarecli.__main__ import main
from flarecli.errors import ReachError, UsageError
from tests.commands.packing.note_collector import NoteCollector
from tests.outputs import failed_rows

OPTIONS = {"fetch": ["url:image"], "key": "id", "allow_host": "127.0.0.0/8"}
BODY = b"\xff\xd8\xff\xe0" + bytes(100)
NOTE = "rows failed because of X-Robots-Tag: use --ignore-robots-tag to download such objects"


def index(folder, urls):
    path = folder / "index.parquet"
    pq.write_table(pa.table({"id": [f"k{i}" for i in range(len(urls))], "url": urls}), path)
    return str(path)


@pytest.fixture
def disallowed(web):
    """The addresses of an object that is allowed, and of one that is not."""
    return [web.page("/a.jpg", BODY), web.page("/b.jpg", BODY, X_Robots_Tag="noarchive, noai")]


def test_a_disallowed_object_ends_the_pack_and_the_hint_names_the_option(disallowed, tmp_path):
    with pytest.raises(ReachError) as caught:
        flarecli.pack(index(tmp_path, disallowed), tmp_path / "out", **OPTIONS)
    url = disallowed[1]
    reason = f"k1: {url}: the server disallows the use of this object (X-Robots-Tag: noai)"
    assert (caught.value.message, caught.value.row, caught.value.column) == (reason, 1, "image")
    hint = "Use --ignore-robots-tag to download such objects, or --on-error skip to omit such rows."
    assert caught.value.hint == hint


def test_disallowed_objects_are_failed_rows(disallowed, web, tmp_path):
    url, notes = disallowed[1], NoteCollector()
    source = index(tmp_path, [*disallowed, web.url("/missing.jpg"), url])
    packed = flarecli.pack(source, tmp_path / "out", on_error="skip", progress=notes, **OPTIONS)
    assert (packed.rows, packed.reasons) == (1, {"missing": 1, "robots": 2})
    assert failed_rows(tmp_path / "out")[0] == {
        "file": "index.parquet",
        "row": 1,
        "key": "k1",
        "column": "image",
        "kind": "robots",
        "reason": f"{url}: the server disallows the use of this object (X-Robots-Tag: noai)",
    }
    assert notes.notes == [NOTE]


def test_ignore_robots_tag_packs_disallowed_objects(disallowed, tmp_path, capfd):
    argv = ["pack", index(tmp_path, disallowed), str(tmp_path / "out"), "--fetch", "url", "-q"]
    argv += ["--allow-host", "127.0.0.0/8", "--key", "id"]
    assert main([*argv, "--ignore-robots-tag"]) == 0
    with read.open(str(tmp_path / "out")) as data:
        assert [row["url"] for row in data.rows(range(2))] == [BODY, BODY]
    assert main([*argv, "--overwrite", "--on-error", "skip"]) == 1
    assert capfd.readouterr().err == ""


def test_a_disallowed_object_fails_before_its_body_is_complete(web, tmp_path):
    def serve(handler, times):
        handler.begin(10**8, X_Robots_Tag="noimageindex")
        handler.wfile.write(BODY)
        handler.wfile.flush()
        web.over.wait(60)

    web.pages["/a.jpg"] = serve
    began = time.monotonic()
    with pytest.raises(ReachError, match="noimageindex"):
        flarecli.pack(index(tmp_path, [web.url("/a.jpg")]), tmp_path / "out", **OPTIONS)
    assert time.monotonic() - began < 10


def test_only_the_last_response_of_a_redirect_counts(web, tmp_path):
    web.page("/a.jpg", b"", status=302, Location="/b.jpg", X_Robots_Tag="noai")
    web.page("/b.jpg", BODY)
    web.page("/c.jpg", b"", status=302, Location="/d.jpg")
    web.page("/d.jpg", BODY, X_Robots_Tag="noai")
    source = index(tmp_path, [web.url("/a.jpg"), web.url("/c.jpg")])
    packed = flarecli.pack(source, tmp_path / "out", on_error="skip", **OPTIONS)
    assert (packed.rows, packed.reasons) == (1, {"robots": 1})


def test_an_index_from_a_server_is_read_whatever_its_robots_tag(web, tmp_path):
    web.page("/index.csv", b"id,n\na,1\n", X_Robots_Tag="noai")
    assert flarecli.pack(web.url("/index.csv"), tmp_path / "out").rows == 1


def test_a_pack_that_skips_rows_is_resumed_only_with_the_same_robots_option(disallowed, tmp_path):
    source, options = index(tmp_path, disallowed), {**OPTIONS, "on_error": "skip"}
    flarecli.pack(source, tmp_path / "out", **options)
    with pytest.raises(UsageError):
        flarecli.pack(source, tmp_path / "out", resume=True, ignore_robots_tag=True, **options)
    assert flarecli.pack(source, tmp_path / "out", resume=True, **options).rows == 1


def test_a_pack_that_a_disallowed_object_ended_is_resumed_with_the_option(disallowed, tmp_path):
    source = index(tmp_path, disallowed)
    with pytest.raises(ReachError):
        flarecli.pack(source, tmp_path / "out", shard_rows=1, **OPTIONS)
    options = {"resume": True, "ignore_robots_tag": True, "shard_rows": 1}
    assert flarecli.pack(source, tmp_path / "out", **options, **OPTIONS).rows == 2


def test_unpack_has_the_same_options(disallowed, web, tmp_path):
    source = index(tmp_path, disallowed)
    with pytest.raises(
        ReachError, match=r"the server disallows the use of this object \(X-Robots-Tag: noai\)"
    ):
        flarecli.unpack(source, tmp_path / "a", **OPTIONS)
    options = {"ignore_robots_tag": True, "user_agent": "mybot/1.0"}
    assert flarecli.unpack(source, tmp_path / "b", **options, **OPTIONS).files == 2
    assert web.requests[-1][1]["user-agent"] == "mybot/1.0"


def test_the_user_agent_is_sent_and_its_name_obeys_robots_tags(web, tmp_path):
    url = web.page("/a.jpg", BODY, X_Robots_Tag="mybot: noai")
    agent = "MyBot/1.0 (+https://example.com/bot)"
    source = index(tmp_path, [url])
    flarecli.pack(source, tmp_path / "a", **OPTIONS)
    with pytest.raises(ReachError, match=r"\(X-Robots-Tag: mybot: noai\)"):
        flarecli.pack(source, tmp_path / "b", user_agent=agent, **OPTIONS)
    sent = [headers["user-agent"] for _, headers in web.requests]
    assert sent == [f"flare/{__version__}", agent]


@pytest.mark.parametrize("text", ["a\r\nX-Evil: 1", "a\0", "a\x7f", "a\x85", "é", "", " "])
def test_a_user_agent_with_control_characters_is_refused(tmp_path, text):
    with pytest.raises(UsageError) as caught:
        flarecli.pack("index.parquet", tmp_path / "out", user_agent=text)
    message = f"--user-agent: expected printable ASCII characters, got {text!r}"
    assert caught.value.message == message
    assert caught.value.hint == (
        "Name your program and a contact, such as 'mybot/1.0 (+https://example.com/bot)'."
    )


class Gauge:
    """The number of simultaneous requests of each host, and its maximum."""

    def __init__(self):
        self.now, self.most, self.lock = Counter(), Counter(), threading.Lock()

    def serve(self, host, seconds=0.01):
        def page(handler, times):
            with self.lock:
                self.now[host] += 1
                self.most[host] = max(self.most[host], self.now[host])
            time.sleep(seconds)
            with self.lock:
                self.now[host] -= 1
            handler.answer(200, BODY)

        return page


def test_per_host_limits_the_parallel_downloads_from_each_host(web, tmp_path):
    gauge = Gauge()
    web.pages["/ip"], web.pages["/name"] = gauge.serve("ip"), gauge.serve("name")
    urls = [web.url("/ip"), web.url("/name", host="localhost")] * 40
    options = {**OPTIONS, "allow_host": f"localhost:{web.port}", "allow_private": True}
    packed = flarecli.pack(index(tmp_path, urls), tmp_path / "a", per_host=3, **options)
    assert (packed.rows, gauge.most) == (80, {"ip": 3, "name": 3})
    gauge.most.clear()
    flarecli.pack(index(tmp_path, urls), tmp_path / "b", **options)
    assert min(gauge.most.values()) > 3


def test_the_ports_of_a_host_share_its_limit(web, other_web, tmp_path):
    gauge = Gauge()
    web.pages["/a"] = other_web.pages["/a"] = gauge.serve("both")
    urls = [web.url("/a"), other_web.url("/a")] * 20
    packed = flarecli.pack(index(tmp_path, urls), tmp_path / "out", per_host=2, **OPTIONS)
    assert (packed.rows, gauge.most) == (40, {"both": 2})


def test_redirects_to_a_host_obey_its_limit(web, tmp_path):
    gauge = Gauge()
    web.pages["/target"] = gauge.serve("target")
    names = [f"127.0.0.1:{web.port}", f"localhost:{web.port}"]
    web.pages["/a"] = lambda handler, times: handler.answer(
        302, Location=f"http://127.0.0.1:{web.port}/target"
    )
    urls = [f"http://{name}/a?{i}" for i in range(30) for name in names]
    options = {"fetch": ["url:image"], "key": "id", "allow_private": True}
    packed = flarecli.pack(index(tmp_path, urls), tmp_path / "out", per_host=2, **options)
    assert (packed.rows, gauge.most) == (60, {"target": 2})


@pytest.mark.parametrize("value", [0, -1])
def test_per_host_is_at_least_1(tmp_path, value):
    with pytest.raises(UsageError) as caught:
        flarecli.pack("index.parquet", tmp_path / "out", per_host=value)
    assert caught.value.message == f"--per-host: expected at least 1, got {value}"
