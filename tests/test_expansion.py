"""Small inputs that expand to large data are refused with one line, in bounded memory.

Memory is bounded by RLIMIT_DATA of a child, so that a command that needs more ends there, not on
the machine.
"""

import gzip
import json
import os
import re
import resource
import struct
import subprocess
import sys
from pathlib import Path

import msgpack
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard

from flarecli import commands, encodings, expansion
from flarecli.errors import FormatError, ValueFitError
from flarecli.ingest import open_index
from flarecli.media import Sandbox, sandbox

MB = 1_000_000
BOMB = "The file may be a decompression bomb; do not trust it."


def flare(*args, data=1000 * MB, handles=None, cpu=None):
    """Run a command in a child process of bounded memory; return its exit code and output."""

    def limit():
        resource.setrlimit(resource.RLIMIT_DATA, (data, data))
        if handles is not None:
            resource.setrlimit(resource.RLIMIT_NOFILE, (handles, handles))
        if cpu is not None:
            resource.setrlimit(resource.RLIMIT_CPU, (cpu, cpu))

    argv = [sys.executable, "-m", "flarecli", *map(str, args)]
    done = subprocess.run(argv, capture_output=True, text=True, preexec_fn=limit, check=False)
    return done.returncode, done.stderr, done.stdout


def refusal(code, path, message, hint=BOMB):
    return code, f"error: {path}: {message}\nhint: {hint}\n"


def mds(folder, kind, rows, packed=True):
    """Write an MDS shard with one column, whose values are lists of parts, and return its
    folder.
    """
    folder.mkdir()
    names = {"column_names": ["a"], "column_encodings": [kind], "column_sizes": [None]}
    if kind.startswith("ndarray:"):
        names["column_sizes"] = [0]
    head = json.dumps(
        {**names, "compression": None, "format": "mds", "hashes": [], "size_limit": None},
        sort_keys=True,
    ).encode()
    sizes = [sum(map(len, row)) for row in rows]
    first = 4 + 4 * (len(rows) + 1) + len(head)
    ends = first + np.cumsum([0, *sizes])
    parts = [struct.pack("<I", len(rows)), ends.astype("<u4").tobytes(), head]
    parts += [part for row in rows for part in row]
    data = b"".join(parts)
    if packed:
        packer = zstandard.ZstdCompressor(level=1).compressobj()
        data = b"".join([*map(packer.compress, parts), packer.flush()])
    name = "shard.00000.mds"
    (folder / (f"{name}.zstd" if packed else name)).write_bytes(data)
    raw = {"basename": name, "bytes": int(ends[-1]), "hashes": {}}
    zipped = {"basename": f"{name}.zstd", "bytes": len(data), "hashes": {}} if packed else None
    shard = {"samples": len(rows), "compression": "zstd" if packed else None, "format": "mds"}
    shard |= {"hashes": [], "size_limit": None, "version": 2, "raw_data": raw, "zip_data": zipped}
    (folder / "index.json").write_text(json.dumps({"version": 2, "shards": [{**names, **shard}]}))
    return folder


def value(part, count):
    return [struct.pack("<I", len(part) * count), *[part] * count]


# -- columns


@pytest.mark.parametrize("name", ["x.csv", "x.tsv", "x.jsonl", "x.parquet", "x.arrow"])
def test_more_than_10000_columns_are_refused(tmp_path, name):
    path, names = tmp_path / name, [f"c{i}" for i in range(10_001)]
    sign = {"x.csv": ",", "x.tsv": "\t"}.get(name)
    if sign:
        path.write_text(sign.join(names) + "\n" + sign.join("1" * len(names)) + "\n")
    elif name == "x.jsonl":
        path.write_text(json.dumps(dict.fromkeys(names, 1)) + "\n")
    else:
        table = pa.table({one: pa.nulls(1, pa.int8()) for one in names})
        if name == "x.parquet":
            pq.write_table(table, path, write_statistics=False)
        else:
            with pa.ipc.new_file(path, table.schema) as writer:
                writer.write_table(table)
    with pytest.raises(FormatError) as caught:
        open_index(str(path))
    assert str(caught.value) == (
        f"{path}: line 1: more than 10000 different members up to this row"
        if name == "x.jsonl"
        else f"{path}: 10001 columns; the maximum is 10000"
    )


def test_a_shard_and_a_spec_of_more_than_10000_columns_are_refused(tmp_path):
    names = [f"c{i}" for i in range(10_001)]
    columns = {"column_names": names, "column_encodings": ["uint8"] * len(names)}
    columns["column_sizes"] = [1] * len(names)
    raw = {"basename": "shard.00000.mds", "bytes": 1, "hashes": {}}
    shard = {"samples": 1, "compression": None, "format": "mds", "hashes": [], "version": 2}
    shard |= {"size_limit": None, "raw_data": raw, "zip_data": None, **columns}
    (tmp_path / "index.json").write_text(json.dumps({"version": 2, "shards": [shard]}))
    (tmp_path / "g").mkdir()
    (tmp_path / "g" / "spec.json").write_text(json.dumps(dict.fromkeys(names, "bytes")))
    for source in (tmp_path, tmp_path / "g"):
        with pytest.raises(FormatError, match="10001 columns; the maximum is 10000"):
            commands.inspect(str(source))


def test_the_time_for_columns_is_linear_in_their_number(tmp_path):
    """Searching each name in a list of all would be quadratic."""
    path = tmp_path / "x.csv"
    names = ",".join(f"c{i}" for i in range(10_000))
    path.write_text(names + "\n" + ",".join("1" * 10_000) + "\n")
    code, said, out = flare("pack", path, tmp_path / "out", "-q", cpu=12)
    assert (code, said, out) == (0, "", f"{tmp_path}/out/playlist.yaml\n")


@pytest.mark.parametrize(
    "line", ['{"k%d": 1}\n', '{"a": {"k%d": 1}}\n', '{"a": [{"k%d": [1]}]}\n', '{"k%d" : 1}\n']
)
def test_json_lines_with_too_many_different_members_are_refused(tmp_path, line):
    path = tmp_path / "x.jsonl"
    path.write_text("".join(line % i for i in range(20_000)))
    code, said, _ = flare("pack", path, tmp_path / "out", data=600 * MB)
    assert code == 4
    assert " different members in " in said
    assert "rows, with few per row\nhint: Store them as a list of names and values" in said


def test_json_lines_with_many_members_in_all_rows_are_read(tmp_path):
    path = tmp_path / "x.jsonl"
    row = {f"k{i}": i for i in range(2000)}
    path.write_text((json.dumps(row) + "\n") * 20)
    assert sum(batch.num_rows for batch in open_index(str(path)).batches()) == 20


def test_text_with_escaped_quotes_is_scanned_once(tmp_path):
    """The time for names of members must be linear in the bytes."""
    path = tmp_path / "x.jsonl"
    path.write_text(json.dumps({"a": '"' * 400_000}) + "\n")
    (batch,) = open_index(str(path)).batches()
    assert batch.column("a")[0].as_py() == '"' * 400_000


# -- bytes and rows of tables


def _parquet(path, table, **options):
    pq.write_table(
        table,
        path,
        compression="zstd",
        write_statistics=False,
        **{"use_dictionary": False} | options,
    )
    return path


def _written(path, batches):
    options = pa.ipc.IpcWriteOptions(compression="zstd")
    with pa.ipc.new_file(path, batches[0].schema, options=options) as writer:
        for batch in batches:
            writer.write_batch(batch)
    return path


def _large():
    return pa.table({"a": pa.array([bytes(MB)] * 260, pa.binary())})


def _repeated(rows, lead=0):
    """Return a dictionary column with one value of 100 kB; the first rows are empty."""
    indices = np.ones(rows, np.int8)
    indices[:lead] = 0
    text = np.random.default_rng(1).integers(0, 256, 100_000, np.uint8).tobytes()
    return pa.DictionaryArray.from_arrays(indices, pa.array([b"", text], pa.binary()))


TABLES = {
    "pages.parquet": lambda path: _parquet(path, _large()),
    "late.parquet": lambda path: _parquet(
        path, pa.table({"a": _repeated(100_000, 4096)}), use_dictionary=True
    ),
    "prefix.parquet": lambda path: _parquet(
        path,
        pa.table({"a": pa.array([bytes(200_000)] * 1300, pa.binary())}),
        column_encoding={"a": "DELTA_BYTE_ARRAY"},
    ),
    "value.arrow": lambda path: _written(path, _large().combine_chunks().to_batches()),
    "dictionary.arrow": lambda path: _written(path, [pa.record_batch({"a": _repeated(50_000)})]),
    "runs.arrow": lambda path: _written(
        path,
        [
            pa.record_batch(
                {
                    "a": pa.RunEndEncodedArray.from_arrays(
                        pa.array([50_000], pa.int32()), pa.array([os.urandom(100_000)], pa.binary())
                    )
                }
            )
        ],
    ),
}


@pytest.mark.parametrize("name", TABLES)
def test_a_table_that_decodes_to_too_many_bytes_is_refused(tmp_path, name):
    path = TABLES[name](tmp_path / name)
    code, said, _ = flare("pack", path, tmp_path / "out", data=700 * MB)
    size = path.stat().st_size
    assert (code, said) == refusal(4, path, f"{size} bytes decode to more than 256000000 bytes")


ROWS = {
    "dictionary.parquet": lambda path: _parquet(
        path,
        pa.table({"a": pa.DictionaryArray.from_arrays(np.zeros(20_000_000, np.int8), ["x" * 100])}),
        use_dictionary=True,
    ),
    "nulls.parquet": lambda path: _parquet(path, pa.table({"a": pa.nulls(20_000_000, pa.int8())})),
    "nulls.arrow": lambda path: _written(path, [pa.record_batch({"a": pa.nulls(20_000_000)})]),
}


@pytest.mark.parametrize("name", ROWS)
def test_a_table_with_too_many_rows_for_its_size_is_refused(tmp_path, name):
    path = ROWS[name](tmp_path / name)
    code, said, _ = flare("pack", path, tmp_path / "out", data=700 * MB)
    size = path.stat().st_size
    assert (code, said) == refusal(
        4, path, f"20000000 rows in {size} bytes; the maximum is 4194304"
    )


def test_batches_of_a_struct_are_small_if_only_its_second_text_is_long(tmp_path):
    texts = [pa.array(["x"] * 8192, pa.binary()), _repeated(8192, 4096)]
    table = pa.table({"a": pa.StructArray.from_arrays(texts, ["short", "long"])})
    path = _parquet(tmp_path / "x.parquet", table, use_dictionary=True)
    batch = next(iter(open_index(str(path)).batches()))
    assert 1 < batch.num_rows * 100_000 < 70 * MB


def test_dictionaries_and_views_of_a_valid_table_are_read(tmp_path):
    path = _written(
        tmp_path / "x.arrow",
        [
            pa.record_batch(
                {
                    "d": pa.array(["a", "b", None, "a"]).dictionary_encode(),
                    "v": pa.array(["x" * 20, None, "", "y" * 13], pa.string_view()),
                    "r": pa.RunEndEncodedArray.from_arrays([1, 4], ["p", "q"]),
                }
            )
        ]
        * 3,
    )
    rows = [row for batch in open_index(str(path)).batches() for row in batch.to_pylist()]
    assert rows == 3 * [
        {"d": "a", "v": "x" * 20, "r": "p"},
        {"d": "b", "v": None, "r": "q"},
        {"d": None, "v": "", "r": "q"},
        {"d": "a", "v": "y" * 13, "r": "q"},
    ]


def test_a_row_with_too_many_values_for_the_file_is_refused(tmp_path):
    lists = pa.LargeListArray.from_arrays([0, 40_000_000], np.zeros(40_000_000, np.int8))
    path = _parquet(tmp_path / "x.parquet", pa.table({"a": lists}), use_dictionary=True)
    code, said, _ = flare("pack", path, tmp_path / "out", data=700 * MB)
    size = path.stat().st_size
    found = re.fullmatch(
        rf"error: {path}: (\d+) values in {size} bytes; the maximum is 33554432 values\nhint: {BOMB}\n",
        said,
    )
    assert code == 4
    assert found and int(found[1]) > 33554432


def test_list_views_are_read_as_lists(tmp_path):
    views = pa.ListViewArray.from_arrays(
        pa.array([0, 0, 1, 3, 0], pa.int32()),
        pa.array([3, 3, 2, 0, 1], pa.int32()),
        pa.array([7, 8, 9], pa.int8()),
    )
    rows = [[7, 8, 9], [7, 8, 9], [8, 9], [], [7]]
    deep = pa.StructArray.from_arrays([views], ["v"])
    batch = pa.record_batch({"a": views, "b": deep})
    path = _written(tmp_path / "x.arrow", [batch, batch.slice(1, 3)])
    found = [row for one in open_index(str(path)).batches() for row in one.to_pylist()]
    assert found == [{"a": row, "b": {"v": row}} for row in [*rows, *rows[1:4]]]


def test_a_list_that_every_row_refers_to_is_decoded_once(tmp_path):
    count, rows = 2000, 2000
    record = b"\x91\x92\x00\xcd" + struct.pack(">H", count)
    for name, records in (("refs", [record] * rows), ("a", [b"x"] * count)):
        ends = np.cumsum([len(one) for one in records], dtype="<u8")
        (tmp_path / f"{name}.bag").write_bytes(b"".join(records) + ends.tobytes())
    (tmp_path / "spec.json").write_text(json.dumps({"a": "bytes[]"}))
    code, _, printed = flare("verify", "--decode", tmp_path)
    assert code == 1
    overlap = "list items overlap: rows have more items than the shard has bytes; later rows are not decoded"
    assert overlap in printed


def test_a_row_with_too_many_values_is_a_failed_row(tmp_path):
    lists = pa.LargeListArray.from_arrays([0, 5_000_000, 5_000_001], np.zeros(5_000_001, np.int8))
    path = _parquet(tmp_path / "x.parquet", pa.table({"a": lists}))
    code, said, _ = flare("pack", path, tmp_path / "out")
    assert code == 4
    assert said.startswith(f"error: {path}[0]: a has 5000001 values; the maximum is 4194304\n")


@pytest.mark.parametrize("source", ["parquet", "mds", "tar"])
def test_max_object_limits_values_of_every_source(tmp_path, source):
    rows = [b"x" * 10, b"y" * 1001, b"z" * 1000]
    if source == "parquet":
        path = tmp_path / "x.parquet"
        pq.write_table(pa.table({"a": pa.array(rows, pa.binary())}), path)
    elif source == "mds":
        path = mds(tmp_path / "m", "bytes", [value(row, 1) for row in rows], packed=False)
    else:
        mds(tmp_path / "m", "bytes", [value(row, 1) for row in rows], packed=False)
        commands.pack(str(tmp_path / "m"), str(tmp_path / "t"), format="webdataset")
        path = tmp_path / "t"
    packed = commands.pack(str(path), str(tmp_path / "o"), max_object=1000, on_error="skip")
    assert (packed.rows, packed.failed, packed.reasons) == (2, 1, {"large": 1})
    (failed,) = (tmp_path / "o" / "failed.jsonl").read_text().splitlines()
    assert json.loads(failed)["reason"] == (
        "a value of 1001 bytes, larger than the limit of 1000 bytes"
    )
    if source == "mds":
        found = commands.unpack(str(path), str(tmp_path / "u"), max_object=1000, on_error="skip")
        assert (found.rows, found.failed, found.reasons) == (2, 1, {"large": 1})


# -- shards


@pytest.fixture(scope="module")
def zeros(tmp_path_factory):
    """Write a shard of 9 kB that declares 260 MB of zeros."""
    return mds(tmp_path_factory.mktemp("zeros") / "d", "bytes", [value(bytes(MB), 260)])


@pytest.mark.parametrize("command", ["cat", "verify", "pack", "unpack"])
def test_a_declared_size_does_not_raise_the_maximum_ratio(zeros, tmp_path, command):
    out = [str(tmp_path / "out")] if command in ("pack", "unpack") else []
    code, said, printed = flare(command, zeros, *out, data=500 * MB)
    stored = (zeros / "shard.00000.mds.zstd").stat().st_size
    message = f"bytes; the maximum for {stored} stored bytes is 256000000"
    assert code == (1 if command == "verify" else 4)
    assert message in (printed if command == "verify" else said)


def test_a_large_document_is_not_converted_to_objects(tmp_path):
    count = 6_000_000
    text = [struct.pack("<I", 3 + 3 * count), b"[", *[b"[]," * MB] * 6, b"1]"]
    folder = mds(tmp_path / "d", "json", [text])
    message = f"json value is {3 + 3 * count} bytes; the maximum is 16777216"
    code, said, _ = flare("cat", folder, data=400 * MB)
    assert (code, said) == (
        4,
        f"error: column 'a': value is {3 + 3 * count} bytes; at most 16777216 are printed as text\n"
        "hint: Use --raw a to print its bytes, or select other columns with -c.\n",
    )
    code, _, printed = flare("verify", "--decode", folder, data=400 * MB)
    assert code == 1
    assert f"column 'a': {message}" in printed


def test_an_empty_array_is_not_expanded_to_many_lists():
    kind = encodings.lookup("array")
    many = msgpack.packb(["|u1", [2_000_000_000, 0], b""])
    with pytest.raises(ValueFitError) as caught:
        encodings.decode(kind, many)
    assert str(caught.value) == (
        "an array of shape (2000000000, 0) consists of 2000000000 empty lists; the maximum is 1024"
    )
    few = encodings.decode(kind, msgpack.packb(["|u1", [3, 0], b""]))
    assert few.shape == (3, 0)


def test_empty_samples_do_not_allow_millions_of_rows(tmp_path):
    folder = mds(tmp_path / "d", "bytes", [[struct.pack("<I", 0)]])
    path = folder / "shard.00000.mds.zstd"
    raw = zstandard.ZstdDecompressor().decompressobj().decompress(path.read_bytes())
    head = raw[12:-4].replace(b'"a"', b"").replace(b'"bytes"', b"").replace(b"null]", b"]")
    rows = 5_000_000
    start = 8 + 4 * rows + len(head)
    data = struct.pack("<I", rows) + np.full(rows + 1, start, "<u4").tobytes() + head
    path.write_bytes(zstandard.compress(data))
    code, said, _ = flare("cat", path, data=400 * MB)
    size = path.stat().st_size
    assert (code, said) == refusal(4, path, f"{rows} rows in {size} bytes; the maximum is 4194304")


def test_text_that_decompresses_to_too_many_bytes_is_refused_while_it_is_read(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(expansion, "FREE_BYTES", 2 * MB)
    path = tmp_path / "x.csv.gz"
    with gzip.open(path, "wb") as file:
        file.write(b"a\n")
        for _ in range(3):
            file.write(b"x" * 999_999 + b"\n")
    with pytest.raises(FormatError, match=r"decompresses to more than 2000000 bytes"):
        for _ in open_index(str(path)).batches():
            pass


# -- images


def test_images_that_take_too_much_cpu_are_reported(tmp_path, monkeypatch):
    program = tmp_path / "busy.py"
    program.write_text(
        "import runpy, sys\n"
        f"worker = runpy.run_path({sandbox.sandbox_worker.__file__!r})\n"
        "def decode(data, max_pixels):\n"
        "    while True: pass\n"
        "worker['serve'].__globals__['decode'] = decode\n"
        "worker['serve'](sys.stdin.buffer, sys.stdout.buffer, 1)\n"
    )

    class Program:
        __file__ = str(program)

    monkeypatch.setattr(sandbox, "sandbox_worker", Program)
    monkeypatch.setattr(sandbox, "CPU_S", 1)
    with Sandbox() as images:
        assert images.check(b"one") == "decoding takes more than 1 s of CPU"
        assert images.check(b"two") == "not decoded: 6 bytes of images used 1 s of CPU"


# -- limits of memory and file handles


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """Write a valid shard whose first row has 700 MB, most of it a hole in the file."""
    folder = mds(
        tmp_path_factory.mktemp("large") / "d", "bytes", [value(b"", 0), value(b"x", 1)], False
    )
    path, size = folder / "shard.00000.mds", 700 * MB
    data = bytearray(path.read_bytes())
    first = struct.unpack_from("<I", data, 4)[0]
    struct.pack_into("<II", data, 8, first + 4 + size, first + 9 + size)
    with path.open("wb") as file:
        file.write(data[:first] + struct.pack("<I", size))
        file.seek(first + 4 + size)
        file.write(struct.pack("<I", 1) + b"x")
    index = json.loads((folder / "index.json").read_text())
    index["shards"][0]["raw_data"]["bytes"] = first + 9 + size
    (folder / "index.json").write_text(json.dumps(index))
    return folder


NO_MEMORY = (
    "error: not enough memory\nhint: Use fewer --jobs or smaller shards, or allow more memory.\n"
)


@pytest.mark.parametrize(
    "command", ["verify", "verify --decode", "pack", "pack -f webdataset", "unpack", "cat --to csv"]
)
def test_running_out_of_memory_is_reported_in_one_line(large, tmp_path, command):
    out = [str(tmp_path / "out")] if command.startswith(("pack", "unpack")) else []
    code, said, printed = flare(*command.split(), "-q", large, *out, data=300 * MB)
    assert (code, said, printed) == (3, NO_MEMORY, "")


def test_nine_file_handles_are_enough_to_pack_a_table(tmp_path):
    table, out = tmp_path / "x.csv", tmp_path / "out"
    table.write_text("a\n" + "".join(f"{i}\n" for i in range(60)))
    assert flare("pack", "-q", table, out, handles=9)[:2] == (0, "")
    assert list(commands.verify(str(out))) == []
    assert commands.inspect(str(out)).rows == 60


@pytest.mark.parametrize(("command", "handles"), [("cat", 8), ("cat", 9), ("pack", 8)])
def test_too_few_file_handles_are_reported(tmp_path, command, handles):
    folder = tmp_path / "d"
    table = tmp_path / "x.csv"
    table.write_text("a\n" + "".join(f"{i}\n" for i in range(60)))
    commands.pack(str(table), str(folder), shard_rows=5)
    out = [str(tmp_path / "out")] if command == "pack" else []
    code, said, _ = flare(
        command, "-q", table if command == "pack" else folder, *out, handles=handles
    )
    assert (code, said) == (
        3,
        f"error: too few file handles: {handles} are allowed, 64 are needed\n"
        "hint: Run `ulimit -n 64` first.\n",
    )


def test_too_few_file_handles_for_transfers_are_reported(tmp_path):
    table = tmp_path / "x.csv"
    table.write_text("key,url\n0,http://127.0.0.1:9/0\n")
    argv = ["pack", "-q", table, tmp_path / "out", "--fetch", "url:data", "--allow-private"]
    code, said, _ = flare(*argv, handles=10)
    assert (code, said) == (
        3,
        "error: too few file handles: 10 are allowed, 64 are needed\n"
        "hint: Run `ulimit -n 64` first.\n",
    )


def test_inputs_of_the_benchmark_are_below_1_mb():
    """The script that measures the inputs is imported but not run."""
    path = Path(__file__).parents[1] / "benchmarks" / "hostile.py"
    done = subprocess.run(
        [sys.executable, str(path), "--only", "no such input"], capture_output=True, text=True
    )
    assert (done.returncode, done.stdout) == (0, "0 runs, 0 failed\n")
