"""Compressed text: read unchanged, with errors for damage and decompression bombs."""

import bz2
import gzip
import re
import zlib

import pytest
import zstandard

from flarecli import expansion
from flarecli.formats.tables import decompress
from flarecli.ingest import open_index
from tests.ingest.samples import error_of, rows_of, write_files

LINES = b"n,t\n" + b"".join(b"%d,row %d\n" % (n, n) for n in range(5000))


PACKED = {
    "x.csv.gz": gzip.compress(LINES),
    "x.csv.zst": zstandard.compress(LINES),
    "x.csv.bz2": bz2.compress(LINES),
    "two.csv.bz2": bz2.compress(LINES[:1001]) + bz2.compress(LINES[1001:]),
    "two.csv.gz": gzip.compress(LINES[:1001]) + gzip.compress(LINES[1001:]),
    "two.csv.zst": zstandard.compress(LINES[:1001]) + zstandard.compress(LINES[1001:]),
}


@pytest.mark.parametrize("name", PACKED)
def test_compressed_text_is_read_unchanged(tmp_path, monkeypatch, name):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1000)
    write_files(tmp_path, {name: PACKED[name]})
    assert rows_of(open_index(str(tmp_path / name))) == [
        {"n": n, "t": f"row {n}"} for n in range(5000)
    ]


@pytest.mark.parametrize(
    ("name", "data", "message"),
    [
        ("x.csv.gz", PACKED["x.csv.gz"][:-9], "x.csv.gz: the gz file is truncated"),
        ("x.csv.zst", PACKED["x.csv.zst"][:-9], "x.csv.zst: the zstd file is truncated"),
        ("x.csv.gz", LINES, "x.csv.gz: not valid gz: not a gzipped file (b'n,')"),
        ("x.csv.zst", LINES, "x.csv.zst: not valid zstd: unknown frame descriptor"),
        (
            "x.csv.gz",
            PACKED["x.csv.gz"] + b"junk after the member",
            "x.csv.gz: not valid gz: not a gzipped file (b'ju')",
        ),
        (
            "x.csv.gz",
            PACKED["x.csv.gz"][:-8] + b"\0" * 8,
            f"x.csv.gz: not valid gz: crc check failed 0 != {zlib.crc32(LINES)}",
        ),
        (
            "x.csv.bz2",
            PACKED["x.csv.bz2"] + b"junk",
            "x.csv.bz2: not valid bz2: invalid data stream",
        ),
        (
            "x.csv.bz2",
            bz2.compress(LINES[:1001]) + b"!" + bz2.compress(LINES[1001:])[1:],
            "x.csv.bz2: not valid bz2: invalid data stream",
        ),
        ("x.json.gz", gzip.compress(b""), "x.json.gz: file is empty"),
    ],
)
def test_a_damaged_compressed_file_is_reported(tmp_path, name, data, message):
    write_files(tmp_path, {name: data})
    assert error_of(tmp_path, lambda: rows_of(open_index(str(tmp_path / name))))[0] == message


@pytest.mark.parametrize("name", ["x.csv.gz", "x.csv.zst"])
def test_a_decompression_bomb_stops_at_the_limit(tmp_path, monkeypatch, name):
    monkeypatch.setattr(expansion, "FREE_BYTES", 1 << 16)
    monkeypatch.setattr(expansion, "MAX_RATIO", 20)
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1 << 16)
    bomb = b"n,t\n" + b"1,2\n" * (1 << 20)
    stored = gzip.compress(bomb) if name.endswith("gz") else zstandard.compress(bomb)
    write_files(tmp_path, {name: stored})
    message, hint = error_of(tmp_path, lambda: rows_of(open_index(str(tmp_path / name))))
    found = re.fullmatch(rf"{name}: decompresses to more than (\d+) bytes", message)
    assert found and int(found[1]) <= max(1 << 16, 20 * len(stored))
    assert hint == "The file may be a decompression bomb; do not trust it."


def test_compressed_remote_text_is_read_as_a_stream(web):
    found = open_index(web.file("/x.csv.gz", PACKED["x.csv.gz"]))
    assert rows_of(found, ["n"]) == [{"n": n} for n in range(5000)]
