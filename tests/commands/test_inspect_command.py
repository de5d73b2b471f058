"""inspect: description of a dataset by its lists and headers."""

import json
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli as flare
from flarecli import commands, read
from flarecli.__main__ import main
from flarecli.errors import MissingError, UsageError
from flarecli.model import Settings
from flarecli.units import format_size
from flarecli.write import Writer

FIXTURES = Path(__file__).parents[2] / "fixtures"


def test_a_packed_folder_is_described_by_its_playlist(plain, tmp_path):
    plain = Path(shutil.copytree(plain, tmp_path / "plain"))
    sizes = sorted(path.stat().st_size for path in plain.glob("*.mds"))
    for path in plain.glob("*.mds"):
        path.write_bytes(bytes(path.stat().st_size))  # opening such a shard would fail
    result = commands.inspect(str(plain))
    stream = {
        "name": "data",
        "format": "mds",
        "rows": 35,
        "shards": 4,
        "bytes": sum(sizes),
        "raw_bytes": sum(sizes),
        "columns": {"id": "int", "image": "jpeg", "text": "str"},
        "types": {"id": "int64", "image": "large_binary", "text": "large_string"},
        "compression": None,
        "hashes": ["sha1", "xxh3_128"],
        "smallest": sizes[0],
        "median": sizes[1],
        "largest": sizes[-1],
        "writer": "flare",
        "holes": [],
    }
    top = {
        name: stream[name]
        for name in ("format", "rows", "shards", "bytes", "raw_bytes", "columns", "writer", "holes")
    }
    assert result.as_json() == {"address": f"{plain}/playlist.yaml", **top, "streams": [stream]}


def test_compression_and_both_sizes_are_reported(zipped):
    (stream,) = commands.inspect(str(zipped)).streams
    assert stream.compression == "zstd"
    assert (
        stream.bytes
        == sum(path.stat().st_size for path in zipped.glob("*.zstd"))
        != stream.raw_bytes
    )
    (bare,) = commands.inspect(f"{zipped}/shard.0000[01].mds.zstd").streams
    assert (bare.rows, bare.shards, bare.compression, bare.raw_bytes, bare.hashes) == (
        20,
        2,
        "zstd",
        None,
        (),
    )


def test_the_addresses_of_the_shards_of_each_version_are_printed_in_the_order_of_the_rows(
    tmp_path, capsys
):
    out, rows = tmp_path / "out", pa.table({"id": range(10)})
    flare.pack(rows, out, format="webdataset", shard_rows=4)
    flare.pack(rows, out, append=True)
    flare.drop(out, rows="5")
    assert main(["inspect", str(out), "--urls"]) == 0
    urls = capsys.readouterr().out.splitlines()
    assert urls[::2] == [f"{out}/00000.tar", f"{out}/00002.tar"]
    values = []
    for url in urls:
        with tarfile.open(url) as tar:
            values += [int(tar.extractfile(name).read()) for name in tar.getnames()]
    assert values == [0, 1, 2, 3, 4, 6, 7, 8, 9, *range(10)]
    assert main(["inspect", f"{out}/playlist.000001.yaml", "--urls", "--json"]) == 0
    (stream,) = json.loads(capsys.readouterr().out)["streams"]
    assert stream["urls"] == [f"{out}/0000{i}.tar" for i in range(3)]


def test_the_addresses_of_streams_follow_each_other_and_one_stream_can_be_chosen(tmp_path, capsys):
    out = tmp_path / "out"
    flare.pack(pa.table({"id": range(4)}), out, shard_rows=2)
    flare.pack(pa.table({"score": range(4)}), out, add_column="score")
    shards = [f"{out}/shard.0000{i}.mds" for i in range(2)]
    (added,) = out.glob("fragment.*/shard.00000.mds")
    for options, expected in (
        ([], [*shards, str(added)]),
        (["-s", "score"], [str(added)]),
        (["-s", "data"], shards),
    ):
        assert main(["inspect", str(out), "--urls", *options]) == 0
        assert capsys.readouterr().out.splitlines() == expected


@pytest.mark.parametrize(
    "options", [["--shards"], ["--stats"], ["--sample", "1"], ["--html", "-"], ["--field", "rows"]]
)
def test_with_urls_only_addresses_are_printed(plain, capsys, options):
    assert main(["inspect", str(plain), "--urls", *options]) == 2
    assert capsys.readouterr().err.splitlines() == [
        f"error: --urls and {options[0]} cannot be combined",
        f"hint: Omit --urls or {options[0]}.",
    ]


def test_an_address_that_data_may_not_name_is_not_printed(tmp_path, capsys):
    path = tmp_path / "list.yaml"
    path.write_text(
        "data:\n  content: [/etc/passwd]\n  headers: {format: mds, rows: [1], bytes: [1]}\n"
    )
    assert main(["inspect", str(path), "--urls"]) == 5
    printed = capsys.readouterr()
    assert printed.out == ""
    assert "/etc/passwd" in printed.err


def test_shards_without_a_list_are_described_by_their_headers(plain, tmp_path):
    result = commands.inspect([f"{plain}/shard.00001.mds", f"{plain}/shard.00002.mds"], shards=True)
    (stream,) = result.streams
    sizes = [(plain / f"shard.0000{i}.mds").stat().st_size for i in (1, 2)]
    assert stream.shard_list == (
        ("shard.00001.mds", 10, sizes[0]),
        ("shard.00002.mds", 10, sizes[1]),
    )
    assert [column.name for column in stream.columns] == ["id", "image", "text"]


def test_the_first_row_of_each_shard_locates_rows(plain):
    (stream,) = commands.inspect(str(plain), shards=True).as_json()["streams"]
    assert [one["first"] for one in stream["shard_list"]] == [0, 10, 20, 30]
    shard = max(
        (one for one in stream["shard_list"] if one["first"] <= 23), key=lambda one: one["first"]
    )
    (batch,) = commands.cat(
        f"{plain}/{shard['url']}", rows=str(23 - shard["first"]), columns=["id"]
    )
    assert batch.to_pylist() == [{"id": 23}]


def test_the_rows_of_joined_streams_are_counted_once(plain, tmp_path):
    lines = "{0}:\n  headers: {{format: mds}}\n  content: [{0}/shard.00000.mds]\n"
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "shard.00000.mds").write_bytes((plain / "shard.00000.mds").read_bytes())
    path = tmp_path / "set.yaml"
    path.write_text(lines.format("one") + lines.format("two"))
    result = commands.inspect(str(path))
    assert ([stream.rows for stream in result.streams], result.rows, result.shards) == (
        [10, 10],
        10,
        2,
    )
    assert commands.inspect(str(path), streams=["two"]).shards == 1
    with pytest.raises(UsageError, match="no stream 'three'"):
        commands.inspect(str(path), streams=["three"])


def test_statistics_cover_every_column(plain):
    (stream,) = commands.inspect(str(plain), stats=True).streams
    assert stream.stats == {
        "image": {"rows": 35, "nulls": 0, "min_bytes": 504, "max_bytes": 504, "bytes": 35 * 504},
        "id": {"rows": 35, "nulls": 0, "min": 0, "max": 34, "distinct": 35},
        "text": {
            "rows": 35,
            "nulls": 0,
            "min_bytes": 9,
            "max_bytes": 10,
            "distinct": 35,
            "min_chars": 9,
            "max_chars": 10,
            "bytes": 340,
        },
    }
    assert stream.as_json()["stats"] == stream.stats


def test_a_sample_shows_rows_and_bytes_as_their_length(plain):
    rows = commands.inspect(str(plain), sample=2).as_json()["sample"]
    assert [row["image"] for row in rows] == [{"bytes": 504}] * 2
    assert all(row["text"] == f"caption {row['id']}" for row in rows)


def test_plain_files_are_a_dataset(tmp_path):
    (tmp_path / "a.txt").write_text("one")
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "c.bin").write_bytes(b"12345")
    result = commands.inspect(str(tmp_path))
    assert (result.format, result.rows, result.bytes) == ("files", 2, 8)


def test_a_missing_address_is_an_error(tmp_path):
    with pytest.raises(MissingError) as caught:
        commands.inspect(str(tmp_path / "none"))
    assert str(caught.value) == f"{tmp_path}/none: no such file or folder"


def test_float16_columns_have_statistics(tmp_path):
    with Writer(f"{tmp_path}/out", columns={"h": "float16"}) as writer:
        for value in (0.5, -2.0, 1.5):
            writer.write({"h": value})
    (column,) = commands.inspect(f"{tmp_path}/out", stats=True).streams[0].stats.values()
    assert (column["min"], column["max"]) == (-2.0, 1.5)


def test_lists_are_counted_by_their_items(tmp_path):
    pq.write_table(pa.table({"id": [1, 2], "words": [["a", "b"], []]}), tmp_path / "i.parquet")
    commands.pack(
        str(tmp_path / "i.parquet"),
        str(tmp_path / "out"),
        format="granular-refs",
        encode={"words": "str[]"},
    )
    (one,) = commands.inspect(str(tmp_path / "out"), stats=True).streams
    assert one.stats["words"] == {"rows": 2, "nulls": 0, "min_items": 0, "max_items": 2}


def test_the_number_of_distinct_values_in_memory_is_limited(tmp_path, monkeypatch):
    from flarecli.commands.column_stats import statistics

    monkeypatch.setitem(statistics.__globals__, "_MAX_DISTINCT", 3)
    with Writer(f"{tmp_path}/out", columns={"few": "int", "many": "str"}) as writer:
        for value in range(9):
            writer.write({"few": value % 3, "many": f"é{value}"})
    few, many = commands.inspect(f"{tmp_path}/out", stats=True).streams[0].stats.values()
    assert few["distinct"] == 3
    assert (many["distinct_over"], "distinct" in many, many["min_chars"], many["max_bytes"]) == (
        3,
        False,
        2,
        3,
    )


def test_the_address_of_a_single_file_is_the_address_of_this_file(plain, tmp_path):
    shard, table = next(plain.glob("*.mds")), tmp_path / "x.parquet"
    pq.write_table(pa.table({"id": [1]}), table)
    assert commands.inspect(str(shard)).address == str(shard)
    assert commands.inspect(str(table)).address == str(table)


def test_the_address_of_a_folder_with_one_file_is_the_folder(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"1")
    assert commands.inspect(str(tmp_path)).address == str(tmp_path)
    bags = str(FIXTURES / "granular/new/rows300/data/ds")
    assert commands.inspect(bags).address == bags


def test_bytes_in_lists_are_shown_by_their_length(tmp_path):
    with Writer(
        str(tmp_path / "d"), format="granular-refs", columns={"parts": "bytes[]"}
    ) as writer:
        writer.write({"parts": [b"ab", b"c"]})
    result = json.loads(json.dumps(commands.inspect(str(tmp_path / "d"), sample=1).as_json()))
    assert result["sample"] == [{"parts": [{"bytes": 2}, {"bytes": 1}]}]


def test_a_format_that_contradicts_the_list_is_refused(out, tmp_path):
    """Only the list is read: its facts would be reported for the wrong format."""
    shards = sorted(str(path) for path in out.glob("*.mds"))
    hint = "Omit -f, which is only for data without a playlist or index."
    for address, at in (
        (out, "playlist.yaml"),
        (out / "playlist.yaml", "playlist.yaml"),
        (out / "index.json", "index.json"),
    ):
        with pytest.raises(UsageError) as caught:
            commands.inspect(str(address), format="granular")
        assert str(caught.value) == f"{out}/{at}: stream 'data' has the format mds, not granular"
        assert (caught.value.hint, caught.value.exit_code) == (hint, 2)
        assert commands.inspect(str(address), format="mds").format == "mds"
    for verb in (
        read.open,
        commands.verify,
        commands.cat,
        commands.playlist,
        lambda *more, **named: commands.unpack(*more, str(tmp_path / "un"), **named),
    ):
        with pytest.raises(UsageError) as caught:
            list(verb(str(out), format="granular"))
        assert (
            str(caught.value)
            == f"{out}/playlist.yaml: stream 'data' has the format mds, not granular"
        )
    assert not (tmp_path / "un").exists()
    assert commands.inspect(shards, format="mds").rows == commands.inspect(str(out)).rows
    bare = tmp_path / "bare.yaml"
    bare.write_text(
        "".join(
            f"{name}:\n  content: [{out.name}/{Path(shards[0]).name}]\n"
            for name in ("data", "more")
        )
    )
    text = bare.read_text().replace("more:\n", "more:\n  headers: {format: csv}\n")
    (tmp_path / "half.yaml").write_text(text)
    assert commands.inspect(str(bare), format="mds", streams=["data"]).format == "mds"
    assert (
        commands.inspect(str(tmp_path / "half.yaml"), format="mds", streams=["data"]).format
        == "mds"
    )
    with pytest.raises(UsageError) as caught:
        commands.inspect(str(tmp_path / "half.yaml"), format="mds")
    assert str(caught.value) == f"{tmp_path}/half.yaml: stream 'more' has the format csv, not mds"


@pytest.fixture
def scores(tmp_path):
    """A dataset of 40 rows in shards of 10 rows; row i has the id i and the score 39 - i."""
    with Writer(
        str(tmp_path / "scores"),
        columns={"id": "int", "score": "int", "text": "str", "data": "bytes"},
        settings=Settings(shard_rows=10),
    ) as writer:
        for i in range(40):
            writer.write({"id": i, "score": 39 - i, "text": f"row {i}", "data": bytes([i])})
    return str(tmp_path / "scores")


@pytest.mark.parametrize(
    ("options", "ids"),
    [
        ({"rows": "3:7"}, [3, 4, 5, 6]),
        ({"rows": "::15"}, [0, 15, 30]),
        ({"where": "score < 3"}, [37, 38, 39]),
        ({"where": "score % 13 = 0"}, [0, 13, 26, 39]),
        ({"limit": 2}, [0, 1]),
        ({"limit": 0}, []),
        ({"rows": "5:35", "where": "score > 10 and id % 2 = 0", "limit": 4}, [6, 8, 10, 12]),
        ({"where": "id > 100"}, []),
        ({}, list(range(40))),
    ],
)
def test_rows_where_and_limit_select_the_rows_of_statistics_and_samples(scores, options, ids):
    found = commands.inspect(scores, stats=True, sample=1.0, **options)
    assert (found.rows, found.selected) == (40, len(ids) if options else None)
    (stream,) = found.streams
    assert [stream.stats[name]["rows"] for name in ("id", "text", "data")] == [len(ids)] * 3
    assert (stream.stats["id"].get("min"), stream.stats["id"].get("max")) == (
        min(ids, default=None),
        max(ids, default=None),
    )
    assert stream.stats["text"].get("bytes", 0) == sum(len(f"row {i}") for i in ids)
    assert list(found.sample_rows) == ids
    assert [row["id"] for batch in found.sample for row in batch.to_pylist()] == ids


def test_columns_selects_the_columns_of_the_description_statistics_and_sample(scores):
    found = commands.inspect(
        scores, columns=["data", "score"], where="id < 2", stats=True, sample=5
    ).as_json()
    (stream,) = found["streams"]
    assert stream["columns"] == found["columns"] == {"data": "bytes", "score": "int"}
    assert list(stream["types"]) == list(stream["stats"]) == ["data", "score"]
    assert found["sample"] == [
        {"data": {"bytes": 1}, "score": 39},
        {"data": {"bytes": 1}, "score": 38},
    ]


def test_the_number_of_selected_rows_is_printed(scores, capsys):
    assert main(["inspect", scores, "--where", "score < 3", "-q"]) == 0
    size = sum(path.stat().st_size for path in Path(scores).glob("*.mds"))
    assert capsys.readouterr().out == (
        f"{scores}/playlist.yaml: mds, 40 rows, 4 shards, {format_size(size)}; 3 rows selected\n"
    )
    assert main(["inspect", scores, "--rows", "5", "--field", "selected"]) == 0
    assert capsys.readouterr().out == "1\n"


def test_selected_rows_of_missing_shards_are_omitted(scores):
    (Path(scores) / "shard.00001.mds").unlink()
    found = commands.inspect(scores, rows="8:22", sample=1.0, stats=True)
    assert (found.selected, found.sample_rows) == (4, (8, 9, 20, 21))
    assert found.missing == (f"{scores}/shard.00001.mds",)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            ["-c", "idd"],
            "--columns: no column 'idd'",
            "Did you mean id? Choose from data, id, score, text.",
        ),
        (
            ["--where", "scor > 1"],
            "--where: no column 'scor'",
            "Did you mean score? Choose from data, id, score, text.",
        ),
        (["-r", "40"], "row 40 is outside the data, which has 40 rows", ""),
        (
            ["--urls", "-c", "id"],
            "--urls and --columns cannot be combined",
            "Omit --urls or --columns.",
        ),
        (
            ["--urls", "--where", "id > 1"],
            "--urls and --where cannot be combined",
            "Omit --urls or --where.",
        ),
        (["--limit", "-1"], "--limit: expected at least 0, got -1", ""),
    ],
)
def test_invalid_selections_of_inspect_are_refused(scores, options, message, hint, capsys):
    assert main(["inspect", scores, *options]) == 2
    ran = capsys.readouterr()
    lines = [f"error: {message}", *([f"hint: {hint}"] if hint else [])]
    assert (ran.out, ran.err.splitlines()) == ("", lines)
