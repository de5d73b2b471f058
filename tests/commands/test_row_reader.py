"""Values of datasets above --max-object are refused with the same message, and are not read."""

import json
import struct
import subprocess
import sys
import zlib

import numpy as np
import pyarrow as pa
import pytest

import flarecli
from flarecli import commands, encodings, playlists, read
from flarecli.__main__ import main
from flarecli.encodings import column
from flarecli.errors import ReachError
from flarecli.formats import find
from flarecli.formats.ffrecord.packed_folder import write_folder
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds.repair_index import rebuild
from flarecli.model import Playlist, Settings, Stream
from flarecli.storage import locate

LARGE = 256 << 20
REASON = "a value of {size} bytes, larger than the limit of {limit} bytes"


def sparse_record_file(path):
    """An FFRecord file of three records, the second of zeros that take no space on the disk."""
    checksum, block = 0, bytes(1 << 20)
    for _ in range(LARGE >> 20):
        checksum = zlib.crc32(block, checksum)
    first = 12 + 12 * 3
    table = struct.pack("<q3I", 3, zlib.crc32(b"a"), checksum, zlib.crc32(b"c"))
    table += struct.pack("<3q", first, first + 1, first + 1 + LARGE)
    with path.open("wb") as file:
        file.write(struct.pack("<I", zlib.crc32(table)) + table + b"a")
        file.seek(LARGE, 1)
        file.write(b"c")


def sparse_bags(folder):
    """A Granular dataset of three rows; the second record of `data` takes no space on the disk."""
    (folder / "spec.json").write_text('{"data": "bytes", "name": "utf8"}')
    with (folder / "data.bag").open("wb") as file:
        file.write(b"a")
        file.seek(LARGE, 1)
        file.write(b"c")
    np.array([1, 1 + LARGE, 2 + LARGE], "<u8").tofile(folder / "data.idx")
    (folder / "name.bag").write_bytes(b"xyz")
    np.array([1, 2, 3], "<u8").tofile(folder / "name.idx")


def sparse_samples(folder):
    """An MDS dataset of three samples; the value of the second takes no space on the disk."""
    columns = (column("data", "bytes"), column("name", "str"))
    config = mds_config.dumped(mds_config.config("mds", columns, Settings()))
    starts = [20 + len(config)]
    for size in (1, LARGE, 1):
        starts.append(starts[-1] + 8 + size + 1)
    with (folder / "shard.00000.mds").open("wb") as file:
        file.write(struct.pack("<5I", 3, *starts) + config)
        file.write(struct.pack("<2I", 1, 1) + b"ax" + struct.pack("<2I", LARGE, 1))
        file.seek(LARGE, 1)
        file.write(b"y" + struct.pack("<2I", 1, 1) + b"cz")
    rebuild(locate(str(folder)))


def write_sparse_datasets(folder):
    """Write three datasets with a large value in row 1, and a small dataset."""
    for name in ("small", "records", "bags", "samples"):
        (folder / name).mkdir()
    (folder / "small" / "x.bag").write_bytes(b"ab" + struct.pack("<2Q", 1, 2))
    sparse_record_file(folder / "records" / "a.ffr")
    sparse_bags(folder / "bags")
    sparse_samples(folder / "samples")


_PEAK = """
import json, sys
from flarecli import commands
from flarecli.errors import FlareError

def peak():
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) >> 10 for line in file if line.startswith("VmHWM"))

def run(verb, source, out, on_error, limit):
    try:
        if verb == "cat":
            return [sum(batch.num_rows for batch in commands.cat(source, max_object=limit)), 0]
        if verb in ("sample", "stats"):
            options = {verb: 3 if verb == "sample" else True}
            return [commands.inspect(source, max_object=limit, **options).rows, 0]
        done = getattr(commands, verb)(source, out, on_error=on_error, max_object=limit)
        return [done.rows, done.failed]
    except FlareError as error:
        return [error.kind, error.exit_code, error.row, error.message]

small, cases = json.loads(sys.argv[1])
run("pack", small, small + "-packed", "fail", 1 << 20)
run("unpack", small, small + "-unpacked", "fail", 1 << 20)
before = peak()
print(json.dumps([[run(*case, 1 << 20), peak() - before] for case in cases]))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
@pytest.mark.parametrize("verb", ["pack", "unpack"])
def test_a_large_value_takes_no_memory(tmp_path, verb):
    write_sparse_datasets(tmp_path)
    cases = [
        [verb, str(tmp_path / name), str(tmp_path / f"{name}-{on_error}"), on_error]
        for name in ("records", "bags", "samples")
        for on_error in ("fail", "skip")
    ]
    argument = json.dumps([str(tmp_path / "small"), cases])
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, argument], capture_output=True, text=True, check=True
    )
    results = json.loads(done.stdout)
    refused = ["reach", 3, 1, REASON.format(size=LARGE, limit=1 << 20)]
    assert [result for result, _ in results] == [refused, [2, 1]] * 3
    assert max(megabytes for _, megabytes in results) < 64
    for name in ("records", "bags", "samples"):
        (line,) = (tmp_path / f"{name}-skip" / "failed.jsonl").read_text().splitlines()
        failed = json.loads(line)
        assert (failed["row"], failed["column"], failed["kind"]) == (1, "data", "large")
        assert failed["reason"] == refused[3]


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_cat_and_inspect_do_not_read_a_large_value(tmp_path):
    write_sparse_datasets(tmp_path)
    cases = [
        [verb, str(tmp_path / name), "", ""]
        for name in ("records", "bags", "samples")
        for verb in ("cat", "sample", "stats")
    ]
    argument = json.dumps([str(tmp_path / "small"), cases])
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, argument], capture_output=True, text=True, check=True
    )
    results = json.loads(done.stdout)
    reason = f"column 'data': {REASON.format(size=LARGE, limit=1 << 20)}"
    assert [result for result, _ in results] == [["reach", 3, 1, reason]] * 9
    assert max(megabytes for _, megabytes in results) < 64


@pytest.mark.skipif(sys.platform != "linux", reason="the peak of memory is read from /proc")
def test_a_large_plain_file_takes_no_memory(tmp_path):
    for name in ("small", "files"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "a.bag").write_bytes(b"ab" + struct.pack("<2Q", 1, 2))
    with (tmp_path / "files" / "large.dat").open("wb") as file:
        file.truncate(LARGE)
    (tmp_path / "files" / "a.bag").rename(tmp_path / "files" / "a.dat")
    source, out = str(tmp_path / "files"), str(tmp_path / "out")
    argument = json.dumps([str(tmp_path / "small"), [["unpack", source, out, "skip"]]])
    done = subprocess.run(
        [sys.executable, "-c", _PEAK, argument], capture_output=True, text=True, check=True
    )
    ((result, megabytes),) = json.loads(done.stdout)
    assert result == [1, 1]
    assert megabytes < 64
    failed = json.loads((tmp_path / "out" / "failed.jsonl").read_text())
    assert (failed["key"], failed["kind"]) == ("large.dat", "large")
    assert failed["reason"] == REASON.format(size=LARGE, limit=1 << 20)


SIZES = [5, 60, 5, 5, 70, 80, 5, 5, 5, 60, 5, 5]


def written(folder, form, names=("key", "txt", "bin")):
    """Write a dataset with shards of four rows; row i has a key, text, and SIZES[i] bytes."""
    one = find(form)
    key = one.key_column or "key"
    encoding = {"key": "str", "txt": "str", "bin": "bytes"}
    columns = one.arrange(column(key if name == "key" else name, encoding[name]) for name in names)
    values = {
        key: [f"k{i:02}" for i in range(len(SIZES))],
        "txt": [f"text {i}" for i in range(len(SIZES))],
        "bin": [bytes([i]) * size for i, size in enumerate(SIZES)],
    }
    schema = pa.schema([encodings.field(column) for column in columns])
    arrays = [pa.array(values[field.name], field.type) for field in schema]
    rows = pa.RecordBatch.from_arrays(arrays, schema=schema)
    settings = Settings(shard_rows=4)
    chunks = [
        one.write_shard(locate(str(folder)), i, columns, [rows.slice(4 * i, 4)], settings)
        for i in range(3)
    ]
    one.write_index(locate(str(folder)), chunks, columns, settings)
    return key


@pytest.mark.parametrize("form", ["granular", "granular-refs", "webdataset", "mds"])
@pytest.mark.parametrize("rows", [None, "11,9,4,2,1", "2:"])
def test_rows_with_large_values_are_failures_in_order_with_their_keys(tmp_path, form, rows):
    key = written(tmp_path / "data", form)
    chosen = {None: range(12), "2:": range(2, 12)}.get(rows, [11, 9, 4, 2, 1])
    options = {"rows": rows} if rows else {}
    source, out = str(tmp_path / "data"), tmp_path / "out"
    done = commands.pack(
        source, str(out), key=key, max_object=50, on_error="skip", format="mds", **options
    )
    large = [row for row in chosen if SIZES[row] > 50]
    assert (done.rows, done.failed) == (len(chosen) - len(large), len(large))
    failed = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    assert [(one["key"], one["row"], one["column"], one["reason"]) for one in failed] == [
        (f"k{row:02}", row % 4, "bin", REASON.format(size=SIZES[row], limit=50)) for row in large
    ]
    with flarecli.open(str(out)) as data:
        kept = [row for row in chosen if row not in large]
        assert [sample["bin"] for sample in data] == [bytes([row]) * SIZES[row] for row in kept]
        assert [sample["txt"] for sample in data] == [f"text {row}" for row in kept]


@pytest.mark.parametrize("rows", [None, "11,9,4,2,1", "2:"])
@pytest.mark.parametrize("form", ["granular", "webdataset"])
def test_unpack_lists_rows_with_large_values_and_writes_the_others(tmp_path, form, rows):
    key = written(tmp_path / "data", form)
    chosen = {None: range(12), "2:": range(2, 12)}.get(rows, [11, 9, 4, 2, 1])
    source, out = str(tmp_path / "data"), tmp_path / "out"
    done = commands.unpack(
        source, str(out), key=key, columns=["bin"], max_object=50, on_error="skip", rows=rows
    )
    large = [row for row in chosen if SIZES[row] > 50]
    assert (done.rows, done.failed) == (len(chosen) - len(large), len(large))
    failed = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    assert [(one["key"], one["row"]) for one in failed] == [
        (f"k{row:02}", row % 4) for row in large
    ]
    files = {path.stem: path.read_bytes() for path in out.glob("k*")}
    assert files == {f"k{row:02}": bytes([row]) * 5 for row in chosen if row not in large}


def test_a_large_file_of_a_packed_folder_is_refused_with_its_position(tmp_path):
    (tmp_path / "data").mkdir()
    contents = {f"{i:02}": bytes([i]) * size for i, size in enumerate(SIZES * 3)}
    write_folder(locate(str(tmp_path / "data")), "a.ffr", contents)
    source, out = str(tmp_path / "data"), tmp_path / "out"
    done = commands.unpack(source, str(out), max_object=50, on_error="skip")
    large = [name for name, data in contents.items() if len(data) > 50]
    assert (done.rows, done.failed) == (len(contents) - len(large), len(large))
    failed = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    assert [(one["key"], one["reason"]) for one in failed] == [
        (name, REASON.format(size=len(contents[name]), limit=50)) for name in large
    ]
    files = {path.name: path.read_bytes() for path in out.iterdir() if len(path.name) == 2}
    assert files == {name: data for name, data in contents.items() if name not in large}


def test_large_values_of_joined_streams_are_refused(tmp_path):
    streams = []
    for name, form, columns in (("left", "mds", ("key", "txt")), ("right", "ffrecord", ("bin",))):
        written(tmp_path / name, form, columns)
        (stream,) = read.resolve(str(tmp_path / name))[0].streams
        urls = [f"{name}/{url}" for url in stream.urls]
        listed = (encodings.column("bin", "bytes"),) if name == "right" else stream.columns
        streams.append(Stream(name, locate(str(tmp_path)), form, urls, listed))
    path = tmp_path / "both.yaml"
    playlists.write(locate(str(path)), Playlist(tuple(streams)))
    done = commands.pack(
        str(path), str(tmp_path / "out"), key="key", max_object=50, on_error="skip"
    )
    assert (done.rows, done.failed) == (8, 4)
    lines = (tmp_path / "out" / "failed.jsonl").read_text().splitlines()
    assert [json.loads(line)["key"] for line in lines] == ["k01", "k04", "k05", "k09"]


def test_a_condition_limit_or_shuffle_selects_rows_before_large_values_are_refused(tmp_path):
    written(tmp_path / "data", "granular")
    source = str(tmp_path / "data")
    for number, (options, kept, failed) in enumerate(
        [
            ({"where": "octet_length(bin) < 50"}, 7 + 1, 0),
            ({"where": "hex(bin)[1:2] = '01'"}, 0, 1),
            ({"limit": 3}, 2, 1),
            ({"shuffle": 7}, 8, 4),
            ({"key": "txt", "on_duplicate": "first"}, 8, 4),
        ]
    ):
        out = str(tmp_path / f"out{number}")
        done = commands.pack(source, out, max_object=50, on_error="skip", **options)
        assert (done.rows, done.failed) == (kept, failed)


def test_a_large_key_is_refused_like_another_value(tmp_path):
    written(tmp_path / "data", "granular")
    with pytest.raises(ReachError) as caught:
        commands.pack(str(tmp_path / "data"), str(tmp_path / "out"), key="bin", max_object=50)
    assert (caught.value.message, caught.value.row) == (REASON.format(size=60, limit=50), 1)


@pytest.mark.parametrize("form", ["granular", "webdataset", "mds", "parquet"])
def test_cat_prints_the_rows_before_a_large_value_and_then_fails(tmp_path, form, capsys):
    key = written(tmp_path / "data", form)
    source = str(tmp_path / "data")
    shard = {
        "granular": "000000/spec.json",
        "webdataset": "00000.tar",
        "mds": "shard.00000.mds",
        "parquet": "00000.parquet",
    }[form]
    assert main(["cat", source, "--max-object", "50", "-c", key, "--bytes", "base64"]) == 0
    assert len(capsys.readouterr().out.splitlines()) == len(SIZES)
    assert main(["cat", source, "--max-object", "50", "-r", "2,3,1,0"]) == 3
    ran = capsys.readouterr()
    assert [json.loads(line)[key] for line in ran.out.splitlines()] == ["k02", "k03"]
    assert ran.err.splitlines() == [
        f"error: {source}/{shard}[1]: column 'bin': {REASON.format(size=60, limit=50)}",
        "hint: Increase --max-object.",
    ]


def test_a_condition_of_cat_can_exclude_rows_with_large_values(tmp_path, capsys):
    written(tmp_path / "data", "mds")
    source = str(tmp_path / "data")
    where = "octet_length(bin) < 50"
    assert main(["cat", source, "--max-object", "50", "--where", where]) == 0
    assert len(capsys.readouterr().out.splitlines()) == sum(size < 50 for size in SIZES)
    assert main(["cat", source, "--max-object", "50", "--where", "key >= 'k03'", "-q"]) == 3
    ran = capsys.readouterr()
    assert [json.loads(line)["key"] for line in ran.out.splitlines()] == ["k03"]
    assert ran.err.splitlines() == [
        f"error: {source}: column 'bin': {REASON.format(size=70, limit=50)}",
        "hint: Increase --max-object.",
    ]


@pytest.mark.parametrize("options", [["--stats"], ["--sample", "12"]])
def test_inspect_reads_a_large_value_only_if_its_column_and_row_are_selected(
    tmp_path, options, capsys
):
    written(tmp_path / "data", "mds")
    source = str(tmp_path / "data")
    limited = ["inspect", source, "--max-object", "50", "--json", *options]
    assert main([*limited, "-c", "key,txt"]) == 0
    assert main([*limited, "--where", "key < 'k01'"]) == 0
    capsys.readouterr()
    assert main(limited) == 3
    ran = capsys.readouterr()
    assert ran.out == ""
    assert json.loads(ran.err)["error"] == {
        "kind": "reach",
        "message": f"column 'bin': {REASON.format(size=60, limit=50)}",
        "where": f"{source}/shard.00000.mds[1]",
        "row": 1,
        "column": "bin",
        "hint": "Increase --max-object.",
        "exit_code": 3,
    }


@pytest.mark.parametrize("command", ["pack", "unpack"])
def test_the_hint_for_a_large_value_names_the_option_that_allows_it(tmp_path, command, capsys):
    written(tmp_path / "data", "mds")
    out = str(tmp_path / "out")
    assert main([command, str(tmp_path / "data"), out, "--key", "key", "--max-object", "50"]) == 3
    assert capsys.readouterr().err.splitlines()[-2:] == [
        f"error: {tmp_path}/data/shard.00000.mds[1]: k01: {REASON.format(size=60, limit=50)}",
        "hint: Increase --max-object, or use --on-error skip to omit such rows.",
    ]


@pytest.mark.parametrize("form", ["granular", "webdataset", "mds", "parquet"])
def test_verify_reports_each_large_value_and_decodes_the_others(tmp_path, form, capsys):
    written(tmp_path / "data", form)
    source = str(tmp_path / "data")
    state = ["--state", str(tmp_path / "state")]
    assert main(["verify", source, "--decode", "-q", *state]) == 0
    assert main(["verify", source, "--max-object", "50", "-q"]) == 0
    capsys.readouterr()
    assert main(["verify", source, "--decode", "--max-object", "50", "--json"]) == 1
    *findings, _ = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(one["kind"], one["row"], one["column"], one["message"]) for one in findings] == [
        ("large", row % 4, "bin", f"column 'bin': {REASON.format(size=size, limit=50)}")
        for row, size in enumerate(SIZES)
        if size > 50
    ]
    assert {one["hint"] for one in findings} == {"Increase --max-object."}


def test_damage_in_a_row_with_a_large_value_is_reported(tmp_path, capsys):
    columns = {"large": "bytes", "image": "jpeg"}
    with flarecli.Writer(str(tmp_path / "data"), columns=columns) as writer:
        writer.write({"large": bytes(60), "image": b"no image"})
    source = str(tmp_path / "data")
    assert main(["verify", source, "--decode", "--max-object", "50"]) == 1
    *findings, _ = capsys.readouterr().out.splitlines()
    row = f"{source}/shard.00000.mds[0]"
    assert [line.partition(" (")[0] for line in findings] == [
        f"{row}: column 'large': {REASON.format(size=60, limit=50)}",
        f"{row}: column 'image': invalid jpeg: not an image",
    ]


@pytest.mark.parametrize("form", ["mds", "ffrecord", "granular", "webdataset"])
def test_verify_reports_large_text_that_the_structure_check_has_read(tmp_path, form, capsys):
    source = str(tmp_path / "data")
    name = "data" if form == "ffrecord" else "text"
    with flarecli.Writer(source, columns={name: "str"}, format=form) as writer:
        writer.write_batch(pa.table({name: ["short", "x" * 60]}))
    assert main(["verify", source, "--decode", "--max-object", "60", "-q"]) == 0
    capsys.readouterr()
    assert main(["verify", source, "--decode", "--max-object", "50", "--json"]) == 1
    (finding,) = [json.loads(line) for line in capsys.readouterr().out.splitlines()][:-1]
    assert (finding["kind"], finding["row"], finding["column"]) == ("large", 1, name)
    assert finding["message"] == f"column {name!r}: {REASON.format(size=60, limit=50)}"
