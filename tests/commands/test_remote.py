"""Over HTTP: lists and headers are requested, rows as ranges, and complete shards only by verify
and unpack.
"""

import functools
import http.server
import json
import threading

import pytest

from flarecli import commands
from flarecli.errors import MissingError, ReachError, UsageError
from flarecli.write import Writer
from tests.servers import stop_server


class Handler(http.server.BaseHTTPRequestHandler):
    """Serve a folder with ranges, and record each request: (path, first byte, bytes)."""

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def __init__(self, folder, requests, *args):
        self.folder, self.asked = folder, requests
        super().__init__(*args)

    def do_GET(self):
        path = self.folder / self.path.partition("?")[0].lstrip("/")
        if not path.is_file():
            self.send_response(404)
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        data, expected = path.read_bytes(), self.headers.get("Range")
        start, stop = 0, len(data)
        if expected:
            first, _, last = expected.removeprefix("bytes=").partition("-")
            start, stop = int(first), min(int(last) + 1 if last else len(data), len(data))
        self.asked.append((path.name, start, stop - start))
        self.send_response(206 if expected else 200)
        self.send_header("Content-Length", str(stop - start))
        if expected:
            self.send_header("Content-Range", f"bytes {start}-{stop - 1}/{len(data)}")
        self.end_headers()
        self.wfile.write(data[start:stop])

    def log_message(self, *_):
        pass


@pytest.fixture
def served(out):
    """Return the address of a dataset, and the list of requests."""
    requests: list[tuple[str, int, int]] = []
    server = http.server.ThreadingHTTPServer(
        ("127.0.0.1", 0), functools.partial(Handler, out, requests)
    )
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield f"http://127.0.0.1:{server.server_port}", out, requests
    stop_server(server)
    thread.join()
    server.server_close()


def test_inspect_requests_only_the_list(served):
    url, _, requests = served
    result = commands.inspect(f"{url}/playlist.yaml")
    assert (result.rows, result.shards, result.address) == (35, 4, f"{url}/playlist.yaml")
    assert {name for name, *_ in requests} == {"playlist.yaml"}


def test_the_addresses_of_remote_shards_are_complete_and_contain_no_secret(served):
    url, _, requests = served
    (stream,) = commands.inspect(f"{url}/playlist.yaml?token=secret", urls=True).streams
    assert stream.urls == tuple(f"{url}/shard.0000{i}.mds" for i in range(4))
    assert {name for name, *_ in requests} == {"playlist.yaml"}


def test_inspect_of_a_bare_shard_requests_its_header(served):
    url, _, requests = served
    assert commands.inspect(f"{url}/shard.00001.mds").rows == 10
    assert {name for name, *_ in requests} == {"shard.00001.mds"}


def test_reading_one_row_requests_a_header_and_a_range(served, samples):
    url, _, requests = served
    (batch,) = commands.cat(f"{url}/playlist.yaml", rows="23")
    assert batch.to_pylist() == [samples[23]]
    shards = [one for one in requests if one[0].endswith(".mds")]
    assert {name for name, *_ in shards} == {"shard.00002.mds"} and len(shards) <= 2


def test_rows_in_any_order_are_correct(served, samples):
    url, _, _ = served
    rows = [row for batch in commands.cat(url, rows="33,1,12,-1") for row in batch.to_pylist()]
    assert rows == [samples[33], samples[1], samples[12], samples[34]]
    assert [row for batch in commands.cat(url) for row in batch.to_pylist()] == samples


def test_verify_reads_every_byte_and_reports_damage(served):
    url, out, _ = served
    done = commands.verify(url)
    assert (list(done), done.rows, done.files, done.bytes) == (
        [],
        35,
        7,
        sum(path.stat().st_size for path in out.iterdir()),
    )
    path = out / "shard.00003.mds"
    data = bytearray(path.read_bytes())
    data[-1] ^= 1
    path.write_bytes(data)
    (out / "shard.00001.mds").unlink()
    result = [(one.where, one.kind) for one in commands.verify(url)]
    assert result == [(f"{url}/shard.00001.mds", "missing"), (f"{url}/shard.00003.mds", "checksum")]


def test_quick_verify_reads_no_payload(served):
    url, out, requests = served
    done = commands.verify(f"{url}/index.json", quick=True)
    assert (list(done), done.rows) == ([], 35)
    assert sum(size for name, _, size in requests if name.endswith(".mds")) < sum(
        path.stat().st_size for path in out.glob("*.mds")
    )


def test_a_missing_address_is_an_error(served):
    url, _, _ = served
    with pytest.raises(MissingError):
        commands.verify(f"{url}/none/")


def test_unpack_writes_the_remote_files(served, tmp_path, samples):
    url, _, _ = served
    done = commands.unpack(url, str(tmp_path / "f"))
    assert done.files == 35
    assert all(
        (tmp_path / "f" / f"{row['id']}.jpg").read_bytes() == row["image"] for row in samples
    )


def test_unpack_of_remote_rows_refuses_a_duplicate_name_before_its_batch(tmp_path, served):
    from flarecli.errors import FormatError
    from flarecli.write import Writer

    url, out, _ = served
    with Writer(str(out / "d"), columns={"key": "str", "x": "bytes"}) as writer:
        for key in ("a", "A"):
            writer.write({"key": key, "x": b"1"})
    with pytest.raises(FormatError, match=r"file name 'A.\*' is also the name of selected row 0"):
        commands.unpack(f"{url}/d/", str(tmp_path / "f"))
    assert not (tmp_path / "f").exists()


def test_a_playlist_of_addresses_stores_no_secrets(served, tmp_path):
    url, _, _ = served
    text = commands.playlist(f"{url}/shard.0000{{0..3}}.mds", out=str(tmp_path / "set.yaml"))
    assert f'- "{url}/shard.00003.mds"' in text
    host = url.partition("://")[2].partition("/")[0]
    assert list(commands.verify(str(tmp_path / "set.yaml"), allow_host=host)) == []
    assert "user" not in commands.playlist(
        f"{url.replace('//', '//user:word@')}/shard.00000.mds", open=False
    )
    with pytest.raises(UsageError) as caught:
        commands.playlist(f"{url}/shard.00000.mds?X-Amz-Signature=abc", format="mds", open=False)
    assert (
        str(caught.value)
        == f"{url}/shard.00000.mds: the address has a query or path parameters that may be secret; a playlist would store them"
    )
    relative = commands.playlist(f"{url}/shard.00000.mds", open=False, base=url)
    assert "    - shard.00000.mds\n" in relative


def test_links_are_downloaded_and_failures_listed(served, tmp_path):
    url, out, _ = served
    (out / "pictures").mkdir()
    for i in range(20):
        (out / "pictures" / str(i)).write_bytes(b"\x89PNG\r\n\x1a\n" + bytes([i]) * 50)
    (out / "pictures" / "7").unlink()
    (tmp_path / "i.csv").write_text(
        "id,url\n" + "".join(f"k{i},{url}/pictures/{i}\n" for i in range(20))
    )
    done = commands.unpack(
        str(tmp_path / "i.csv"),
        str(tmp_path / "f"),
        fetch=["url:picture"],
        key="id",
        on_error="skip",
        allow_host="127.0.0.0/8",
    )
    assert (done.files, done.failed) == (19, 1)
    assert (tmp_path / "f" / "k12.png").read_bytes().endswith(bytes([12]) * 50)
    (line,) = (tmp_path / "f" / "failed.jsonl").read_text().splitlines()
    assert json.loads(line)["key"] == "k7"


def test_a_value_above_the_limit_is_not_requested_from_a_companion_file(served):
    url, folder, requests = served
    with Writer(str(folder / "bags"), format="granular", columns={"data": "bytes"}) as writer:
        writer.write({"data": b"small"})
        writer.write({"data": bytes(100_000)})
    message = "column 'data': a value of 100000 bytes, larger than the limit of 1000 bytes"
    with pytest.raises(ReachError, match=message):
        list(commands.cat(f"{url}/bags/playlist.yaml", max_object=1000))
    read = [size for name, _, size in requests if name.endswith(".bag")]
    assert sum(read) == len(b"small")
