"""Measure the memory and CPU time of packing tables of 20,000,000 rows, and of reading the result.

    python benchmarks/table_memory.py [--rows 20000000] [--only NAME,…] [--folder FOLDER]

The columns are int64, float64 and a short text. Each kind of table is packed as MDS without
options; some kinds also with --shuffle, --key, --where and --limit, and some kinds are piped to
standard input. The rows of Python objects are batches of a `pyarrow.RecordBatchReader` and dicts of
a generator. A source is removed after its last use. Peaks are read from /proc/PID/status every
5 ms: `resident` includes the mapped pages of libraries and of shards, `anonymous` is the memory
that no file backs. The first line is the baseline: a process that only imports the libraries.

The exit code is 1 if a command fails, or if the anonymous memory is above its limit. The limit does
not depend on the number of rows, except for --key, which keeps a part of its index in memory.
"""

import argparse
import gzip
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from fnmatch import fnmatch
from pathlib import Path
from types import MappingProxyType
from typing import IO, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
from measure import FLARE

LIMIT_BYTES, KEY_BYTES = 200_000_000, 5  # limit; addition per row for --key
CHUNK_ROWS = 1_000_000
BATCH_ROWS = 1 << 16  # rows per batch of an Arrow file or stream, as in Feather files of pyarrow
INTERVAL_S = 0.005
SCHEMA = pa.schema([("id", pa.int64()), ("score", pa.float64()), ("name", pa.string())])
LIBRARIES = (
    "import duckdb, numpy, pyarrow, pyarrow.compute, pyarrow.csv, pyarrow.json, pyarrow.parquet"
)
OPTIONS = {
    "shuffle": ["--shuffle", "7"],
    "key": ["--key", "id"],
    "where": ["--where", "id % 2 = 0"],
    "limit": ["--limit", "{half}"],
}
WHERE_OPTIONS = {"where": OPTIONS["where"]}
LIST_OPTIONS = {"shuffle": ["--shuffle", "7"], "where": ["--where", "name like '%7'"]}
PYTHON_OPTIONS = {"shuffle": ["--shuffle", "7"], "key": ["--key", "id"]}
LISTED_FILES = 1000  # number of different files in a list of addresses


class Peak(NamedTuple):
    """Exit code; peak of resident and of anonymous memory in bytes; CPU and wall-clock seconds."""

    code: int
    resident: int
    anonymous: int
    cpu: float
    wall: float


def measured(argv: list[str], stdin: Path | None = None) -> Peak:
    """Run a program to its end, without its output."""
    began = time.perf_counter()
    with open(stdin or os.devnull, "rb") as source:
        child = subprocess.Popen(argv, stdin=source, stdout=subprocess.DEVNULL)
    resident = anonymous = 0
    while True:
        pid, status, used = os.wait4(child.pid, os.WNOHANG)
        if pid:
            break
        fields = dict(
            line.split(":", 1)
            for line in Path(f"/proc/{child.pid}/status").read_text().splitlines()
        )
        if "VmHWM" in fields:
            resident = max(resident, kilobytes(fields["VmHWM"]))
            anonymous = max(anonymous, kilobytes(fields["RssAnon"]))
        time.sleep(INTERVAL_S)
    child.returncode = os.waitstatus_to_exitcode(status)
    wall = time.perf_counter() - began
    return Peak(child.returncode, resident, anonymous, used.ru_utime + used.ru_stime, wall)


def kilobytes(text: str) -> int:
    return int(text.split()[0]) * 1024


def tables(rows: int) -> Iterator[pa.Table]:
    for start in range(0, rows, CHUNK_ROWS):
        ids = np.arange(start, min(rows, start + CHUNK_ROWS))
        texts = pc.binary_join_element_wise("row", pa.array(ids).cast(pa.string()), " ")
        scores = np.random.default_rng(start).random(len(ids))
        yield pa.table([ids, scores, texts], schema=SCHEMA)


def write_parquet(path: Path, rows: int) -> None:
    with pq.ParquetWriter(path, SCHEMA, write_page_checksum=True) as writer:
        for table in tables(rows):
            writer.write_table(table)


def write_one_group(path: Path, rows: int) -> None:
    table = pa.concat_tables(tables(rows))
    pq.write_table(table, path, row_group_size=rows, write_page_checksum=True)


def write_arrow(path: Path, rows: int) -> None:
    with pa.ipc.new_file(path, SCHEMA) as writer:
        for table in tables(rows):
            writer.write_table(table, BATCH_ROWS)


def write_stream(path: Path, rows: int) -> None:
    with pa.ipc.new_stream(path, SCHEMA) as writer:
        for table in tables(rows):
            writer.write_table(table, BATCH_ROWS)


def write_feather(path: Path, rows: int) -> None:
    pyarrow.feather.write_feather(pa.concat_tables(tables(rows)), str(path))


def write_csv(path: Path, rows: int) -> None:
    with open_text(path) as file:
        options = pa.csv.WriteOptions(delimiter="\t" if path.suffix == ".tsv" else ",")
        with pa.csv.CSVWriter(file, SCHEMA, write_options=options) as writer:
            for table in tables(rows):
                writer.write_table(table)


def write_jsonl(path: Path, rows: int) -> None:
    with open_text(path) as file:
        for table in tables(rows):
            file.write(json_lines(table, b"\n"))
            file.write(b"\n")


def write_array(path: Path, rows: int) -> None:
    with open_text(path) as file:
        separator = b"["
        for table in tables(rows):
            file.write(separator)
            file.write(json_lines(table, b","))
            separator = b","
        file.write(b"]")


def json_lines(table: pa.Table, separator: bytes) -> bytes:
    texts = [column.cast(pa.string()) for column in table.columns]
    pieces = ['{"id":', texts[0], ',"score":', texts[1], ',"name":"', texts[2], '"}']
    lines = pc.binary_join_element_wise(*pieces, "")
    return separator.join(line.encode() for line in lines.to_pylist())


def open_text(path: Path) -> IO[bytes]:
    if path.suffix == ".gz":
        return gzip.open(path, "wb", 1)  # type: ignore[return-value]
    if path.suffix == ".zst":
        return pa.output_stream(path, compression="zstd")  # type: ignore[no-any-return]
    return path.open("wb")


def write_list(path: Path, rows: int) -> None:
    names = []
    for number, table in enumerate(tables(rows)):
        names.append(f"{path.stem}.{number:03}.parquet")
        pq.write_table(table, path.with_name(names[-1]), write_page_checksum=True)
    path.write_text("".join(f"{name}\n" for name in names))


def write_addresses(path: Path, rows: int) -> None:
    """Write the addresses of LISTED_FILES small files, repeatedly."""
    folder = path.with_suffix("")
    folder.mkdir(exist_ok=True)
    files = [folder / str(number) for number in range(LISTED_FILES)]
    for file in files:
        file.write_bytes(b"data")
    lines = "".join(f"{file}\n" for file in files).encode()
    with path.open("wb") as file:
        for _ in range(rows // LISTED_FILES):
            file.write(lines)


# programs that pack the rows of an Arrow stream; arguments: stream, output folder, options as JSON
PACK_BATCHES = """
import json, sys, flarecli as flare, pyarrow as pa
source, out, options = sys.argv[1:]
flare.pack(pa.ipc.open_stream(source), out, overwrite=True, **json.loads(options))
"""
PACK_DICTS = """
import json, sys, flarecli as flare, pyarrow as pa
source, out, options = sys.argv[1:]

def generate():
    for batch in pa.ipc.open_stream(source):
        for start in range(0, batch.num_rows, 256):  # 65,536 dicts would need 20 MB
            yield from batch.slice(start, 256).to_pylist()

flare.pack(generate(), out, overwrite=True, **json.loads(options))
"""


class Kind(NamedTuple):
    """A kind of table.

    file      name of the file
    write     function that writes the file
    options   options of `flare pack`, which are used one at a time
    is_piped  whether the file is piped to standard input
    always    options that are always used
    program   Python program that packs the file; empty: the command line
    """

    file: str
    write: Callable[[Path, int], None]
    options: Mapping[str, list[str]] = MappingProxyType({})
    is_piped: bool = False
    always: Sequence[str] = ()
    program: str = ""

    def command(self, path: Path, packed: str, argv: Sequence[str]) -> list[str]:
        """Return the command that packs the file at `path` with additional options."""
        if self.program:
            values = {name[2:]: int(one) if one.isdigit() else one for name, one in pairs(argv)}
            return [sys.executable, "-c", self.program, str(path), packed, json.dumps(values)]
        source = "-" if self.is_piped else str(path)
        return [FLARE, "pack", source, packed, "--overwrite", "-q", *self.always, *argv]


def pairs(argv: Sequence[str]) -> Iterator[tuple[str, str]]:
    return zip(argv[::2], argv[1::2], strict=True)


# kinds of the same file are adjacent, so that the file is removed before the next file is written
KINDS = {
    "parquet": Kind("groups.parquet", write_parquet, OPTIONS),
    "stdin: parquet": Kind("groups.parquet", write_parquet, OPTIONS, True),
    "parquet in one row group": Kind("one.parquet", write_one_group),
    "arrow file": Kind("file.arrow", write_arrow, OPTIONS),
    "stdin: arrow file": Kind("file.arrow", write_arrow, OPTIONS, True),
    "arrow stream": Kind("stream.arrows", write_stream, OPTIONS),
    "stdin: arrow stream": Kind("stream.arrows", write_stream, OPTIONS, True),
    "Python: batches": Kind("stream.arrows", write_stream, PYTHON_OPTIONS, program=PACK_BATCHES),
    "Python: dicts": Kind("stream.arrows", write_stream, PYTHON_OPTIONS, program=PACK_DICTS),
    "feather": Kind("table.feather", write_feather, OPTIONS),
    "stdin: feather": Kind("table.feather", write_feather, {}, True),
    "csv": Kind("table.csv", write_csv, OPTIONS),
    "stdin: csv": Kind("table.csv", write_csv, OPTIONS, True),
    "tsv": Kind("table.tsv", write_csv, OPTIONS),
    "stdin: tsv": Kind("table.tsv", write_csv, OPTIONS, True),
    "csv.gz": Kind("table.csv.gz", write_csv, OPTIONS),
    "stdin: csv.gz": Kind("table.csv.gz", write_csv, {}, True),
    "csv.zst": Kind("table.csv.zst", write_csv, WHERE_OPTIONS),
    "stdin: csv.zst": Kind("table.csv.zst", write_csv, {}, True),
    "jsonl": Kind("table.jsonl", write_jsonl, OPTIONS),
    "stdin: jsonl": Kind("table.jsonl", write_jsonl, OPTIONS, True),
    "jsonl.gz": Kind("table.jsonl.gz", write_jsonl, WHERE_OPTIONS),
    "stdin: jsonl.gz": Kind("table.jsonl.gz", write_jsonl, {}, True),
    "jsonl.zst": Kind("table.jsonl.zst", write_jsonl, WHERE_OPTIONS),
    "stdin: jsonl.zst": Kind("table.jsonl.zst", write_jsonl, {}, True),
    "json array": Kind("array.json", write_array, OPTIONS),
    "stdin: json array": Kind("array.json", write_array, OPTIONS, True),
    "json array.zst": Kind("array.json.zst", write_array, WHERE_OPTIONS),
    "stdin: json array.zst": Kind("array.json.zst", write_array, {}, True),
    "list of parquet files": Kind("tables.txt", write_list, OPTIONS),
    "addresses": Kind("addresses.txt", write_addresses, LIST_OPTIONS, always=("--input", "lines")),
    "stdin: addresses": Kind("addresses.txt", write_addresses, LIST_OPTIONS, True),
}


def remove_table(path: Path) -> None:
    """Remove a table and the files that it lists."""
    for part in path.parent.glob(f"{path.stem}.*.parquet"):
        part.unlink()
    shutil.rmtree(path.with_suffix(""), ignore_errors=True)
    path.unlink(missing_ok=True)


class Report:
    """The lines printed so far, of which some may be above their limit."""

    def __init__(self) -> None:
        self.failed: list[str] = []
        print(f"{'task':32} {'resident':>8} {'anonymous':>10} {'limit':>8} {'CPU':>8} {'wall':>8}")

    def add(self, name: str, peak: Peak, limit: float = LIMIT_BYTES) -> None:
        problem = f"exit {peak.code}" if peak.code else "above" if peak.anonymous > limit else ""
        print(
            f"{name:32} {peak.resident / 1e6:5.0f} MB {peak.anonymous / 1e6:7.0f} MB"
            f" {limit / 1e6:5.0f} MB {peak.cpu:6.1f} s {peak.wall:6.1f} s  {problem}",
            flush=True,
        )
        if problem:
            self.failed.append(name)


def main() -> int:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--rows", type=int, default=20_000_000)
    parser.add_argument("--only", default="", help="task names or wildcards, separated by commas")
    parser.add_argument("--folder", type=Path, help="folder for tables; existing tables are used")
    options = parser.parse_args()
    rows = options.rows
    scratch = tempfile.mkdtemp(dir=options.folder)
    folder: Path = options.folder or Path(scratch)
    packed = f"{scratch}/packed"

    def selects(name: str) -> bool:
        return not options.only or any(
            fnmatch(name, pattern) for pattern in options.only.split(",")
        )

    report = Report()
    try:
        report.add("import of the libraries", measured([sys.executable, "-c", LIBRARIES]))
        kinds = list(KINDS.items())
        for number, (name, kind) in enumerate(kinds):
            variants = {name: list[str]()}
            for option, argv in kind.options.items():
                variants[f"{name} --{option}"] = argv
            path = folder / kind.file
            for variant, argv in variants.items():
                if not selects(variant):
                    continue
                if not path.exists():
                    kind.write(path, rows)
                argv = [one.format(half=rows // 2) for one in argv]
                limit = LIMIT_BYTES + KEY_BYTES * rows * ("--key" in argv)
                command = kind.command(path, packed, argv)
                report.add(variant, measured(command, path if kind.is_piped else None), limit)
            if options.folder is None and kind.file not in {
                one.file for _, one in kinds[number + 1 :]
            }:
                remove_table(path)
        if selects("cat") or selects("verify"):
            path = folder / KINDS["parquet"].file
            if not path.exists():
                write_parquet(path, rows)
            subprocess.run([FLARE, "pack", path, packed, "--overwrite", "-q"], check=True)
        for name in ("cat", "verify"):
            if selects(name):
                report.add(name, measured([FLARE, name, packed]))
    finally:
        shutil.rmtree(scratch)
    for name in report.failed:
        print(f"failed: {name}")
    return int(bool(report.failed))


if __name__ == "__main__":
    sys.exit(main())
