"""verify of remote datasets: number of requests of a quick check."""

import json
import re
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import parse_qs, urlsplit
from xml.sax.saxutils import escape

import pytest

from flarecli import commands
from tests.servers import stop_server

SHARDS, PAGE = 2500, 1000


class _Bucket(BaseHTTPRequestHandler):
    """A server with the parts of S3 that reading needs: objects with ranges, and lists of a
    thousand.
    """

    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True

    def log_message(self, *args):
        pass

    def do_GET(self):
        parts = urlsplit(self.path)
        key, query = parts.path.removeprefix("/bucket").lstrip("/"), parse_qs(parts.query)
        if "list-type" in query:
            self.server.asked.append("LIST")
            return self.listed(query)
        self.server.asked.append(f"{self.command} {key}")
        data = self.server.objects.get(key)
        if data is None:
            return self.answer(404, b"<Error><Code>NoSuchKey</Code></Error>")
        match = re.fullmatch(r"bytes=(\d*)-(\d*)", self.headers.get("Range", ""))
        if not match:
            return self.answer(200, data)
        start = int(match[1]) if match[1] else max(0, len(data) - int(match[2]))
        stop = min(len(data), int(match[2]) + 1) if match[1] and match[2] else len(data)
        return self.answer(
            206, data[start:stop], Content_Range=f"bytes {start}-{stop - 1}/{len(data)}"
        )

    do_HEAD = do_GET

    def listed(self, query):
        prefix, after = query.get("prefix", [""])[0], query.get("continuation-token", [""])[0]
        names = sorted(
            name for name in self.server.objects if name.startswith(prefix) and name > after
        )
        page = names[:PAGE]
        result = "".join(
            f"<Contents><Key>{escape(name)}</Key><LastModified>2020-01-01T00:00:00.000Z</LastModified><ETag>&quot;a&quot;</ETag>"
            f"<Size>{len(self.server.objects[name])}</Size><StorageClass>STANDARD</StorageClass></Contents>"
            for name in page
        )
        more = (
            f"<NextContinuationToken>{page[-1]}</NextContinuationToken>"
            if len(names) > PAGE
            else ""
        )
        text = f"<Name>bucket</Name><Prefix>{prefix}</Prefix><KeyCount>{len(page)}</KeyCount><IsTruncated>{str(bool(more)).lower()}</IsTruncated>"
        self.answer(200, f"<ListBucketResult>{text}{more}{result}</ListBucketResult>".encode())

    def answer(self, status, body, **headers):
        self.send_response(status)
        named = {
            "Content-Length": len(body),
            "ETag": '"a"',
            "Last-Modified": "Wed, 01 Jan 2020 00:00:00 GMT",
        }
        for name, value in {
            **named,
            **{name.replace("_", "-"): value for name, value in headers.items()},
        }.items():
            self.send_header(name, str(value))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)


@pytest.fixture
def bucket(monkeypatch):
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Bucket)
    server.daemon_threads, server.objects, server.asked = True, {}, []
    thread = Thread(target=server.serve_forever, daemon=True)
    thread.start()
    given = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{server.server_port}",
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "x",
    }
    for name, value in {
        **given,
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REGION": "us-east-1",
    }.items():
        monkeypatch.setenv(name, value)
    yield server
    stop_server(server)
    thread.join()
    server.server_close()


def fill(bucket, sizes):
    names = [f"shard.{i:05}.mds" for i in range(SHARDS)]
    bucket.objects |= {f"set/{name}": bytes(8 + i % 5) for i, name in enumerate(names)}
    headers = {
        "format": "mds",
        "columns": {"a": "int"},
        **({"bytes": [8 + i % 5 for i in range(SHARDS)]} if sizes else {}),
    }
    bucket.objects["set/playlist.yaml"] = json.dumps(
        {"data": {"headers": headers, "content": names}}
    ).encode()


@pytest.mark.parametrize("sizes", [True, False])
def test_a_quick_check_of_a_bucket_requests_no_shard(bucket, sizes):
    fill(bucket, sizes)
    done = commands.verify("s3://bucket/set/playlist.yaml", quick=True)
    assert (list(done), done.shards) == ([], SHARDS)
    assert [one for one in bucket.asked if ".mds" in one] == []
    assert bucket.asked.count("LIST") == (SHARDS + 1 + PAGE - 1) // PAGE
    assert len(bucket.asked) < 12


def test_missing_and_truncated_objects_are_reported_without_requests(bucket):
    fill(bucket, True)
    del bucket.objects["set/shard.00007.mds"]
    bucket.objects["set/shard.02400.mds"] = b"cut"
    result = list(commands.verify("s3://bucket/set/playlist.yaml", quick=True))
    assert [(one.where, one.kind, one.message) for one in result] == [
        (
            "s3://bucket/set/shard.00007.mds",
            "missing",
            "no such file, s3://bucket/set/playlist.yaml lists it",
        ),
        (
            "s3://bucket/set/shard.02400.mds",
            "size",
            "file is 3 bytes, s3://bucket/set/playlist.yaml lists 8",
        ),
    ]
    assert [one for one in bucket.asked if ".mds" in one] == []


def test_a_quick_check_over_http_sends_one_request_per_shard(web):
    names = [f"shard.{i:05}.mds" for i in range(30)]
    web.file(
        "/set/playlist.yaml",
        json.dumps(
            {"data": {"headers": {"format": "mds", "bytes": [8] * 30}, "content": names}}
        ).encode(),
    )
    for name in names:
        web.file(f"/set/{name}", bytes(8))
    done = commands.verify(web.url("/set/playlist.yaml"), quick=True)
    assert (list(done), done.shards) == ([], 30)
    assert {web.asked[f"/set/{name}"] for name in names} == {1}
