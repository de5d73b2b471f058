"""Run each command on inputs below 1 MB that are designed to exhaust memory or time.

    python benchmarks/hostile.py [--only NAME,…] [--commands NAME,…] [--keep DIR] [--all]

Each command is a child process with limits of 6 GB of address space and 60 s of CPU. The peak
resident memory of its largest process (from GNU time), the CPU seconds of all its processes, the
exit code and the last line of stderr are printed. A run fails above 1 GB or 20 s, or with a
traceback, a signal, or an error that is reported as a bug; then the exit code is 1. `--all` prints
every run; the default is to print failed runs and the most expensive run of each input.
"""

import argparse
import bz2
import gzip
import io
import json
import os
import re
import resource
import shutil
import struct
import subprocess
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import measure
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import zstandard
from PIL import Image

MAX_INPUT, MAX_MEMORY, MAX_CPU_S = 1_000_000, 1_000_000_000, 20.0
ADDRESS_SPACE, CPU_LIMIT_S = 6 << 30, 60

TABLE_COMMANDS = {
    "inspect": "inspect {path}",
    "verify": "verify {path}",
    "jsonl": "cat {path}",
    "where": "cat --where 1=1 {path}",
    "pack": "pack {path} {out}",
    "pack-json": "pack -f json {path} {out}",
    "pack-tar": "pack -f webdataset --on-error skip {path} {out}",
    "pack-zstd": "pack --compress zstd {path} {out}",
    "pack-where": "pack --where 1=1 {path} {out}",
    "pack-shuffle": "pack --shuffle 1 {path} {out}",
    "pack-parts": "pack --part-rows 100000 {path} {out}",
    "resize": "pack --resize 64 --media-info --on-error skip {path} {out}",
    "dry-run": "pack --dry-run {path} {out}",
    "unpack": "unpack {path} {out}",
    "playlist": "playlist {path}",
}
COMMANDS = {
    "inspect": "inspect {path}",
    "stats": "inspect --stats {path}",
    "sample": "inspect --sample 5 {path}",
    "html": "inspect --html {out} {path}",
    "verify": "verify {path}",
    "decode": "verify --decode {path}",
    "part": "verify --part 1/2 {path}",
    "duplicates": "verify --duplicates {path}",
    "jsonl": "cat {path}",
    "base64": "cat --bytes base64 {path}",
    "csv": "cat --to csv {path}",
    "tsv": "cat --to tsv {path}",
    "table": "cat --to table {path}",
    "arrow": "cat --to arrow {path}",
    "parquet": "cat --to parquet {path}",
    "take": "cat --sample 5 {path}",
    "where": "cat --where 1=1 {path}",
    "pack": "pack {path} {out}",
    "pack-json": "pack -f json {path} {out}",
    "pack-tar": "pack -f webdataset --on-error skip {path} {out}",
    "pack-zstd": "pack --compress zstd {path} {out}",
    "pack-where": "pack --where 1=1 {path} {out}",
    "pack-shuffle": "pack --shuffle 1 {path} {out}",
    "resize": "pack --resize 64 --media-info --on-error skip {path} {out}",
    "unpack": "unpack {path} {out}",
    "playlist": "playlist {path}",
    "reindex": "playlist --reindex {copy}",
}

Build = Callable[[Path], Path]
INPUTS: dict[str, tuple[Build, dict[str, str]]] = {}


def made(build: Build) -> Build:
    """Register a builder of a dataset.

    It writes into an empty folder and returns the address for the commands.
    """
    INPUTS[build.__name__] = build, COMMANDS
    return build


def table(build: Build) -> Build:
    """Register a builder of an index. Fewer commands read an index."""
    INPUTS[build.__name__] = build, TABLE_COMMANDS
    return build


def zstd(data: bytes, level: int = 19) -> bytes:
    return zstandard.ZstdCompressor(level=level).compress(data)


def repeated(part: bytes, count: int, level: int = 3) -> bytes:
    """Compress `count` copies of `part` as one zstd frame with its size, without keeping them in
    memory.
    """
    packer = zstandard.ZstdCompressor(level=level).compressobj(size=len(part) * count)
    return b"".join(packer.compress(part) for _ in range(count)) + packer.flush()


# -- text tables


@table
def csv_columns(folder: Path) -> Path:
    """A header of 120,000 names."""
    path = folder / "x.csv"
    names = [f"{i:x}" for i in range(120_000)]
    path.write_text(",".join(names) + "\n" + "," * (len(names) - 1) + "\n")
    return path


@table
def csv_20000_columns(folder: Path) -> Path:
    path = folder / "x.csv"
    names = [f"c{i}" for i in range(20_000)]
    row = ",".join(["1"] * len(names))
    path.write_text("\n".join([",".join(names), *[row] * 15]) + "\n")
    return path


@table
def csv_10000_columns(folder: Path) -> Path:
    """The maximum number of columns, and as many rows as fit."""
    path = folder / "x.csv"
    names = [f"c{i}" for i in range(10_000)]
    row = ",".join(["1"] * len(names))
    path.write_text("\n".join([",".join(names), *[row] * 45]) + "\n")
    return path


@table
def tsv_columns(folder: Path) -> Path:
    path = folder / "x.tsv"
    names = [f"{i:x}" for i in range(100_000)]
    path.write_text("\t".join(names) + "\n" + "\t" * (len(names) - 1) + "\n")
    return path


@table
def csv_empty_rows(folder: Path) -> Path:
    path = folder / "x.csv"
    path.write_text("a,b\n" + ",\n" * 490_000)
    return path


@table
def csv_gz_rows(folder: Path) -> Path:
    """1 GB of rows in 1 MB of gzip."""
    path = folder / "x.csv.gz"
    data = b"a,b\n" + b"1,2\n" * 40_000_000
    path.write_bytes(gzip.compress(data, 9)[:])
    return path


@table
def csv_zst_rows(folder: Path) -> Path:
    path = folder / "x.csv.zst"
    path.write_bytes(zstd(b"a,b\n") + repeated(b"1,2\n" * 250_000, 1000))
    return path


@table
def csv_zst_value(folder: Path) -> Path:
    """One value of 60 MB, quoted."""
    path = folder / "x.csv.zst"
    path.write_bytes(zstd(b'a,b\n1,"') + repeated(b"x" * 1_000_000, 60) + zstd(b'"\n'))
    return path


@table
def jsonl_new_keys(folder: Path) -> Path:
    path = folder / "x.jsonl"
    path.write_text("".join(f'{{"k{i}": 1}}\n' for i in range(55_000)))
    return path


@table
def jsonl_new_nested_keys(folder: Path) -> Path:
    path = folder / "x.jsonl"
    path.write_text("".join(f'{{"a": {{"k{i}": 1}}}}\n' for i in range(40_000)))
    return path


@table
def jsonl_new_keys_in_lists(folder: Path) -> Path:
    path = folder / "x.jsonl"
    path.write_text("".join(f'{{"a": [{{"k{i}": [1]}}]}}\n' for i in range(35_000)))
    return path


@table
def jsonl_one_row_of_keys(folder: Path) -> Path:
    path = folder / "x.jsonl"
    path.write_text("{" + ",".join(f'"{i:x}":1' for i in range(100_000)) + "}\n")
    return path


@table
def jsonl_wide_then_narrow(folder: Path) -> Path:
    """A first row with 9,000 columns, and 100,000 rows without any."""
    path = folder / "x.jsonl"
    path.write_text(
        "{" + ",".join(f'"{i:x}":1' for i in range(9_900)) + "}\n" + '{"0":1}\n' * 100_000
    )
    return path


@table
def jsonl_nested_wide(folder: Path) -> Path:
    path = folder / "x.jsonl"
    path.write_text(
        '{"a":{'
        + ",".join(f'"{i:x}":1' for i in range(9_000))
        + "}}\n"
        + '{"a":{"0":1}}\n' * 60_000
    )
    return path


@table
def jsonl_long_integers(folder: Path) -> Path:
    path = folder / "x.jsonl"
    path.write_text('{"a": 1.5}\n{"a": ' + "9" * 900_000 + "}\n")
    return path


@table
def jsonl_many_exact(folder: Path) -> Path:
    path = folder / "x.jsonl"
    path.write_text('{"a": 1.5}\n' + '{"a": 9007199254740992}\n' * 38_000)
    return path


@table
def jsonl_late_error(folder: Path) -> Path:
    """Many rows; the last row is invalid."""
    path = folder / "x.jsonl"
    path.write_text('{"a":1}\n' * 110_000 + '{"a":"x"}\n')
    return path


@table
def jsonl_zst_empty_lists(folder: Path) -> Path:
    path = folder / "x.jsonl.zst"
    path.write_bytes(zstd(b'{"a": [[]') + repeated(b",[]" * 300_000, 60) + zstd(b"]}\n"))
    return path


@table
def json_array_new_keys(folder: Path) -> Path:
    path = folder / "x.json"
    path.write_text("[" + ",".join(f'{{"k{i}": 1}}' for i in range(55_000)) + "]")
    return path


@table
def json_array_of_commas(folder: Path) -> Path:
    path = folder / "x.json"
    path.write_text("[" + "{}," * 300_000 + "{}]")
    return path


@table
def list_of_names(folder: Path) -> Path:
    """A list of 300,000 tables that do not exist."""
    path = folder / "x.txt"
    path.write_text("".join(f"{i:x}.csv\n" for i in range(100_000)))
    return path


# -- parquet


def _parquet(path: Path, table: pa.Table, **options: object) -> Path:
    pq.write_table(table, path, **{"compression": "zstd", "compression_level": 19, **options})
    return path


@table
def parquet_value(folder: Path) -> Path:
    """One value of 1 GB of zeros."""
    value = pa.array([bytes(1_000_000_000)], pa.large_binary())
    return _parquet(
        folder / "x.parquet",
        pa.table({"a": value}),
        use_dictionary=False,
        write_statistics=False,
        compression_level=3,
    )


def _parquet_text(path: Path, text: str) -> Path:
    table = pa.table({"a": pa.array([text * 250_000_000], pa.large_string())})
    return _parquet(path, table, use_dictionary=False, write_statistics=False, compression_level=3)


@table
def parquet_text(folder: Path) -> Path:
    """One text of 250 MB."""
    return _parquet_text(folder / "x.parquet", "a")


@table
def parquet_escaped_text(folder: Path) -> Path:
    """One text of 250 MB that becomes 1.5 GB of JSON."""
    return _parquet_text(folder / "x.parquet", "\x01")


@table
def parquet_gzip_value(folder: Path) -> Path:
    value = pa.array([bytes(900_000_000)], pa.large_binary())
    return _parquet(
        folder / "x.parquet",
        pa.table({"a": value}),
        use_dictionary=False,
        write_statistics=False,
        compression="gzip",
        compression_level=9,
    )


@table
def parquet_dictionary(folder: Path) -> Path:
    """One text of 100 bytes in a dictionary, 20 million times."""
    indices = pa.array(np.zeros(20_000_000, np.int8))
    column = pa.DictionaryArray.from_arrays(indices, pa.array(["x" * 100]))
    return _parquet(folder / "x.parquet", pa.table({"a": column}))


@table
def parquet_large_dictionary(folder: Path) -> Path:
    """One value of 900 kB in a dictionary, 100,000 times."""
    indices = pa.array(np.zeros(100_000, np.int8))
    value = np.random.default_rng(1).integers(0, 256, 900_000, np.uint8).tobytes()
    column = pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.binary()))
    return _parquet(
        folder / "x.parquet", pa.table({"a": column}), dictionary_pagesize_limit=1 << 24
    )


@table
def parquet_late_dictionary(folder: Path) -> Path:
    """4,096 empty values, then 900 kB in every row, so the first rows are no estimate of the
    others.
    """
    indices = np.ones(100_000, np.int8)
    indices[:4096] = 0
    value = np.random.default_rng(1).integers(0, 256, 900_000, np.uint8).tobytes()
    column = pa.DictionaryArray.from_arrays(pa.array(indices), pa.array([b"", value], pa.binary()))
    return _parquet(
        folder / "x.parquet", pa.table({"a": column}), dictionary_pagesize_limit=1 << 24
    )


@table
def parquet_prefixes(folder: Path) -> Path:
    """DELTA_BYTE_ARRAY: each value repeats 800 kB of the previous value."""
    value = np.random.default_rng(1).integers(0, 128, 800_000, np.uint8).tobytes()
    table = pa.table({"a": pa.array([value] * 1000, pa.binary())})
    return _parquet(
        folder / "x.parquet",
        table,
        use_dictionary=False,
        column_encoding={"a": "DELTA_BYTE_ARRAY"},
        write_statistics=False,
        data_page_size=1 << 30,
    )


@table
def parquet_nulls(folder: Path) -> Path:
    """400 million nulls."""
    path = folder / "x.parquet"
    schema = pa.schema([("a", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="zstd") as writer:
        part = pa.table({"a": pa.nulls(10_000_000, pa.int64())})
        for _ in range(40):
            writer.write_table(part)
    return path


@table
def parquet_zeros(folder: Path) -> Path:
    """400 million equal numbers."""
    path = folder / "x.parquet"
    schema = pa.schema([("a", pa.int64())])
    with pq.ParquetWriter(path, schema, compression="zstd", write_statistics=False) as writer:
        part = pa.table({"a": np.zeros(10_000_000, np.int64)})
        for _ in range(40):
            writer.write_table(part, row_group_size=10_000_000)
    return path


@table
def parquet_list(folder: Path) -> Path:
    """One row with a list of 100 million numbers."""
    values = pa.LargeListArray.from_arrays([0, 100_000_000], np.zeros(100_000_000, np.int8))
    return _parquet(folder / "x.parquet", pa.table({"a": values}))


@table
def parquet_columns(folder: Path) -> Path:
    names = [f"{i:x}" for i in range(3_000)]
    table = pa.table({name: pa.nulls(1, pa.int8()) for name in names})
    return _parquet(folder / "x.parquet", table, write_statistics=False, store_schema=False)


@table
def parquet_row_groups(folder: Path) -> Path:
    path = folder / "x.parquet"
    with pq.ParquetWriter(path, pa.schema([("a", pa.int8())])) as writer:
        for _ in range(5_000):
            writer.write_table(pa.table({"a": pa.array([1], pa.int8())}))
    return path


# -- Arrow


def _ipc(path: Path, batches: list[pa.RecordBatch], compression: str | None = "zstd") -> Path:
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with pa.ipc.new_file(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


@table
def arrow_value(folder: Path) -> Path:
    batch = pa.record_batch({"a": pa.array([bytes(1_000_000_000)], pa.large_binary())})
    return _ipc(folder / "x.arrow", [batch])


@table
def arrow_zeros(folder: Path) -> Path:
    batch = pa.record_batch({"a": np.zeros(125_000_000, np.int64)})
    return _ipc(folder / "x.feather", [batch])


@table
def arrow_nulls(folder: Path) -> Path:
    """A long column of type null, which takes no bytes."""
    return _ipc(folder / "x.arrow", [pa.record_batch({"a": pa.nulls(2_000_000_000)})] * 100, None)


@table
def arrow_dictionary(folder: Path) -> Path:
    """A dictionary with one value of 900 kB, which 60,000 rows refer to."""
    value = np.random.default_rng(1).integers(0, 256, 900_000, np.uint8).tobytes()
    column = pa.DictionaryArray.from_arrays(
        pa.array(np.zeros(60_000, np.int8)), pa.array([value], pa.binary())
    )
    return _ipc(folder / "x.arrow", [pa.record_batch({"a": column})])


@table
def arrow_views(folder: Path) -> Path:
    """Views of one buffer of 500 kB, 20,000 times."""
    views = np.zeros(
        20_000, np.dtype([("size", "<i4"), ("head", "S4"), ("buffer", "<i4"), ("at", "<i4")])
    )
    views["size"] = 500_000
    column = pa.Array.from_buffers(
        pa.binary_view(),
        len(views),
        [None, pa.py_buffer(views.tobytes()), pa.py_buffer(bytes(500_000))],
    )
    return _ipc(folder / "x.arrow", [pa.record_batch({"a": column})], None)


@table
def arrow_list_views(folder: Path) -> Path:
    """Views of one list of 500,000 numbers, 20,000 times."""
    column = pa.ListViewArray.from_arrays(
        pa.array(np.zeros(20_000, np.int32)),
        pa.array(np.full(20_000, 500_000, np.int32)),
        pa.array(np.zeros(500_000, np.int8)),
    )
    return _ipc(folder / "x.arrow", [pa.record_batch({"a": column})], None)


@table
def arrow_runs(folder: Path) -> Path:
    """One run of 60,000 rows with the same value of 800 kB."""
    value = np.random.default_rng(1).integers(0, 256, 800_000, np.uint8).tobytes()
    column = pa.RunEndEncodedArray.from_arrays(
        pa.array([60_000], pa.int32()), pa.array([value], pa.binary())
    )
    return _ipc(folder / "x.arrow", [pa.record_batch({"a": column})], None)


@table
def arrow_fixed_lists(folder: Path) -> Path:
    """Empty lists, which take no bytes."""
    column = pa.Array.from_buffers(
        pa.list_(pa.int8(), 0), 2_000_000_000, [None], children=[pa.array([], pa.int8())]
    )
    return _ipc(folder / "x.arrow", [pa.record_batch({"a": column})], None)


# -- MDS and its text shards


def _index(
    folder: Path, format: str, columns: list[tuple[str, str, int | None]], shards: list[dict]
) -> Path:
    names, kinds, sizes = ([one[i] for one in columns] for i in range(3))
    common = {
        "column_names": names,
        "column_encodings": kinds,
        "format": format,
        "hashes": [],
        "size_limit": None,
        "version": 2,
        **({"column_sizes": sizes} if format == "mds" else {"newline": "\n"}),
        **({"separator": ","} if format == "xsv" else {}),
    }
    text = json.dumps({"shards": [{**common, **one} for one in shards], "version": 2})
    (folder / "index.json").write_text(text)
    return folder


def _head(columns: list[tuple[str, str, int | None]], packed: str | None) -> bytes:
    names, kinds, sizes = ([one[i] for one in columns] for i in range(3))
    return json.dumps(
        {
            "column_encodings": kinds,
            "column_names": names,
            "column_sizes": sizes,
            "compression": packed,
            "format": "mds",
            "hashes": [],
            "size_limit": None,
            "version": 2,
        },
        sort_keys=True,
    ).encode()


def _packer(packed: str) -> object:
    if packed == "zstd":
        return zstandard.ZstdCompressor(level=3).compressobj()
    return zlib.compressobj(9, zlib.DEFLATED, 31) if packed == "gz" else bz2.BZ2Compressor(9)


def _mds(
    folder: Path,
    columns: list[tuple[str, str, int | None]],
    sizes: list[int] | np.ndarray,
    parts: Iterator[bytes] | list[bytes],
    packed: str | None = "zstd",
    copies: int = 1,
) -> Path:
    """Write a shard of samples of these sizes from parts of bytes, and `copies` of it under other
    names.
    """
    named = _head(columns, packed)
    first = 4 + 4 * (len(sizes) + 1) + len(named)
    offsets = first + np.concatenate([[0], np.cumsum(sizes, dtype=np.int64)])
    raw = int(offsets[-1])
    stream = (
        one
        for part in ([struct.pack("<I", len(sizes)), offsets.astype("<u4").tobytes(), named], parts)
        for one in part
    )
    if packed is None:
        data = b"".join(stream)
    else:
        packer = _packer(packed)
        data = b"".join([*(packer.compress(one) for one in stream), packer.flush()])
    shards = []
    for i in range(copies):
        name = f"shard.{i:05}.mds"
        (folder / (name + (f".{packed}" if packed else ""))).write_bytes(data)
        zipped = {"basename": f"{name}.{packed}", "bytes": len(data), "hashes": {}}
        shards.append(
            {
                "samples": len(sizes),
                "compression": packed,
                "raw_data": {"basename": name, "bytes": raw, "hashes": {}},
                "zip_data": zipped if packed else None,
            }
        )
    return _index(folder, "mds", columns, shards)


def _values(part: bytes, count: int) -> Iterator[bytes]:
    yield struct.pack("<I", len(part) * count)
    for _ in range(count):
        yield part


def _one_value(
    folder: Path, kind: str, part: bytes, count: int, packed: str = "zstd", copies: int = 1
) -> Path:
    return _mds(
        folder, [("a", kind, None)], [4 + len(part) * count], _values(part, count), packed, copies
    )


MB = 1_000_000


@made
def mds_declared_2gb(folder: Path) -> Path:
    return _one_value(folder, "bytes", bytes(MB), 2000)


@made
def mds_bytes_250mb(folder: Path) -> Path:
    """A size below which the compression ratio is not limited."""
    return _one_value(folder, "bytes", bytes(MB), 250)


@made
def mds_text_250mb(folder: Path) -> Path:
    """Text of control characters: each is six characters of JSON."""
    return _one_value(folder, "str", b"\x01" * MB, 250)


@made
def mds_json_lists(folder: Path) -> Path:
    part = b"[],"
    return _mds(
        folder,
        [("a", "json", None)],
        [4 + 3 + 3 * 40_000_000],
        [struct.pack("<I", 3 + 3 * 40_000_000), b"[", *[part * 1_000_000] * 40, b"1]"],
    )


@made
def mds_json_lists_16mb(folder: Path) -> Path:
    count = 5_000_000
    return _mds(
        folder,
        [("a", "json", None)],
        [4 + 3 + 3 * count],
        [struct.pack("<I", 3 + 3 * count), b"[", b"[]," * count, b"1]"],
    )


@made
def mds_json_rows(folder: Path) -> Path:
    """Many rows, each a list of lists."""
    value = b"[" + b"[]," * 30_000 + b"1]"
    row = struct.pack("<I", len(value)) + value
    return _mds(folder, [("a", "json", None)], [len(row)] * 2_000, [row] * 2_000)


@made
def mds_ndarray_250mb(folder: Path) -> Path:
    return _mds(folder, [("a", "ndarray:uint8:250000000", 250 * MB)], [250 * MB], [bytes(MB)] * 250)


@made
def mds_ndarray_of_nothing(folder: Path) -> Path:
    """Arrays of shape (2^31, 0): no bytes, but two billion empty lists."""
    return _mds(folder, [("a", "ndarray:uint8:2147483648,0", 0)], [0] * 4, [b""])


@made
def mds_samples(folder: Path) -> Path:
    """60,000 samples of one byte, in bzip2."""
    return _mds(folder, [("a", "uint8", 1)], np.ones(60_000, np.int64), [bytes(60_000)], "bz2")


@made
def mds_samples_of_nothing(folder: Path) -> Path:
    """240,000 empty samples, not compressed."""
    return _mds(folder, [], np.zeros(240_000, np.int64), [], None)


@made
def mds_uneven(folder: Path) -> Path:
    """One sample of 240 MB and 40,000 small ones."""
    small = struct.pack("<I", 1) + b"x"
    return _mds(
        folder,
        [("a", "str", None)],
        [5] * 40_000 + [4 + 240 * MB],
        [small * 40_000, *_values(b"x" * MB, 240)],
    )


@made
def mds_many_shards(folder: Path) -> Path:
    """Shards of 4 kB that decompress to 120 MB."""
    return _one_value(folder, "bytes", bytes(MB), 120, copies=50)


@made
def mds_gz_ratio(folder: Path) -> Path:
    return _one_value(folder, "bytes", bytes(MB), 900, "gz")


@made
def mds_bz2_ratio(folder: Path) -> Path:
    return _one_value(folder, "bytes", bytes(MB), 2000, "bz2")


@made
def mds_columns(folder: Path) -> Path:
    columns = [(f"{i:x}", "uint8", 1) for i in range(15_000)]
    return _mds(folder, columns, [len(columns)], [bytes(len(columns))], None)


@made
def mds_9000_columns(folder: Path) -> Path:
    """Columns and rows."""
    columns = [(f"{i:x}", "uint8", 1) for i in range(9_000)]
    return _mds(folder, columns, [len(columns)] * 3_000, [bytes(len(columns))] * 3_000)


@made
def mds_index_of_shards(folder: Path) -> Path:
    shards = [
        {
            "samples": 1,
            "compression": None,
            "raw_data": {"basename": f"{i:x}", "bytes": 9, "hashes": {}},
            "zip_data": None,
        }
        for i in range(3_000)
    ]
    return _index(folder, "mds", [("a", "int", 8)], shards)


@made
def mds_decimals(folder: Path) -> Path:
    value = b"1E+999999999"
    row = struct.pack("<I", len(value)) + value
    return _mds(folder, [("a", "str_decimal", None)], [len(row)] * 100, [row] * 100, None)


@made
def mds_long_integer(folder: Path) -> Path:
    return _one_value(folder, "str_int", b"9" * 900_000, 1)


@made
def json_shard(folder: Path) -> Path:
    """A JSON shard with one line of 120 MB."""
    line = b'{"a": "' + b"x" * 120 * MB + b'"}\n'
    return _lines(folder, "json", [("a", "str", None)], line, 1)


@made
def json_shard_nested(folder: Path) -> Path:
    line = b'{"a": "x", "b": [' + b"[]," * 40_000_000 + b"1]}\n"
    return _lines(folder, "json", [("a", "str", None)], line, 1)


@made
def csv_shard_value(folder: Path) -> Path:
    return _lines(folder, "csv", [("a", "str", None)], b"x" * 120 * MB + b"\n", 1)


def _lines(
    folder: Path, format: str, columns: list[tuple[str, str, int | None]], body: bytes, rows: int
) -> Path:
    """Write a shard of lines of equal length and its table of offsets, both compressed with
    zstd.
    """
    head = b"a\n" if format == "csv" else b""
    step = len(body) // rows
    starts = len(head) + step * np.arange(rows + 1, dtype=np.int64)
    meta = (
        struct.pack("<I", rows)
        + starts.astype("<u4").tobytes()
        + json.dumps(
            {
                "column_encodings": [c[1] for c in columns],
                "column_names": [c[0] for c in columns],
                "compression": None,
                "format": format,
                "hashes": [],
                "newline": "\n",
                "size_limit": None,
                **({"separator": ","} if format == "csv" else {}),
            },
            sort_keys=True,
        ).encode()
    )
    name = f"shard.00000.{format}"
    files = {}
    for kind, file, data in (("data", name, head + body), ("meta", f"{name}.meta", meta)):
        packed = zstandard.ZstdCompressor(level=3).compress(data)
        (folder / f"{file}.zstd").write_bytes(packed)
        files[f"raw_{kind}"] = {"basename": file, "bytes": len(data), "hashes": {}}
        files[f"zip_{kind}"] = {"basename": f"{file}.zstd", "bytes": len(packed), "hashes": {}}
    return _index(folder, format, columns, [{"samples": rows, "compression": "zstd", **files}])


# -- tar


def _tar(members: list[tuple[str, bytes]]) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return out.getvalue()


@made
def tar_gz_members(folder: Path) -> Path:
    """240,000 empty members, one for each sample, all with the same header."""
    path = folder / "x.tar.zst"
    part = b"".join(_tar([(f"{i:04}.txt", b"")])[:512] for i in range(1000))
    path.write_bytes(repeated(part, 240) + zstd(bytes(1024)))
    return path


@made
def tar_zst_value(folder: Path) -> Path:
    path = folder / "x.tar.zst"
    info = tarfile.TarInfo("a.bin")
    info.size = 2_000 * MB
    path.write_bytes(zstd(info.tobuf()) + repeated(bytes(MB), 2000) + zstd(bytes(1024)))
    return path


@made
def tar_gz_value(folder: Path) -> Path:
    path = folder / "x.tar.gz"
    info = tarfile.TarInfo("a.bin")
    info.size = 120 * MB
    path.write_bytes(gzip.compress(info.tobuf() + bytes(120 * MB + 1024), 9))
    return path


@made
def tar_extensions(folder: Path) -> Path:
    """A tar with 250 MB of headers, in which every member is another column."""
    path = folder / "x.tar.gz"
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as packed:
        for i in range(24_000):
            packed.write(tarfile.TarInfo(f"k{i}.e{i:x}").tobuf(tarfile.USTAR_FORMAT))
        packed.write(bytes(1024))
    path.write_bytes(out.getvalue())
    return path


@made
def tar_extensions_of_one(folder: Path) -> Path:
    path = folder / "x.tar.gz"
    out = io.BytesIO()
    with gzip.GzipFile(fileobj=out, mode="wb", compresslevel=9) as packed:
        for i in range(24_000):
            packed.write(tarfile.TarInfo(f"k.e{i:x}").tobuf(tarfile.USTAR_FORMAT))
        packed.write(bytes(1024))
    path.write_bytes(out.getvalue())
    return path


@made
def tar_json_value(folder: Path) -> Path:
    path = folder / "x.tar.gz"
    data = b"[" + b"[]," * 30_000_000 + b"1]"
    path.write_bytes(gzip.compress(_tar([("a.json", data)]), 9))
    return path


@made
def tar_sparse(folder: Path) -> Path:
    """A sparse member of 512 bytes that expands to 1 TB."""
    path = folder / "x.tar"
    head = {
        "GNU.sparse.major": "1",
        "GNU.sparse.minor": "0",
        "GNU.sparse.name": "a.bin",
        "GNU.sparse.realsize": str(10**12),
    }
    info = tarfile.TarInfo("a.bin")
    info.pax_headers = head
    body = b"1\n0\n512\n".ljust(512, b"\0") + b"x" * 512
    info.size = len(body)
    path.write_bytes(info.tobuf(tarfile.PAX_FORMAT) + body + bytes(1024))
    return path


@made
def tar_npy(folder: Path) -> Path:
    """npy headers that declare large arrays without data, and an npz that is a zip bomb."""
    path = folder / "x.tar"
    head = "{'descr': '|u1', 'fortran_order': False, 'shape': (4294967296, 0), }"
    nothing = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head.encode() + b"\n"
    head = "{'descr': '|u1', 'fortran_order': False, 'shape': (1099511627776,), }"
    large = b"\x93NUMPY\x01\x00" + struct.pack("<H", len(head) + 1) + head.encode() + b"\n"
    npz = io.BytesIO()
    np.savez_compressed(npz, a=np.zeros(500 * MB, np.uint8))
    path.write_bytes(_tar([("a.npy", nothing), ("b.npy", large), ("c.npz", npz.getvalue())]))
    return path


# -- FFRecord and Granular


@made
def ffrecord_empty_records(folder: Path) -> Path:
    """80,000 empty records."""
    path = folder / "x.ffr"
    count = 80_000
    body = (
        struct.pack("<q", count)
        + bytes(4 * count)
        + np.full(count, 12 + 12 * count, "<i8").tobytes()
    )
    path.write_bytes(struct.pack("<I", zlib.crc32(body)) + body)
    return path


def _bag(folder: Path, name: str, records: list[bytes]) -> None:
    (folder / f"{name}.bag").write_bytes(b"".join(records))
    ends = np.cumsum([len(one) for one in records], dtype="<u8")
    (folder / f"{name}.idx").write_bytes(ends.tobytes())


@made
def granular_columns(folder: Path) -> Path:
    spec = {f"a{i:x}": "bytes" for i in range(40_000)}
    (folder / "spec.json").write_text(json.dumps(spec))
    return folder


@made
def granular_empty_records(folder: Path) -> Path:
    (folder / "spec.json").write_text(json.dumps({"a": "bytes", "b": "int"}))
    for name in "ab":
        (folder / f"{name}.bag").write_bytes(b"")
        (folder / f"{name}.idx").write_bytes(bytes(8 * 60_000))
    return folder


@made
def granular_array_of_nothing(folder: Path) -> Path:
    import msgpack

    (folder / "spec.json").write_text(json.dumps({"a": "array", "b": "tree", "c": "msgpack"}))
    many = msgpack.packb(["|u1", [2_000_000_000, 0], b""])
    _bag(folder, "a", [many] * 3)
    _bag(folder, "b", [msgpack.packb(["_", "|u1", [2_000_000_000, 0], b""])] * 3)
    _bag(folder, "c", [b"\xdc\xff\xff" + b"\x90" * 65535] * 3)
    return folder


@made
def granular_shared_lists(folder: Path) -> Path:
    """20,000 rows, each the same list of 50,000 records."""
    count = 50_000
    record = b"\x91\x92\x00\xcd" + struct.pack(">H", count)
    for name, records in (("refs", [record] * 20_000), ("a", [b"x"] * count)):
        ends = np.cumsum([len(one) for one in records], dtype="<u8")
        (folder / f"{name}.bag").write_bytes(b"".join(records) + ends.tobytes())
    (folder / "spec.json").write_text(json.dumps({"a": "bytes[]"}))
    return folder


@made
def granular_shared_records(folder: Path) -> Path:
    """40,000 rows, each the same record of 300 kB."""
    for name, records in (("refs", [b"\x91\x00"] * 40_000), ("a", [bytes(300_000)])):
        ends = np.cumsum([len(one) for one in records], dtype="<u8")
        (folder / f"{name}.bag").write_bytes(b"".join(records) + ends.tobytes())
    (folder / "spec.json").write_text(json.dumps({"a": "bytes"}))
    return folder


# -- playlists and indexes


@made
def playlist_chunks(folder: Path) -> Path:
    path = folder / "playlist.yaml"
    chunks = "".join(f"      - {{uri: {i:x}.mds, size: 1, rows: 1}}\n" for i in range(23_900))
    path.write_text("version: 1\nstreams:\n  a:\n    format: mds\n    chunks:\n" + chunks)
    return path


@made
def playlist_brackets(folder: Path) -> Path:
    path = folder / "playlist.yaml"
    path.write_text("version: 1\nstreams: [" + "[]," * 300_000 + "]\n")
    return path


@made
def index_of_numbers(folder: Path) -> Path:
    (folder / "index.json").write_text('{"version": 2, "shards": [' + "1," * 450_000 + "1]}")
    return folder


# -- media


def _png(width: int, height: int, depth: int = 8, color: int = 2) -> bytes:
    """A PNG of zeros whose rows are deflated at the best level."""
    channels = {0: 1, 2: 3, 3: 1, 6: 4}[color]
    row = bytes(1 + (width * channels * depth + 7) // 8)
    packer = zlib.compressobj(9)
    data = b"".join([*(packer.compress(row) for _ in range(height)), packer.flush()])

    def chunk(kind: bytes, body: bytes) -> bytes:
        return (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )

    head = chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, depth, color, 0, 0, 0))
    palette = chunk(b"PLTE", bytes(6)) if color == 3 else b""
    return b"\x89PNG\r\n\x1a\n" + head + palette + chunk(b"IDAT", data) + chunk(b"IEND", b"")


def _media(folder: Path, *values: bytes, kind: str = "bytes") -> Path:
    rows = [struct.pack("<I", len(one)) + one for one in values]
    return _mds(folder, [("image", kind, None)], [len(one) for one in rows], rows, None)


@made
def png_231mb(folder: Path) -> Path:
    """77 megapixels of one bit: 9.9 kB, 231 MB of RGB."""
    return _media(folder, _png(8775, 8775, 1, 3), kind="png")


@made
def png_411mb(folder: Path) -> Path:
    return _media(folder, _png(11704, 11704, 1, 3), kind="png")


@made
def png_rgb(folder: Path) -> Path:
    """130 megapixels of RGBA."""
    return _media(folder, _png(11400, 11400, 8, 6), kind="png")


@made
def png_gigapixels(folder: Path) -> Path:
    return _media(folder, _png(60_000, 60_000, 1, 0)[:900_000], kind="png")


@made
def gif_frames(folder: Path) -> Path:
    """30,000 frames of 2,000 x 2,000 pixels."""
    out = io.BytesIO()
    Image.new("P", (2000, 2000)).save(out, "GIF")
    one = out.getvalue()
    start = one.index(b"\x2c\0\0\0\0")
    frame = one[start:-1]
    count = min(30_000, 900_000 // len(frame))
    return _media(folder, one[:start] + frame * count + b";")


@made
def gif_small_frames(folder: Path) -> Path:
    """A screen of 10,000 x 10,000 pixels, and 40,000 frames of one."""
    out = io.BytesIO()
    Image.new("P", (1, 1)).save(out, "GIF")
    one = out.getvalue()
    start = one.index(b"\x2c\0\0\0\0")
    frame = one[start:-1]
    head = bytearray(one[:start])
    head[6:10] = struct.pack("<HH", 10_000, 10_000)
    return _media(folder, bytes(head) + frame * (900_000 // len(frame)) + b";")


@made
def tiff_pages(folder: Path) -> Path:
    """Pages that share one strip; the last page links to the first page."""
    pages = []
    strip = zlib.compress(bytes(4000 * 4000), 9)
    count = 5000
    first = 8 + len(strip)
    for i in range(count):
        tags = [
            (256, 3, 1, 4000),
            (257, 3, 1, 4000),
            (258, 3, 1, 8),
            (259, 3, 1, 8),
            (262, 3, 1, 1),
            (273, 4, 1, 8),
            (277, 3, 1, 1),
            (278, 3, 1, 4000),
            (279, 4, 1, len(strip)),
        ]
        size = 2 + 12 * len(tags) + 4
        after = first + size * (i + 1) if i + 1 < count else 0
        pages.append(
            struct.pack("<H", len(tags))
            + b"".join(struct.pack("<HHII", *one) for one in tags)
            + struct.pack("<I", after)
        )
    return _media(folder, b"II*\0" + struct.pack("<I", first) + strip + b"".join(pages))


@made
def webp_frames(folder: Path) -> Path:
    out = io.BytesIO()
    pictures = [Image.new("RGB", (4000, 4000), (i % 2, 0, 0)) for i in range(8)]
    pictures[0].save(
        out, "WEBP", save_all=True, append_images=pictures[1:], lossless=True, minimize_size=False
    )
    data = out.getvalue()
    frames, at = [], 12
    head = b""
    while at < len(data):
        kind, size = data[at : at + 4], struct.unpack("<I", data[at + 4 : at + 8])[0]
        part = data[at : at + 8 + size + size % 2]
        if kind == b"ANMF":
            frames.append(part)
        else:
            head += part
        at += len(part)
    body = b"WEBP" + head + b"".join(frames) * (800_000 // max(1, len(b"".join(frames))))
    return _media(folder, b"RIFF" + struct.pack("<I", len(body)) + body)


@made
def jpeg_scans(folder: Path) -> Path:
    """A progressive JPEG of 11,000 x 11,000 pixels with many copies of its last scan."""
    out = io.BytesIO()
    Image.new("L", (11_000, 11_000)).save(out, "JPEG", progressive=True, quality=1)
    data = out.getvalue()
    last = data.rindex(b"\xff\xda")
    scan = data[last:-2]
    return _media(
        folder, data[:-2] + scan * ((900_000 - len(data)) // len(scan)) + b"\xff\xd9", kind="jpeg"
    )


@made
def many_pictures(folder: Path) -> Path:
    """60 images of 77 megapixels."""
    return _media(folder, *[_png(8775, 8775, 1, 3)] * 60, kind="png")


@made
def svg_entities(folder: Path) -> Path:
    levels = "".join(f'<!ENTITY a{i + 1} "{f"&a{i};" * 10}">' for i in range(9))
    text = f'<?xml version="1.0"?><!DOCTYPE svg [<!ENTITY a0 "lol">{levels}]><svg xmlns="http://www.w3.org/2000/svg" width="100000" height="100000"><text>&a9;</text></svg>'
    return _media(folder, text.encode())


@made
def pil_modes(folder: Path) -> Path:
    """The `pil` encoding of MDS: a declared size without pixels."""
    rows = [
        struct.pack("<III", 100_000, 100_000, 3) + b"RGB",
        struct.pack("<III", 2**31, 0, 1) + b"L",
    ]
    return _media(folder, *rows, kind="pil")


class Measured(NamedTuple):
    """Result of one command on one input: peak bytes, CPU seconds, exit code, last line of
    stderr.
    """

    input: str
    command: str
    size: int
    memory: int
    cpu: float
    code: int
    said: str

    @property
    def fault(self) -> str:
        if self.memory > MAX_MEMORY:
            return "MEMORY"
        if self.cpu > MAX_CPU_S:
            return "TIME"
        if self.code < 0 or self.code > 128:
            return "SIGNAL"
        return "BUG" if "bug in flare" in self.said or "Traceback" in self.said else ""


def _limited() -> None:
    resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
    resource.setrlimit(resource.RLIMIT_CPU, (CPU_LIMIT_S, CPU_LIMIT_S + 5))


def run(name: str, command: str, line: str, path: Path, size: int) -> Measured:
    """Run one command as a child and measure it."""
    with tempfile.TemporaryDirectory() as scratch, open(os.devnull, "wb") as nowhere:
        out, copy = Path(scratch, "out.html" if command == "html" else "out"), Path(scratch, "copy")
        if "{copy}" in line and path.is_dir():
            shutil.copytree(path, copy, ignore=shutil.ignore_patterns("index.json"))
        words = [word.format(path=path, out=out, copy=copy) for word in line.split()]
        report, err = Path(scratch, "time"), Path(scratch, "err")
        argv = [measure.GNU_TIME, "-f", "%M %U %S", "-o", str(report), measure.FLARE, *words]
        with err.open("wb") as said:
            done = subprocess.run(
                argv,
                cwd="/",  # a playlist on stdout can only name files below the working directory
                stdin=subprocess.DEVNULL,
                stdout=nowhere,
                stderr=said,
                preexec_fn=_limited,
            )
        text = err.read_text("utf-8", "replace").strip()
        numbers = re.search(r"(\d+) ([\d.]+) ([\d.]+)\s*$", report.read_text())
        kilobytes, user, system = numbers.groups() if numbers else (0, 0, 0)
        lines = [
            line for line in text.splitlines() if line.startswith(("error:", "fail", "Traceback"))
        ]
        last = (lines or text.splitlines() or [""])[-1]
        if "bug in flare" in text:
            last += " (reported as a bug in flare)"
        code = done.returncode
        return Measured(
            name, command, size, int(kilobytes) * 1024, float(user) + float(system), code, last
        )


def _size(path: Path) -> int:
    files = [path] if path.is_file() else [one for one in path.rglob("*") if one.is_file()]
    return sum(one.stat().st_size for one in files)


def _shown(one: Measured) -> str:
    said = one.said.replace(str(tempfile.gettempdir()), "…")[:110]
    return f"{one.fault or 'ok':6} {one.input:24} {one.command:10} {one.size / 1000:6.0f} kB {one.memory / 1e6:6.0f} MB {one.cpu:6.1f} s  exit {one.code:3}  {said}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="")
    parser.add_argument("--commands", default="")
    parser.add_argument("--keep", type=Path)
    parser.add_argument("--all", action="store_true")
    given = parser.parse_args()
    wanted = given.only.split(",") if given.only else list(INPUTS)
    commands = given.commands.split(",") if given.commands else []
    base = given.keep or Path(tempfile.mkdtemp())
    failed = count = 0
    try:
        for name in (one for one in INPUTS if any(re.fullmatch(want, one) for want in wanted)):
            folder = base / name
            if not (folder / "PATH").exists():
                folder.mkdir(parents=True, exist_ok=True)
                child = (
                    os.fork()
                )  # built in another process, so a command does not inherit the memory
                if child == 0:
                    (folder / "PATH").write_text(str(INPUTS[name][0](folder).relative_to(folder)))
                    os._exit(0)
                if os.waitpid(child, 0)[1]:
                    sys.exit(f"{name} cannot be made")
            path = folder / (folder / "PATH").read_text()
            (folder / "PATH").rename(base / f"{name}.path")
            size = _size(path)
            if size > MAX_INPUT:
                print(f"{name} has {size} bytes, more than {MAX_INPUT}")
                failed += 1
            measured = []
            for command, line in INPUTS[name][1].items():
                if commands and command not in commands:
                    continue
                one = run(name, command, line, path, size)
                count, failed = count + 1, failed + bool(one.fault)
                measured.append(one)
                if given.all or one.fault:
                    print(_shown(one), flush=True)
            (base / f"{name}.path").rename(folder / "PATH")
            if not given.all and measured:
                worst = max(measured, key=lambda one: (one.memory / MAX_MEMORY, one.cpu))
                print("worst " + _shown(worst), flush=True)
    finally:
        if given.keep is None:
            shutil.rmtree(base)
    print(f"{count} runs, {failed} failed")
    return int(failed > 0)


if __name__ == "__main__":
    sys.exit(main())
