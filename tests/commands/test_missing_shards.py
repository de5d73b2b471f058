"""inspect: the writer of a dataset, missing shards, and sizes of images."""

import io
import shutil
import statistics
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flarecli import commands
from flarecli.__main__ import main
from flarecli.commands.column_stats import statistics as output

FIXTURES = Path(__file__).parents[2] / "fixtures"


def only(address, **options):
    (stream,) = commands.inspect(str(address), **options).streams
    return stream


def picture(width: int, height: int, kind: str = "PNG") -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, height), (width, height, 9)).save(out, kind)
    return out.getvalue()


def dataset(folder: Path, rows: int = 12, **columns) -> Path:
    pq.write_table(pa.table({"id": list(range(rows)), **columns}), folder / "i.parquet")
    commands.pack(str(folder / "i.parquet"), str(folder / "out"), format="mds", shard_rows=2)
    return folder / "out"


def test_the_writer_is_detected_by_playlist_index_or_layout(tmp_path):
    out = dataset(tmp_path)
    assert only(out).writer == "flare"
    (out / "playlist.yaml").unlink()
    assert only(out).writer == "MDS version 2"
    assert only(out / "shard.00000.mds").writer is None
    listed = tmp_path / "by_hand.yaml"
    listed.write_text(
        "a:\n  headers: {format: mds, writer: my own program 3.1}\n  content: [out/shard.00000.mds]\n"
    )
    assert only(listed).writer == "my own program 3.1"
    layouts = [
        only(FIXTURES / "granular" / part / "alltypes" / "data" / "ds").writer
        for part in ("new", "old", "v1")
    ]
    assert (
        layouts
        == ["granular 0.22 or later (inferred from the layout)"]
        + ["granular 0.21 or earlier (inferred from the layout)"] * 2
    )


def test_missing_shards_are_reported_with_their_rows(tmp_path):
    out = dataset(tmp_path)
    for number in (1, 2, 5):
        (out / f"shard.0000{number}.mds").unlink()
    expected = (
        "shard.00001.mds to shard.00002.mds: missing, rows 2 to 5",
        "shard.00005.mds: missing, rows 10 to 11",
    )
    assert only(out).holes == expected
    assert only(out).as_json()["holes"] == list(expected)
    (out / "playlist.yaml").unlink()
    assert only(out).holes == expected


def test_statistics_and_samples_describe_the_existing_shards(tmp_path):
    out = dataset(tmp_path, data=[bytes(i) for i in range(12)])
    for number in (1, 2, 5):
        (out / f"shard.0000{number}.mds").unlink()
    result = commands.inspect(str(out), stats=True, sample=100)
    existing = [0, 1, 6, 7, 8, 9]
    assert pa.Table.from_batches(result.sample).column("id").to_pylist() == existing
    facts = result.streams[0].stats
    assert facts["id"] == {"rows": 6, "nulls": 0, "min": 0, "max": 9, "distinct": 6}
    assert facts["data"] == {
        "rows": 6,
        "nulls": 0,
        "min_bytes": 0,
        "max_bytes": 9,
        "bytes": sum(existing),
    }
    assert (result.rows, result.asked) == (12, 6)
    assert (
        result.missing
        == tuple(f"{out}/shard.0000{number}.mds" for number in (1, 2, 5))
        == tuple(result.as_json()["missing"])
    )
    assert (
        commands.inspect(str(out)).missing == ()
    )  # without a sample: `holes` lists missing shards


def test_joined_streams_are_read_only_where_no_shard_is_missing(tmp_path):
    for name, values in (
        ("left", {"id": list(range(12))}),
        ("right", {"word": [str(i) for i in range(12)]}),
    ):
        pq.write_table(pa.table(values), tmp_path / f"{name}.parquet")
        commands.pack(
            str(tmp_path / f"{name}.parquet"),
            str(tmp_path / name),
            format="mds",
            shard_rows=3 if name == "left" else 4,
        )
    output = []
    for name, column, rows in (("left", "id: int", 3), ("right", "word: str", 4)):
        shards = sorted((tmp_path / name).glob("*.mds"))
        sizes = [path.stat().st_size for path in shards]
        output += [
            f"{name}:",
            f"  headers: {{format: mds, columns: {{{column}}}, rows: {[rows] * len(shards)}, bytes: {sizes}}}",
            "  content:",
        ]
        output += [f"    - {name}/{path.name}" for path in shards]
    (tmp_path / "both.yaml").write_text("\n".join([*output, ""]))
    (tmp_path / "left" / "shard.00001.mds").unlink()
    (tmp_path / "right" / "shard.00002.mds").unlink()
    result = commands.inspect(str(tmp_path / "both.yaml"), sample=100, stats=True)
    assert pa.Table.from_batches(result.sample).to_pylist() == [
        {"id": i, "word": str(i)} for i in (0, 1, 2, 6, 7)
    ]
    assert [
        one.stats[name]["rows"] for one, name in zip(result.streams, ("id", "word"), strict=True)
    ] == [5, 5]
    assert result.missing == (
        f"{tmp_path}/left/shard.00001.mds",
        f"{tmp_path}/right/shard.00002.mds",
    )


def test_the_screen_and_the_page_name_missing_shards_and_the_exit_code_is_1(tmp_path, capsys):
    out = dataset(tmp_path)
    for number in (1, 4):
        (out / f"shard.0000{number}.mds").unlink()
    assert main(["inspect", str(out), "--stats", "--sample", "99"]) == 3
    output = capsys.readouterr()
    assert output.out.splitlines()[-9:] == ["id", *(str(i) for i in (0, 1, 4, 5, 6, 7, 10, 11))]
    assert output.err == (
        f"error: {out}/shard.00001.mds: shard is missing; 2 shards of the dataset could not be read\n"
        "hint: Download the shards again, or pack again with `flare pack … --overwrite`; `flare verify --quick` lists all missing shards.\n"
    )
    assert main(["inspect", str(out), "--html", str(tmp_path / "page.html")]) == 3
    assert "shard.00001.mds" in (tmp_path / "page.html").read_text()


def test_row_numbers_continue_in_the_next_source(tmp_path):
    complete = dataset(tmp_path)
    torn = Path(shutil.copytree(complete, tmp_path / "torn"))
    (torn / "shard.00000.mds").unlink()
    (one,) = commands.inspect([str(complete), str(torn)]).streams
    assert one.holes == ("shard.00000.mds: missing, rows 12 to 13",)


def test_a_name_that_leaves_the_folder_is_listed_as_missing_and_is_not_opened(tmp_path):
    out = dataset(tmp_path)
    listed = out / "by_hand.yaml"
    listed.write_text(
        "a:\n  headers: {format: mds, columns: {id: int}, rows: [2, 1], bytes: [90, 90]}\n  content: [shard.00000.mds, ../x.mds]\n"
    )
    assert only(listed).holes == (
        "../x.mds: the address '../x.mds' points outside the folder, row 2",
    )


def test_gaps_in_shard_numbers_are_reported(tmp_path):
    out = dataset(tmp_path)
    assert only(f"{out}/shard.0000[01235].mds").holes == ("shard.00004.mds: not listed",)
    assert only(f"{out}/shard.0000[05].mds").holes == (
        "shard.00001.mds to shard.00004.mds: not listed",
    )


@pytest.mark.parametrize(
    "names",
    [["a1.mds", "a9.mds"], ["20260101.mds", "20270101.mds"], ["shard.00000.mds", "shard.1000.mds"]],
)
def test_names_without_shard_numbers_have_no_gaps(tmp_path, names):
    out = dataset(tmp_path)
    for i, name in enumerate(names):
        shutil.copy(out / f"shard.0000{i}.mds", tmp_path / name)
    (one,) = commands.inspect([f"{tmp_path}/{name}" for name in names]).streams
    assert one.holes == ()


def test_image_sizes_are_read_from_headers(tmp_path):
    sizes = [(10 + 3 * i, 40 - i) for i in range(11)]
    values = [
        picture(*size, kind) for size, kind in zip(sizes, ["PNG", "JPEG"] * 6, strict=False)
    ] + [None]
    out = dataset(
        tmp_path,
        image=pa.array([*values[:11], picture(500, 400)[:60]], pa.binary()),
        text=["x"] * 12,
    )
    facts = only(out, stats=True).stats["image"]
    pixels = sorted([*(w * h for w, h in sizes), 500 * 400])
    shown = {w * h: f"{w}x{h}" for w, h in [*sizes, (500, 400)]}
    lengths = [len(value) for value in values[:11]] + [60]
    assert facts == {
        "rows": 12,
        "nulls": 0,
        "min_bytes": min(lengths),
        "max_bytes": max(lengths),
        "bytes": sum(lengths),
        "pictures": 12,
        "smallest": shown[pixels[0]],
        "median": shown[statistics.median_low(pixels)],
        "largest": "500x400",
    }


def test_only_a_sample_of_many_byte_rows_is_read_and_its_size_is_reported(tmp_path, monkeypatch):
    out = dataset(tmp_path, blob=pa.array([bytes([i]) * (i + 1) for i in range(12)], pa.binary()))
    monkeypatch.setitem(output.__globals__, "_MAX_ROWS", 5)
    facts = only(out, stats=True).stats
    assert (facts["id"]["rows"], facts["blob"]["rows"]) == (12, 5)
    assert 5 <= facts["blob"]["bytes"] <= sum(range(8, 13))


def test_invalid_numbers_are_counted_and_the_others_are_described(tmp_path):
    (tmp_path / "i.csv").write_text("id,score\n" + "".join(f"{i},{0.5 * i}\n" for i in range(9)))
    commands.pack(str(tmp_path / "i.csv"), str(tmp_path / "out"), format="csv")
    shard = tmp_path / "out" / "shard.00000.csv"
    shard.write_bytes(
        shard.read_bytes().replace(b"4.0", b"4,0").replace(b"3.5", b"ab5").replace(b"4,0", b"4.0")
    )
    facts = only(tmp_path / "out", stats=True).stats["score"]
    assert {name: facts[name] for name in ("rows", "nulls", "unfit", "min", "max", "distinct")} == {
        "rows": 9,
        "nulls": 0,
        "unfit": 1,
        "min": 0.0,
        "max": 4.0,
        "distinct": 8,
    }


def test_a_missing_companion_file_is_named_instead_of_its_shard(tmp_path):
    pq.write_table(pa.table({"id": range(6)}), tmp_path / "t.parquet")
    out = tmp_path / "out"
    commands.pack(str(tmp_path / "t.parquet"), str(out), format="granular", shard_rows=2)
    for name in ("000000/id.idx", "000001/id.bag", "000002/spec.json"):
        (out / "shards" / name).unlink()
    assert only(out).holes == (
        "shards/000000/id.idx to shards/000002/spec.json: missing, rows 0 to 5",
    )
    (out / "shards/000001").rename(out / "other")
    assert main(["inspect", str(out), "--stats"]) == 3
    result = commands.inspect(str(out), stats=True)
    assert result.missing == (
        f"{out}/shards/000000/id.idx",
        f"{out}/shards/000001/spec.json",
        f"{out}/shards/000002/spec.json",
    )
