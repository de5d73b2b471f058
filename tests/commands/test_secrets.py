"""Secrets in addresses are neither printed nor stored, for any name of the parameter."""

import json
from pathlib import Path

import pytest

import flarecli
from flarecli.__main__ import main
from flarecli.errors import UsageError
from flarecli.model import Settings
from flarecli.redact import redact, redact_text

TOKEN, ONE_ROW = "hunter2", Settings(shard_rows=1)
UNUSUAL = [
    f"?jwt={TOKEN}",
    f"?hdnea=exp=1~hmac={TOKEN}",
    f"?hdnts={TOKEN}",
    f"?{TOKEN}",
    f"?e=1&md5={TOKEN}",
    f"?verify=1-{TOKEN}",
    f"?t={TOKEN}&x=1",
    f"?st={TOKEN};e=1",
    f"?download&code={TOKEN}",
    f"?%6bwt={TOKEN}",
    f";jsessionid={TOKEN}",
    f"#access={TOKEN}",
]


@pytest.mark.parametrize("tail", UNUSUAL)
def test_an_address_is_shown_without_a_token_of_any_name(tail):
    assert redact(f"https://me:{TOKEN}@cdn.example/a.jpg{tail}") == "https://cdn.example/a.jpg"
    assert redact_text(f"from https://cdn.example/a.jpg{tail}, 3 rows") == (
        "from https://cdn.example/a.jpg, 3 rows"
    )


def test_tokens_of_unusual_names_are_neither_printed_nor_stored(web, tmp_path, capfd):
    web.file("/index.csv", b"")
    rows = [web.url(f"/gone{i}.jpg{tail}", f"me:{TOKEN}") for i, tail in enumerate(UNUSUAL)]
    web.file("/index.csv", "\n".join(["url", *rows]).encode())
    out = str(tmp_path / "out")
    pack = ["pack", web.url(f"/index.csv?jwt={TOKEN}"), out, "--fetch", "url:data", "--key", "url"]
    assert main([*pack, "--on-error", "skip", "-v", "--allow-empty"]) in (1, 4)
    output = "".join(capfd.readouterr())
    stored = {path.name: path.read_bytes() for path in Path(out).rglob("*") if path.is_file()}
    lines = [json.loads(line) for line in stored["failed.jsonl"].splitlines()]
    assert [line["key"] for line in lines] == [web.url(f"/gone{i}.jpg") for i in range(12)]
    assert TOKEN not in output
    assert not [name for name, data in stored.items() if TOKEN.encode() in data]


@pytest.mark.parametrize("target", ["files", "-"])
def test_keys_of_rows_that_unpack_skips_are_stored_without_secrets(
    tmp_path, in_tmp_path, capfdbinary, target
):
    keys = [
        f"https://me:{TOKEN}@cdn.example/a.jpg?X-Amz-Signature={TOKEN}",
        f"s3://b/../c?sig={TOKEN}",
    ]
    with flarecli.Writer("data", columns={"key": "str", "x": "bytes"}) as writer:
        for key in ("a", *keys):
            writer.write({"key": key, "x": b"1"})
    assert main(["unpack", "data", target, "--on-error", "skip"]) == 1
    out, err = capfdbinary.readouterr()
    stored = Path("files/failed.jsonl").read_bytes() if target == "files" else out
    assert b"https://cdn.example/a.jpg" in stored
    assert TOKEN.encode() not in stored + err


@pytest.mark.parametrize("command", ["cat", "inspect --shards", "verify", "verify --json"])
def test_tokens_in_a_playlist_are_not_printed(web, tmp_path, capfd, command):
    """The dataset has a missing and a damaged shard, both with signed addresses."""
    folder = tmp_path / "data"
    with flarecli.Writer(str(folder), columns={"n": "int"}, settings=ONE_ROW) as writer:
        for i in range(3):
            writer.write({"n": i})
    shards = sorted(path for path in folder.iterdir() if path.suffix == ".mds")
    for path in shards[:2]:
        web.file(f"/{path.name}", path.read_bytes()[: 30 if path == shards[1] else None])
    urls = [web.url(f"/{path.name}?jwt={TOKEN}") for path in shards]
    listed = tmp_path / "set.yaml"
    listed.write_text("data:\n  content:\n" + "".join(f"    - {url}\n" for url in urls))
    report = tmp_path / "report.json"
    more = ["--report", str(report)] if "verify" in command else []
    assert main([*command.split(), str(listed), "--allow-private", "--debug", "-v", *more])
    output = "".join(capfd.readouterr())
    assert TOKEN not in output and "shard.0000" in output
    assert not report.exists() or TOKEN not in report.read_text()


def test_a_playlist_stores_only_queries_that_the_user_typed(web, tmp_path):
    with flarecli.Writer(str(tmp_path / "data"), columns={"n": "int"}) as writer:
        writer.write({"n": 7})
    web.file("/a.mds", (tmp_path / "data" / "shard.00000.mds").read_bytes())
    url = web.url(f"/a.mds?jwt={TOKEN}")
    with pytest.raises(UsageError) as caught:
        flarecli.playlist(url, format="mds")
    assert str(caught.value) == (
        f"{web.url('/a.mds')}: the address has a query or path parameters that may be secret; "
        "a playlist would store them"
    )
    text = flarecli.playlist(url, format="mds", rebase=[(url, "https://cdn.example/a.mds?v=1")])
    assert "https://cdn.example/a.mds?v=1" in text and TOKEN not in text


def test_addresses_that_differ_only_in_their_query_are_different_files(web, tmp_path):
    with flarecli.Writer(str(tmp_path / "data"), columns={"n": "int"}, settings=ONE_ROW) as writer:
        writer.write({"n": 0})
        writer.write({"n": 1})
    shards = sorted((tmp_path / "data").glob("*.mds"))

    def serve(handler, times):
        number = int(handler.path.rpartition("=")[2])
        handler.answer(200, shards[number].read_bytes())

    web.pages["/get.mds"] = serve
    typed = [web.url("/get.mds?id=0"), web.url("/get.mds?id=1")]
    assert [row["n"] for row in flarecli.open(typed, format="mds")] == [0, 1]
    result = flarecli.verify(typed, format="mds")
    assert list(result) == [] and result.shards == 2
