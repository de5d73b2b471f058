"""The pure parsers as fuzz targets: bytes in, a value or a FlareError out, and nothing else.

A target raises `Disagreement` where two code paths differ, or where a parser and a
library that reads the same bytes differ. Any exception that is not a FlareError is a finding.
Files of a shard that have companions are packed into one input: see `split`.
"""

from __future__ import annotations

import contextlib
import io
import json
import pickle
import struct
import tarfile
import tempfile
import zlib
from collections import OrderedDict
from collections.abc import Callable, Iterable
from functools import cache
from pathlib import Path
from typing import NamedTuple

import msgpack
import numpy as np
import pyarrow as pa

import flarecli
from flarecli import compress, encodings, formats, playlists
from flarecli.commands.verifying.state import VerifyState
from flarecli.encodings import msgpack as packed
from flarecli.encodings import values as stored_values
from flarecli.errors import FlareError, FormatError
from flarecli.formats import byte_ranges
from flarecli.formats.ffrecord import packed_folder
from flarecli.formats.lines import json as json_module
from flarecli.formats.mds import index as mds_index
from flarecli.formats.tables.registry import open_part
from flarecli.formats.tfrecord import masked_crc
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.formats.webdataset import tar
from flarecli.ingest import index as ingest_index
from flarecli.media import Resize, check_header, probe, resize_image, sniff
from flarecli.model import Chunk, File
from flarecli.playlists import faults
from flarecli.storage import Location, locate
from flarecli.storage.http import response as answers
from flarecli.storage.memory import MemoryStore
from flarecli.write.journal import Journal

FIXTURES = Path(__file__).parents[2] / "fixtures"
MAX_ROWS = 200  # rows of an input that are read in each way


class Disagreement(AssertionError):
    """Two ways to read the same bytes returned different results."""


class Target(NamedTuple):
    """One parser.

    call   reads the input; may raise FlareError
    seeds  valid inputs, small
    """

    call: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


def join(*parts: bytes) -> bytes:
    """Pack several files into one input: the sizes of all but the last as uint32, then the
    bytes.
    """
    return struct.pack(f"<{len(parts) - 1}I", *map(len, parts[:-1])) + b"".join(parts)


def split(data: bytes, count: int) -> list[bytes]:
    """Unpack the result of `join`; sizes that exceed the data are reduced."""
    head = 4 * (count - 1)
    sizes = struct.unpack(f"<{count - 1}I", data[:head].ljust(head, b"\0"))
    rest, parts = data[head:], []
    for size in sizes:
        parts.append(rest[:size])
        rest = rest[size:]
    return [*parts, rest]


def read_shard(format: str, files: dict[str, bytes], name: str, **columns: object) -> None:
    """Open, verify and read a shard: a shard without findings must be readable in every way."""
    at = Location(MemoryStore(files), name)
    module = formats.find(format)
    chunk = Chunk(at, None, (File(name),), format)
    shard = module.open_shard(chunk, **columns)
    findings = list(module.verify_shard(shard, True))
    rows = list(range(min(len(shard), MAX_ROWS)))
    try:
        batch = module.read_batch(shard, 0, len(rows))
        stored = module.read_rows(shard, rows)
    except FlareError as error:
        if not findings:
            raise Disagreement(f"verify found nothing, reading raised: {error}") from error
        raise
    if batch.num_rows != len(rows) or len(stored) != len(rows):
        raise Disagreement(f"{len(rows)} rows: {batch.num_rows} and {len(stored)} were read")
    binary = [
        field.name for field in batch.schema if pa.types.is_binary(field.type) and not findings
    ]
    for column in binary:
        for i, value in enumerate(batch.column(column).to_pylist()):
            if stored[i].get(column) != value and isinstance(value, bytes):
                raise Disagreement(f"row {i} of {column!r}: the batch and the row differ")


def small(folder: str, pattern: str, most: int = 40_000, count: int = 12) -> Iterable[bytes]:
    found = sorted((FIXTURES / folder).rglob(pattern))
    chosen = [
        path
        for path in found
        if path.is_file() and path.stat().st_size <= most and "bad" not in path.parts
    ]
    return [path.read_bytes() for path in chosen[:count]]


# --- formats ---------------------------------------------------------------------------------


def ffrecord(data: bytes) -> None:
    """Read the input with its own header checksum, and again with a valid header checksum."""
    with contextlib.suppress(FlareError):
        read_shard("ffrecord", {"a.ffr": data}, "a.ffr")
    if len(data) >= 12:
        rows = int.from_bytes(data[4:12], "little")
        table = data[4 : 12 + 12 * rows] if rows < len(data) else data[4:]
        data = zlib.crc32(table).to_bytes(4, "little") + data[4:]
    read_shard("ffrecord", {"a.ffr": data}, "a.ffr")


def mds(data: bytes) -> None:
    read_shard("mds", {"shard.00000.mds": data}, "shard.00000.mds")


def mds_list(data: bytes) -> None:
    stream = mds_index.open_dataset(Location(MemoryStore({"index.json": data})))
    for i in range(min(len(stream), MAX_ROWS)):
        stream.chunk(i)


def lines(format: str) -> Target:
    def call(data: bytes) -> None:
        meta, body = split(data, 2)
        name = f"shard.00000.{format}"
        read_shard(format, {f"{name}.meta": meta, name: body}, name)

    def seeds() -> Iterable[bytes]:
        for meta in sorted((FIXTURES / "mds").rglob(f"*.{format}.meta")):
            body = meta.with_suffix("")
            if body.is_file() and meta.stat().st_size + body.stat().st_size < 20_000:
                yield join(meta.read_bytes(), body.read_bytes())

    return Target(call, seeds)


def json_line(data: bytes) -> None:
    """Read one line of a JSON shard; the json module must accept what the parser accepts."""
    try:
        found = json_module.parsed(data)
    except ValueError:  # its callers add the place
        return
    expected = json.loads(data.decode(), object_pairs_hook=dict)
    if set(found) != set(expected):
        raise Disagreement(f"names are {sorted(found)}, json reads {sorted(expected)}")


def granular_bag(data: bytes) -> None:
    idx, bag = split(data, 2)
    files = {"a.bag": bag} | ({"a.idx": idx} if idx else {})
    read_shard("granular", files, "a.bag")


def granular_folder(data: bytes) -> None:
    spec, idx, bag = split(data, 3)
    read_shard("granular", {"spec.json": spec, "a.idx": idx, "a.bag": bag}, "spec.json")


def granular_refs(data: bytes) -> None:
    spec, refs, bag = split(data, 3)
    files = {"spec.json": spec, "refs.bag": refs, "a.bag": bag}
    read_shard("granular-refs", files, "spec.json")


def webdataset(data: bytes) -> None:
    read_shard("webdataset", {"a.tar": data}, "a.tar")


def tfrecord(data: bytes) -> None:
    read_shard("tfrecord", {"a.tfrecord": data}, "a.tfrecord")


def tfrecord_example(data: bytes) -> None:
    """Read the input as the data of one record whose checksums are right."""
    length = len(data).to_bytes(8, "little")
    head, tail = (masked_crc(part).to_bytes(4, "little") for part in (length, data))
    columns = tuple(
        encodings.column(name, encoding)
        for name, encoding in (
            ("curve", "float32[]"),
            ("grid", "int[]"),
            ("image", "bytes"),
            ("label", "int"),
            ("score", "float32"),
            ("tags", "bytes[]"),
        )
    )
    files = {"a.tfrecord": b"".join((length, head, data, tail))}
    read_shard("tfrecord", files, "a.tfrecord", columns=columns)


def example_seeds() -> Iterable[bytes]:
    (file,) = small("tfrecord", "*.tfrecord")
    for line in (FIXTURES / "tfrecord" / "peer.tfrecord.idx").read_text().splitlines():
        start, size = map(int, line.split())
        yield file[start + 12 : start + size - 4]


def tar_members(data: bytes) -> None:
    """List a tar; tarfile must list the same sizes.

    tarfile stops at a header with a field that it cannot read and flare does not need.
    """
    location = Location(MemoryStore({"a.tar": data}), "a.tar")
    found = list(tar.members(byte_ranges.MappedSource(memoryview(data)), location))
    for _, start, size in found:
        if start + size > len(data):
            raise Disagreement("a member reaches past the end")
    try:
        with tarfile.open(fileobj=io.BytesIO(data), mode="r:") as other:
            regular = [one for one in other if one.isreg()]
    except (tarfile.TarError, ValueError, UnicodeError, KeyError, OverflowError):
        return
    sizes = [size for _, _, size in found][: len(regular)]
    if sizes != [one.size for one in regular] and not any(one.issparse() for one in regular):
        raise Disagreement("sizes of members differ from those of tarfile")


@cache
def written(format: str, **columns: str) -> dict[str, bytes]:
    """Files of a dataset of two rows that flare wrote, by name."""
    with tempfile.TemporaryDirectory() as folder:
        with flarecli.Writer(f"{folder}/out", columns=columns, format=format) as writer:
            for i in range(2):
                writer.write(dict.fromkeys(columns, f"value {i}"))
        paths = [path for path in Path(folder).rglob("*") if path.is_file()]
        return {path.name: path.read_bytes() for path in paths}


def webdataset_table(data: bytes) -> None:
    """Parse an index beside a tar of the size that the seed has."""
    webdataset_index.parse(data, len(written("webdataset", txt="str")["00000.tar"]))


def webdataset_list(data: bytes) -> None:
    webdataset_index.read_shards(
        Location(MemoryStore({"shardindex.json": data}), "shardindex.json")
    )


def names_of_packed_folder(data: bytes) -> None:
    tree = packed_folder.parse(data, 10)
    list(packed_folder.files(tree)), list(packed_folder.folders(tree))


# --- lists and tables ------------------------------------------------------------------------


def playlist(data: bytes) -> None:
    at = Location(MemoryStore({"playlist.yaml": data}), "playlist.yaml")
    try:
        found = playlists.parse(data, at)
    except FormatError as error:
        if not faults(data, at):
            raise Disagreement(f"reading raised, no fault is listed: {error}") from error
        raise
    if faults(data, at):
        raise Disagreement("it was read, and faults are listed")
    for stream in found:
        for i in range(min(len(stream), MAX_ROWS)):
            stream.chunk(i)


def table(name: str) -> Callable[[bytes], None]:
    def call(data: bytes) -> None:
        part = open_part(Location(MemoryStore({name: data}), name), ())
        rows = sum(batch.num_rows for batch in part.batches(None))
        if part.rows is not None and part.rows != rows:
            raise Disagreement(f"{part.rows} rows are declared, {rows} were read")

    return call


def address_list(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "split_file_paths.txt")
        path.write_bytes(data)
        for name in ("a.csv", "b.csv"):
            Path(folder, name).write_text("url\nx\n")
        index = ingest_index.open_index(str(path))
        for batch in index.batches():
            del batch


# --- media -----------------------------------------------------------------------------------


def media(data: bytes) -> None:
    found = probe(data)
    if found.kind != sniff(data[:512]):
        raise Disagreement(f"probe returned {found.kind}, sniff another kind")
    if check_header(data) != found:
        raise Disagreement("probe and check_header differ")


def picture(data: bytes) -> None:
    kind = sniff(data[:65536])
    if kind in ("jpeg", "png", "webp"):
        resize_image(data, Resize(32, max_pixels=1 << 20))


# --- values ----------------------------------------------------------------------------------


def msgpack_value(data: bytes) -> None:
    """Decode MessagePack; msgpack reads what is accepted as the same value."""
    value = packed.unpack(data)
    try:
        other = msgpack.unpackb(
            data, raw=False, strict_map_key=False, use_list=True, unicode_errors="surrogateescape"
        )
    except ValueError as error:
        if "code must be" in str(error):  # extensions with reserved codes
            return
        raise Disagreement(f"msgpack refuses it: {error}") from error
    if repr(value) != repr(other) and not isinstance(other, msgpack.ExtType):
        text = repr(value)
        if "ExtType" not in repr(other) and "array" not in text and "nan" not in text:
            raise Disagreement(f"{value!r:.200} is not {other!r:.200}")


ENCODINGS = [
    "bytes",
    "str",
    "int",
    "uint8",
    "int16",
    "uint32",
    "int64",
    "float16",
    "float32",
    "float64",
    "bool",
    "json",
    "ndarray",
    "ndarray:int32",
    "ndarray:uint8:2,3",
    "msgpack",
    "tree",
    "array",
    "utf8",
    "str_int",
    "str_float",
    "str_decimal",
    "jpeg",
    "png",
    "pil",
]


def values(data: bytes) -> None:
    """Decode a value; the first byte selects the encoding."""
    if not data:
        return
    name = ENCODINGS[data[0] % len(ENCODINGS)]
    try:
        one = encodings.lookup(name)
    except FlareError:
        return
    stored_values.decode(one, data[1:])


def compressed(data: bytes) -> None:
    if data:
        suffix = compress.SUFFIXES[data[0] % len(compress.SUFFIXES)]
        out = compress.decompress(suffix, [data[1:]], None, "a")
        if len(out) > (1 << 30):
            raise Disagreement("more than a gigabyte came out")


# --- records of flare's own ------------------------------------------------------------------


HEAD = {"flare": "pack", "source": "x", "format": "mds"}


def journal(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, ".flare")
        path.mkdir()
        (path / "journal").write_bytes(data)
        Path(folder, "shard.00000.mds").write_bytes(b"x" * 10)
        one = Journal(locate(folder), HEAD)
        one.close()


def state(data: bytes) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "state")
        path.write_bytes(data)
        one = VerifyState(str(path), {})
        one.close(False)


def answer(data: bytes) -> None:
    head, body = split(data, 2)
    found = answers.Response(head.splitlines(keepends=True))
    found.headers, found.etag, found.modified, found.detects_truncation  # noqa: B018
    found.retry_after(0.0)
    answers.status_fault(found, body)


def fixtures(folder: str, pattern: str) -> Callable[[], Iterable[bytes]]:
    return lambda: small(folder, pattern)


def bag_seeds() -> Iterable[bytes]:
    for bag in sorted((FIXTURES / "granular").rglob("*.bag"))[:40]:
        if bag.stat().st_size < 8000:
            idx = bag.with_suffix(".idx")
            yield join(idx.read_bytes() if idx.is_file() else b"", bag.read_bytes())


def folder_seeds() -> Iterable[bytes]:
    """Datasets of one column, renamed to `a`."""
    for spec in sorted((FIXTURES / "granular").rglob("spec.json")):
        columns = json.loads(spec.read_bytes())
        for name, kind in columns.items():
            bag, idx = spec.parent / f"{name}.bag", spec.parent / f"{name}.idx"
            if bag.is_file() and idx.is_file() and bag.stat().st_size < 8000:
                text = json.dumps({"a": kind}).encode()
                yield join(text, idx.read_bytes(), bag.read_bytes())


def refs_seeds() -> Iterable[bytes]:
    files = written("granular-refs", a="str")
    yield join(files["spec.json"], files["refs.bag"], files["a.bag"])


def tables(*lines: bytes) -> Callable[[], Iterable[bytes]]:
    return lambda: lines


def parquet_seeds() -> Iterable[bytes]:
    import pyarrow.parquet as pq

    for options in ({}, {"compression": "zstd"}, {"use_dictionary": False}):
        out = io.BytesIO()
        found = pa.table({"url": ["a", "b"], "n": [1, None], "l": [[1], []]})
        pq.write_table(found, out, write_page_checksum=True, **options)
        yield out.getvalue()


def arrow_seeds() -> Iterable[bytes]:
    found = pa.table({"url": ["a", "b"], "n": [1, None]})
    for new in (pa.ipc.new_stream, pa.ipc.new_file):
        out = io.BytesIO()
        with new(out, found.schema) as writer:
            writer.write_table(found)
        yield out.getvalue()


def picture_seeds() -> Iterable[bytes]:
    from PIL import Image

    for kind in ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF"):
        out = io.BytesIO()
        Image.new("RGB", (9, 7), (1, 2, 3)).save(out, kind)
        yield out.getvalue()


def media_seeds() -> Iterable[bytes]:
    yield from picture_seeds()
    yield from small("media", "whole.*")
    yield from small("media", "*.ogg")
    yield from small("media", "*.mp*")


def compressed_seeds() -> Iterable[bytes]:
    for i, suffix in enumerate(compress.SUFFIXES):
        parts = compress.compressed(suffix, [b"hello " * 30], 180)
        yield bytes([i]) + b"".join(map(bytes, parts))


def value_seeds() -> Iterable[bytes]:
    given = {"str": "é", "int": 3, "json": {"a": [1, None]}, "msgpack": {"a": 1}, "float64": 0.5}
    for name, value in given.items():
        yield bytes([ENCODINGS.index(name)]) + stored_values.encode(encodings.lookup(name), value)
    array = stored_values.encode(
        encodings.lookup("ndarray"), np.arange(6, dtype=np.int16).reshape(2, 3)
    )
    yield bytes([ENCODINGS.index("ndarray")]) + array


def journal_seeds() -> Iterable[bytes]:
    shard = {
        "shard": "shard.00000.mds",
        "rows": 2,
        "next": 2,
        "failed": {"rows": 0, "bytes": 0},
        "files": [
            {
                "name": "shard.00000.mds",
                "size": 10,
                "hashes": {},
                "raw_size": None,
                "raw_hashes": {},
            }
        ],
    }
    entries = [HEAD, {"columns": [["a", "str"]]}, shard]
    yield b"".join(json.dumps(entry).encode() + b"\n" for entry in entries)


def state_seeds() -> Iterable[bytes]:
    head = json.dumps({"flare": "verify", "format": 2, "options": {}}, sort_keys=True)
    line = json.dumps(
        {
            "key": "k",
            "rows": 1,
            "size": 2,
            "findings": [
                {
                    "address": "a",
                    "kind": "b",
                    "message": "c",
                    "hint": "",
                    "item": "",
                    "row": 1,
                    "column": None,
                    "start": 1,
                    "stop": 2,
                    "line": None,
                    "character": None,
                }
            ],
            "unprotected": ["x"],
        }
    )
    yield f"{head}\n{line}\n".encode()


PLAYLIST = b"""data:
  headers:
    format: mds
    columns: {a: str, b: int}
    rows: [2, 3]
    files:
      index.json: {size: 3, xxh3_128: 0123456789abcdef0123456789abcdef}
  content:
    - shard.00000.mds
    - 'shard 1.mds'
"""
ANSWER = (
    b"HTTP/1.1 206 Partial Content\r\nContent-Length: 3\r\nContent-Range: bytes 0-2/9\r\n"
    b'ETag: "abc"\r\nLast-Modified: Wed, 21 Oct 2015 07:28:00 GMT\r\nRetry-After: 3\r\n\r\n'
)
SLOW_DOWN = b"<?xml version='1.0'?><Error><Code>SlowDown</Code><Message>m</Message></Error>"
TARGETS = {
    "address_list": Target(address_list, tables(b"a.csv\nb.csv\n", b"*.csv\n\n{a,b}.csv\n")),
    "answer": Target(answer, tables(join(ANSWER, SLOW_DOWN))),
    "arrow": Target(table("a.arrow"), arrow_seeds),
    "compressed": Target(compressed, compressed_seeds),
    "csv": Target(
        table("a.csv"), tables(b'a,b\n1,"x\n"\n2,y\n', "é;b\r\n1;2\r\n".encode("utf-8-sig"))
    ),
    "csv_shard": lines("csv"),
    "ffrecord": Target(ffrecord, fixtures("ffrecord", "*.ffr")),
    "granular_bag": Target(granular_bag, bag_seeds),
    "granular_folder": Target(granular_folder, folder_seeds),
    "granular_refs": Target(granular_refs, refs_seeds),
    "journal": Target(journal, journal_seeds),
    "json": Target(table("a.json"), tables(b'[{"a": 1, "b": [1.5]}, {"a": 2}]', b'{"a": 1}')),
    "json_line": Target(json_line, tables(b'{"a": 1, "b": "\\u00e9\\n", "c": [null, {"x": 1e3}]}')),
    "json_lines": Target(table("a.jsonl"), tables(b'{"a": 1}\n{"a": 2, "b": {"c": "x"}}\n')),
    "json_shard": lines("json"),
    "mds": Target(mds, fixtures("mds", "*.mds")),
    "mds_list": Target(mds_list, fixtures("mds", "index.json")),
    "media": Target(media, media_seeds),
    "msgpack_value": Target(
        msgpack_value, lambda: [packed.pack({"a": [1, -5, 2.5, None, True, b"x", "é"]})]
    ),
    "parquet": Target(table("a.parquet"), parquet_seeds),
    "names_of_packed_folder": Target(
        names_of_packed_folder,
        lambda: [packed_folder.MAGIC + pickle.dumps(OrderedDict(a=OrderedDict(b=1), c=0), 4)],
    ),
    "picture": Target(picture, picture_seeds),
    "playlist": Target(playlist, tables(PLAYLIST)),
    "state": Target(state, state_seeds),
    "tar_members": Target(tar_members, fixtures("webdataset", "*.tar")),
    "tfrecord": Target(tfrecord, fixtures("tfrecord", "*.tfrecord")),
    "tfrecord_example": Target(tfrecord_example, example_seeds),
    "tsv": Target(table("a.tsv"), tables(b"a\tb\n1\tx\n")),
    "tsv_shard": lines("tsv"),
    "values": Target(values, value_seeds),
    "webdataset": Target(webdataset, fixtures("webdataset", "*.tar")),
    "webdataset_list": Target(
        webdataset_list,
        tables(
            b'{"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [{"url": "0.tar", "nsamples": 3, "filesize": 9}]}'
        ),
    ),
    "webdataset_table": Target(
        webdataset_table, lambda: [written("webdataset", txt="str")["00000.idx.json"]]
    ),
}
