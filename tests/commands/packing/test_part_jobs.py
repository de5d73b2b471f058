"""`--part K/N` packs one part in an independent job, and `--join` joins the parts: the bytes are
those of `--part-rows`.
"""

import io
import json
import shutil
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
from PIL import Image

import flarecli
from flarecli import commands, formats
from flarecli.__main__ import main
from flarecli.commands.options import PackOptions
from flarecli.commands.packing import parts
from flarecli.commands.packing.media import MediaOptions
from flarecli.commands.packing.plan import PackTask
from flarecli.commands.packing.run import Packed, planned
from flarecli.errors import (
    BusyError,
    FormatError,
    MissingError,
    NoRowsError,
    UnfinishedError,
    UsageError,
)
from flarecli.storage import locate
from flarecli.storage.fsspec_store import FsspecStore
from flarecli.write import claim
from tests.commands.packing.note_collector import NoteCollector
from tests.kills import killed_at_each_step
from tests.outputs import files_of, state_of

ROWS = 95
TABLE = pa.table(
    {
        "id": [f"k{i:02}" for i in range(ROWS)],
        "n": list(range(ROWS)),
        "text": ["é" * (i % 40) for i in range(ROWS)],
    }
)


HINT = "Use the same source and options for all parts, or specify another folder."
UNFINISHED_HINT = "Run `flare pack … --part K/4` for each missing part, then `flare pack … --join`."


@pytest.fixture
def index(tmp_path: Path) -> str:
    path = tmp_path / "index.parquet"
    pq.write_table(TABLE, path, row_group_size=10)
    return str(path)


def pack_jobs(source: Any, out: Path | str, count: int, **options: Any) -> Packed:
    """Pack all parts, the last part first and one part twice, and join them."""
    for number in (*range(count, 0, -1), 1):
        flarecli.pack(source, out, part=f"{number}/{count}", **options)
    return flarecli.pack(source, out, join=True, **options)


@pytest.mark.parametrize("format", formats.names(writable=True))
@pytest.mark.parametrize("options", [{"shard_size": 700}, {"shard_rows": 7}], ids=str)
def test_the_bytes_of_joined_parts_are_the_bytes_of_one_pack_in_parts(
    index: str, tmp_path: Path, format: str, options: dict[str, Any]
) -> None:
    one, jobs = tmp_path / "one", tmp_path / "jobs"
    if format == "ffrecord":
        options = {**options, "columns": ["text"]}
    elif format == "granular-refs":  # stores no empty values
        options = {**options, "columns": ["n"]}
    elif format == "xsv":
        options = {**options, "separator": ";"}
    whole = flarecli.pack(index, one, format=format, part_rows=24, **options)
    packed = pack_jobs(index, jobs, 4, format=format, **options)
    assert files_of(jobs) == files_of(one)
    assert (packed.rows, packed.shards, packed.bytes) == (ROWS, whole.shards, whole.bytes)
    assert packed.columns == whole.columns
    assert not (jobs / ".flare").exists()
    assert list(flarecli.verify(str(jobs))) == []


def test_fetched_and_resized_pictures_have_the_same_bytes(tmp_path: Path) -> None:
    for i in range(7):
        Image.new("RGB", (40 + i, 30), (i, 80, 160)).save(tmp_path / f"{i}.png")
    source = tmp_path / "i.jsonl"
    source.write_text("".join(json.dumps({"id": i, "url": f"{i}.png"}) + "\n" for i in range(7)))
    options: dict[str, Any] = {
        "fetch": ["url:image"],
        "key": "id",
        "resize": 16,
        "media_info": True,
    }
    flarecli.pack(source, tmp_path / "one", part_rows=3, compress="zstd", **options)
    pack_jobs(source, tmp_path / "jobs", 3, compress="zstd", **options)
    assert files_of(tmp_path / "jobs") == files_of(tmp_path / "one")


def test_limit_divides_the_first_rows(index: str, tmp_path: Path) -> None:
    flarecli.pack(index, tmp_path / "one", part_rows=17, limit=50)
    packed = pack_jobs(index, tmp_path / "jobs", 3, limit=50)
    assert packed.rows == 50
    assert files_of(tmp_path / "jobs") == files_of(tmp_path / "one")


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("csv", {"where": "n % 3 <> 0"}),
        ("rows", {"where": "n > 40", "limit": 31}),
        ("parquet", {"shuffle": 7}),
        ("rows", {"shuffle": 7, "where": "n % 2 = 0", "limit": 40, "key": "id"}),
        ("parquet", {"where": "SELECT id, n * 2 AS n FROM dataframe WHERE n > 50"}),
        ("csv", {"where": "SELECT id, n FROM dataframe ORDER BY n % 10, n DESC LIMIT 44"}),
    ],
    ids=str,
)
def test_the_selected_rows_are_divided_after_where_limit_and_shuffle(
    index: str, tmp_path: Path, kind: str, options: dict[str, Any]
) -> None:
    source = index
    if kind == "csv":
        source = str(tmp_path / "index.csv")
        pyarrow.csv.write_csv(TABLE, source)
    elif kind != "parquet":
        source = flarecli.pack(index, tmp_path / "dataset", shard_rows=20).playlist
        options = {**options, "rows": "::-1"}
    plain = flarecli.pack(source, tmp_path / "plain", **options)
    packed = pack_jobs(source, tmp_path / "jobs", 4, shard_rows=5, **options)
    assert packed.rows == plain.rows
    assert flarecli.open(packed.playlist)[:] == flarecli.open(plain.playlist)[:]
    size = -(-plain.rows // 4)
    parts_rows = [len(flarecli.open(tmp_path / f"jobs/{part:05}")) for part in range(4)]
    assert parts_rows == [size, size, size, plain.rows - 3 * size]
    assert list(flarecli.verify(packed.playlist)) == []


@pytest.mark.parametrize(
    ("options", "row"),
    [
        ({"where": "n % 2 = 0"}, 24),
        ({"where": "n % 2 = 0", "limit": 20}, 10),
        ({"where": "n % 2 = 0", "key": "id"}, 24),
        ({"where": "n % 2 = 0", "shuffle": 1}, 0),
        ({"where": "SELECT * FROM dataframe WHERE n % 2 = 0"}, 0),
    ],
    ids=str,
)
def test_a_part_of_matching_rows_is_read_from_its_first_row(
    index: str, tmp_path: Path, options: dict[str, Any], row: int
) -> None:
    """A shuffle and a query are repeated from row 0, because their rows may come from any row."""
    task = PackTask(PackOptions(index, tmp_path / "out", part="2/4", **options), MediaOptions())
    plan = planned(task, NoteCollector())
    division = parts._divided(plan, 4)
    part = parts._PartTasks(task, task.out, division)[1]
    read = parts._from_first_row(part, plan.source)
    assert read.selection is not None
    assert (read.selection.row, read.selection.first) == (row, division.part_rows)


def test_a_missing_part_is_reported_with_the_command_that_packs_it(
    index: str, tmp_path: Path
) -> None:
    out = tmp_path / "out"
    for number in (2, 3, 5, 6, 7):
        flarecli.pack(index, out, part=f"{number}/8")
    before = files_of(out)
    with pytest.raises(UnfinishedError) as caught:
        flarecli.pack(index, out, join=True)
    assert str(caught.value) == f"{out}: 3 of 8 parts are not packed yet: 1,4,8"
    assert (
        caught.value.hint
        == "Run `flare pack … --part K/8` for K = 1,4,8, then `flare pack … --join`."
    )
    for number in (1, 8):
        flarecli.pack(index, out, part=f"{number}/8")
    (out / "00006/playlist.yaml").unlink()
    (out / "00004/playlist.yaml").unlink()
    (out / "00005/playlist.yaml").unlink()
    with pytest.raises(UnfinishedError) as caught:
        flarecli.pack(index, out, join=True, dry_run=True)
    assert caught.value.message == "4 of 8 parts are not packed yet: 4-7"
    for name in ("00004", "00005", "00006"):
        (out / f"{name}/playlist.yaml").write_bytes(before[f"{name}/playlist.yaml"])
    with pytest.raises(UnfinishedError) as caught:
        flarecli.pack(index, out, join=True)
    assert caught.value.message == "part 4/8 is not packed yet"
    assert caught.value.hint == "Run `flare pack … --part 4/8`, then `flare pack … --join`."
    assert not (out / "playlist.yaml").exists()
    flarecli.pack(index, out, part="4/8")
    assert flarecli.pack(index, out, join=True).rows == ROWS


def test_the_command_line_prints_parts_joins_and_missing_parts(
    index: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "out")
    assert main(["pack", index, out, "--part", "1/2", "-q"]) == 0
    assert capsys.readouterr().out == f"{out}/00000/playlist.yaml\n"
    assert main(["pack", index, out, "--join"]) == 4
    assert capsys.readouterr().err == (
        f"error: {out}: part 2/2 is not packed yet\n"
        "hint: Run `flare pack … --part 2/2`, then `flare pack … --join`.\n"
    )
    assert main(["pack", index, out, "--part", "2/2", "--json"]) == 0
    part = json.loads(capsys.readouterr().out)
    assert (part["playlist"], part["rows"]) == (f"{out}/00001/playlist.yaml", 47)
    assert main(["pack", index, out, "--part", "2/2"]) == 0
    assert capsys.readouterr().err.startswith(
        "part 2/2 was already packed\npacked 47 rows in 1 shard, "
    )
    assert main(["pack", index, out, "--join", "--resume"]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}/playlist.yaml\n"
    assert printed.err.startswith("joined 95 rows in 2 shards, ")
    assert main(["pack", index, out, "--join", "--json"]) == 0
    joined = json.loads(capsys.readouterr().out)
    assert (joined["rows"], joined["resumed_rows"], joined["shards"]) == (95, 95, 2)


def test_a_packed_part_is_not_packed_again(index: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    first = flarecli.pack(index, out, part="2/3")

    def times() -> dict[Path, int]:
        return {
            path: path.stat().st_mtime_ns for path in out.rglob("*") if ".flare" not in str(path)
        }

    before, notes = times(), NoteCollector()
    again = flarecli.pack(index, out, part="2/3", progress=notes)
    assert notes.notes == ["part 2/3 was already packed"]
    assert (again.rows, again.resumed_rows, first.resumed_rows) == (32, 32, 0)
    assert times() == before
    for number in (1, 3):
        flarecli.pack(index, out, part=f"{number}/3")
    joined = flarecli.pack(index, out, join=True)
    before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
    assert flarecli.pack(index, out, join=True) == joined
    assert flarecli.pack(index, out, join=True, dry_run=True) == joined
    assert flarecli.pack(index, out, part="2/3").rows == 32
    assert before == {path: path.stat().st_mtime_ns for path in out.rglob("*")}


@pytest.mark.parametrize(
    ("options", "difference"),
    [
        ({"part": "2/5"}, "--part K/4, not --part K/5"),
        ({"shard_rows": 3}, "shard_rows null, not 3"),
        ({"format": "tfrecord"}, 'format "mds", not "tfrecord"'),
        ({"where": "n > 3"}, 'where null, not "n > 3"'),
        ({"shuffle": 3}, "shuffle null, not 3"),
        ({"limit": 93}, "limit null, not 93"),
        ({"encode": {"n": "uint8"}}, 'n null, not "uint8"'),
    ],
    ids=str,
)
def test_a_part_with_other_options_is_refused_by_name(
    index: str, tmp_path: Path, options: dict[str, Any], difference: str
) -> None:
    out = tmp_path / "out"
    flarecli.pack(index, out, part="1/4")
    before = files_of(out)
    for more in (
        {"part": "2/4", **options},
        *([] if "part" in options else [{**options, "join": True}]),
    ):
        with pytest.raises(UsageError) as caught:
            flarecli.pack(index, out, **more)
        assert caught.value.message == f"the unfinished pack was started with {difference}"
        assert caught.value.hint == HINT
    after = files_of(out)
    before.pop(".flare/lock")
    after.pop(".flare/lock")
    assert after == before


def test_a_changed_source_is_refused(index: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in (1, 2):
        flarecli.pack(index, out, part=f"{number}/2")
    pq.write_table(TABLE.set_column(1, "n", pa.array(range(1, ROWS + 1))), index)
    for options in ({"part": "1/2"}, {"join": True}):
        with pytest.raises(UsageError) as caught:
            flarecli.pack(index, out, **options)
        assert (
            str(caught.value)
            == f"{out}: the unfinished pack was started with another source, or before the source was changed"
        )
        assert caught.value.hint == HINT
    assert not (out / "playlist.yaml").exists()


@pytest.mark.parametrize("other", [{"shard_rows": 9}, {"encode": {"n": "uint8"}}, "source"])
def test_a_part_that_was_copied_from_another_pack_is_refused_by_name(
    index: str, tmp_path: Path, other: Any
) -> None:
    out = tmp_path / "out"
    for number in (1, 2, 3):
        flarecli.pack(index, out, part=f"{number}/3")
    if other == "source":
        pq.write_table(TABLE.slice(0, ROWS), tmp_path / "other.parquet", row_group_size=9)
        flarecli.pack(tmp_path / "other.parquet", tmp_path / "b", part="2/3")
    else:
        flarecli.pack(index, tmp_path / "b", part="2/3", **other)
    shutil.rmtree(out / "00001")
    shutil.copytree(tmp_path / "b/00001", out / "00001")
    for options in ({"join": True}, {"part": "2/3"}, {"join": True, "dry_run": True}):
        with pytest.raises(UsageError) as caught:
            flarecli.pack(index, out, **options)
        assert (
            str(caught.value)
            == f"{out}/00001: the folder contains a dataset from a different source or with different options"
        )
        assert (
            caught.value.hint
            == "Move the folder 00001 elsewhere, and run `flare pack … --part 2/3` again."
        )
    shutil.rmtree(out / "00001")
    flarecli.pack(index, out, part="2/3")
    flarecli.pack(index, out, join=True)
    flarecli.pack(index, tmp_path / "one", part_rows=32)
    assert files_of(out) == files_of(tmp_path / "one")


def test_a_part_with_a_missing_shard_is_reported_by_the_join(index: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for number in (1, 2, 3):
        flarecli.pack(index, out, part=f"{number}/3")
    (out / "00002/shard.00000.mds").unlink()
    with pytest.raises(MissingError) as caught:
        flarecli.pack(index, out, join=True)
    assert caught.value.where == f"{out}/00002/shard.00000.mds"
    assert (
        caught.value.hint
        == "Move the folder 00002 elsewhere, and run `flare pack … --part 3/3` again."
    )


def test_a_missing_shard_of_a_joined_dataset_is_reported(index: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    pack_jobs(index, out, 3)
    (out / "00002/shard.00000.mds").unlink()
    for options in ({"join": True}, {"part": "2/3"}):
        with pytest.raises(MissingError) as caught:
            flarecli.pack(index, out, **options)
        assert caught.value.where == f"{out}/00002/shard.00000.mds"
        assert caught.value.hint == "Use --overwrite to pack the dataset again."


def test_parts_copied_from_several_machines_are_joined(index: str, tmp_path: Path) -> None:
    """Each job of a CI matrix has its own disk; the last job downloads all folders into one."""
    for number in (1, 2, 3):
        flarecli.pack(index, tmp_path / f"disk{number}/out", part=f"{number}/3")
        shutil.copytree(tmp_path / f"disk{number}/out", tmp_path / "out", dirs_exist_ok=True)
        shutil.copytree(
            tmp_path / f"disk{number}/out",
            tmp_path / "visible",
            dirs_exist_ok=True,
            ignore=shutil.ignore_patterns(".flare"),
        )
    flarecli.pack(index, tmp_path / "out", join=True)
    flarecli.pack(index, tmp_path / "one", part_rows=32)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "one")
    with pytest.raises(UnfinishedError) as caught:
        flarecli.pack(index, tmp_path / "visible", join=True)
    assert caught.value.message == "found no parts of this pack"
    assert (
        caught.value.hint
        == "Run `flare pack … --part K/N` for each part first. If you have copied the parts, also copy the hidden folder .flare."
    )


def test_a_join_without_parts_creates_nothing(index: str, tmp_path: Path) -> None:
    for out in (tmp_path / "out", tmp_path / "empty"):
        if out.name == "empty":
            out.mkdir()
        with pytest.raises(UnfinishedError) as caught:
            flarecli.pack(index, out, join=True)
        assert caught.value.message == "found no parts of this pack"
    assert not (tmp_path / "out").exists()
    assert not list((tmp_path / "empty").iterdir())


def test_a_finished_dataset_is_neither_extended_nor_joined(index: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flarecli.pack(index, out)
    before = files_of(out)
    for options in ({"part": "1/2"}, {"join": True}):
        with pytest.raises(UsageError) as caught:
            flarecli.pack(index, out, **options)
        assert (
            caught.value.message
            == "the folder contains a dataset from a different source or with different options"
        )
    assert files_of(out) == before
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine/notes.txt").write_text("mine")
    with pytest.raises(UsageError) as caught:
        flarecli.pack(index, tmp_path / "mine", part="1/2")
    assert caught.value.message == "output folder is not empty"
    assert caught.value.hint == HINT
    assert files_of(tmp_path / "mine") == {"notes.txt": b"mine"}


def test_an_unfinished_pack_of_another_kind_is_refused(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(*_: Any) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(parts.parts, "join", interrupted)
        flarecli.pack(index, tmp_path / "rows", part_rows=24)
    with pytest.raises(UsageError) as caught:
        flarecli.pack(index, tmp_path / "rows", part="2/4")
    assert (
        caught.value.message == "the unfinished pack was started with --part-rows, not --part K/4"
    )
    with pytest.raises(UnfinishedError) as found:
        flarecli.pack(index, tmp_path / "rows", join=True)
    assert found.value.message == "found no parts of this pack"
    flarecli.pack(index, tmp_path / "jobs", part="2/4")
    for options in ({"part_rows": 24}, {}):
        with pytest.raises(UsageError) as caught:
            flarecli.pack(index, tmp_path / "jobs", resume=True, **options)
        assert caught.value.message == "the unfinished pack was started with --part K/4"
        assert caught.value.hint == UNFINISHED_HINT
        with pytest.raises(UnfinishedError) as found:
            flarecli.pack(index, tmp_path / "jobs", **options)
        assert found.value.hint == UNFINISHED_HINT
    flarecli.pack(index, tmp_path / "jobs", overwrite=True)
    assert len(flarecli.open(tmp_path / "jobs")) == ROWS


def test_readers_report_an_unjoined_folder_as_an_unfinished_pack(
    index: str, tmp_path: Path
) -> None:
    out = str(tmp_path / "out")
    for number in range(1, 5):
        flarecli.pack(index, out, part=f"{number}/4")
    for read in (
        lambda: flarecli.open(out),
        lambda: flarecli.inspect(out),
        lambda: list(flarecli.cat(out)),
        lambda: commands.reindex(out),
    ):
        with pytest.raises(UnfinishedError) as caught:
            read()
        assert str(caught.value) == f"{out}: folder contains an unfinished pack"
        assert caught.value.hint == UNFINISHED_HINT
    (finding,) = flarecli.verify(out)
    assert (finding.message, finding.hint) == (
        "folder contains an unfinished pack",
        UNFINISHED_HINT,
    )
    assert len(flarecli.open(f"{out}/00001")) == 24


def test_a_key_used_in_two_parts_is_found_by_the_join(tmp_path: Path) -> None:
    source, out = str(tmp_path / "i.parquet"), tmp_path / "out"
    pq.write_table(pa.table({"id": [*range(30), 4], "n": range(31)}), source)
    for number in (1, 2, 3):
        flarecli.pack(source, out, part=f"{number}/3", key="id")
    for dry_run in (True, False):
        with pytest.raises(FormatError) as caught:
            flarecli.pack(source, out, join=True, key="id", dry_run=dry_run)
        assert str(caught.value) == f"{source}[30]: key '4' was used in row 4"
        assert (
            caught.value.hint
            == "Make the keys unique, or pack all parts with --on-duplicate keep into another folder."
        )
    with pytest.raises(UnfinishedError):
        flarecli.open(out)
    packed = pack_jobs(source, tmp_path / "kept", 3, key="id", on_duplicate="keep")
    assert packed.rows == 31


def test_a_key_used_twice_in_one_part_ends_its_job(tmp_path: Path) -> None:
    source = str(tmp_path / "i.parquet")
    pq.write_table(pa.table({"id": [0, 1, 2, 3, 4, 4], "n": range(6)}), source)
    flarecli.pack(source, tmp_path / "out", part="1/2", key="id")
    with pytest.raises(FormatError) as caught:
        flarecli.pack(source, tmp_path / "out", part="2/2", key="id")
    assert str(caught.value) == f"{source}[5]: key '4' was used in row 4"


def test_failed_rows_of_all_parts_are_listed_by_the_join(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = str(tmp_path / "i.parquet")
    numbers = [300 if i in (3, 25, 29, *range(30, 40)) else i for i in range(40)]
    pq.write_table(pa.table({"n": numbers}), source)
    options: dict[str, Any] = {"encode": {"n": "uint8"}, "on_error": "skip"}
    flarecli.pack(source, tmp_path / "one", part_rows=10, **options)
    packed = pack_jobs(source, tmp_path / "jobs", 4, **options)
    assert (packed.rows, packed.failed, dict(packed.reasons)) == (27, 13, {"value": 13})
    assert files_of(tmp_path / "jobs") == files_of(tmp_path / "one")
    assert len((tmp_path / "jobs/failed.jsonl").read_bytes().splitlines()) == 13
    argv = ["pack", source, str(tmp_path / "jobs"), "--encode", "n=uint8", "--on-error", "skip"]
    for dry_run in (False, True):
        again = flarecli.pack(source, tmp_path / "jobs", join=True, dry_run=dry_run, **options)
        assert (again.failed, again.reasons) == (13, {"value": 13})
    again = flarecli.pack(source, tmp_path / "jobs", part="3/4", **options)
    assert (again.failed, again.reasons) == (2, {"value": 2})
    assert main([*argv, "--join", "-q"]) == 1
    assert main([*argv, "--part", "4/4", "-q"]) == 1
    assert main([*argv, "--part", "2/4", "-q"]) == 0


def test_parts_without_rows_are_not_reported_as_missing(index: str, tmp_path: Path) -> None:
    notes, out = NoteCollector(), tmp_path / "out"
    for number in (1, 2, 3, 4, 5):
        packed = flarecli.pack(index, out, part=f"{number}/5", limit=3, progress=notes)
        assert (packed.rows, packed.playlist) == (
            (1, f"{out}/0000{number - 1}/playlist.yaml") if number < 4 else (0, "")
        )
    assert notes.notes == [
        f"part {number}/5 contains no rows, because 3 rows are divided into 3 parts of 1 row"
        for number in (4, 5)
    ]
    assert flarecli.pack(index, out, join=True, limit=3).rows == 3
    flarecli.pack(index, tmp_path / "one", part_rows=1, limit=3)
    assert files_of(out) == files_of(tmp_path / "one")


def test_a_selection_without_rows_is_an_error_and_leaves_no_files(
    index: str, tmp_path: Path
) -> None:
    with pytest.raises(NoRowsError) as caught:
        flarecli.pack(index, tmp_path / "out", part="1/2", where="n > 1000")
    assert caught.value.message == "no rows to pack"
    assert not (tmp_path / "out").exists()


def test_a_dry_run_of_a_part_and_of_a_join_write_nothing(index: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    for selection in ({}, {"where": "n > 10"}, {"shuffle": 3}, {"where": "n > 10", "key": "id"}):
        would = flarecli.pack(index, out, part="2/3", shard_rows=5, dry_run=True, **selection)
        assert not out.exists()
        packed = flarecli.pack(index, out, part="2/3", shard_rows=5, **selection)
        assert (would.rows, would.shards, would.dry_run) == (packed.rows, packed.shards, True)
        shutil.rmtree(out)
    assert flarecli.pack(index, out, part="3/3", limit=2, dry_run=True).rows == 0
    for number in (1, 2, 3):
        flarecli.pack(index, out, part=f"{number}/3")
    before = files_of(out)
    would = flarecli.pack(index, out, join=True, dry_run=True)
    assert files_of(out) == before
    packed = flarecli.pack(index, out, join=True)
    assert (would.rows, would.shards, would.bytes, would.columns) == (
        packed.rows,
        packed.shards,
        packed.bytes,
        packed.columns,
    )
    assert (would.dry_run, would.estimated) == (True, False)


HELP = "Parts are numbered from 1, so 3/7 is the third of seven."


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        *(
            ({"part": text}, f"--part: expected K/N with K from 1 to N, got '{text}'", HELP)
            for text in ("0/4", "5/4", "x", "1/0", "-1/4", "")
        ),
        (
            {"part": (4, 4)},
            "--part: expected K/N with K from 1 to N, got 5/4",
            "In Python, part=(0, 3) is the first of three parts, like part='1/3'.",
        ),
        (
            {"part": "1/2", "join": True},
            "--part and --join cannot be combined",
            "Pack all parts with --part first, then run the same command with --join instead.",
        ),
        (
            {"part": "1/2", "overwrite": True},
            "--overwrite and --part cannot be combined, because OUT contains the parts of other jobs",
            "Specify another folder, or remove the folder and pack all parts again.",
        ),
        (
            {"join": True, "overwrite": True},
            "--overwrite and --join cannot be combined, because OUT contains the parts of other jobs",
            "Specify another folder, or remove the folder and pack all parts again.",
        ),
        (
            {"join": True, "part_rows": 3},
            "--part-rows and --join cannot be combined",
            "Omit --part-rows, because N of --part K/N determines the size of a part.",
        ),
        (
            {"part": "1/2", "engine": "ray"},
            "--engine and --part cannot be combined",
            "Use --part-rows with --engine ray.",
        ),
        (
            {"part": "1/2", "key": "id", "on_duplicate": "first"},
            "`--on-duplicate first` needs the keys of all parts",
            "Use `--on-duplicate error` or `--on-duplicate keep`, or omit --part.",
        ),
    ],
    ids=str,
)
def test_invalid_combinations_are_refused_before_anything_is_written(
    index: str, tmp_path: Path, options: dict[str, Any], message: str, hint: str
) -> None:
    with pytest.raises(UsageError) as caught:
        flarecli.pack(index, tmp_path / "out", **options)
    assert (caught.value.message, caught.value.hint) == (message, hint)
    assert not (tmp_path / "out").exists()


def test_standard_input_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(b"n,m\n1,2\n3,4\n")))
    with pytest.raises(UsageError) as caught:
        flarecli.pack("-", tmp_path / "out", part="1/2")
    assert caught.value.message == "a stream cannot be read in parts"


def test_a_python_object_is_packed_in_parts(tmp_path: Path) -> None:
    flarecli.pack(TABLE, tmp_path / "one", part_rows=32)
    pack_jobs(TABLE, tmp_path / "jobs", 3)
    assert files_of(tmp_path / "jobs") == files_of(tmp_path / "one")


def test_two_jobs_that_pack_the_same_part_are_not_mixed(index: str, tmp_path: Path) -> None:
    out = tmp_path / "out"
    flarecli.pack(index, out, part="1/3")
    other = claim(out / "00001")
    try:
        with pytest.raises(BusyError) as caught:
            flarecli.pack(index, out, part="2/3")
        assert caught.value.message.startswith("another pack is writing to this folder (process ")
        assert caught.value.where == f"{out}/00001"
        assert flarecli.pack(index, out, part="3/3").rows == 31
        with pytest.raises(UnfinishedError):
            flarecli.pack(index, out, join=True)
    finally:
        other.abandon(keep=False)
    flarecli.pack(index, out, part="2/3")
    assert flarecli.pack(index, out, join=True).rows == ROWS


def test_a_job_waits_while_another_job_writes_the_journal(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, notes = tmp_path / "out", NoteCollector()
    other = claim(out)
    threading.Timer(1.0, other.abandon, [False]).start()  # longer than the wait without a note
    flarecli.pack(index, out, part="2/3", progress=notes)
    assert len(notes.notes) == 1
    assert notes.notes[0].startswith(
        f"waiting: {out}: another pack is writing to this folder (process "
    )
    monkeypatch.setattr(parts, "_MAX_WAIT_S", 0.1)
    other = claim(out, resume=True)
    with pytest.raises(BusyError):
        flarecli.pack(index, out, part="1/3")
    other.abandon(True)


def test_jobs_that_start_at_the_same_time_share_one_journal(index: str, tmp_path: Path) -> None:
    out = tmp_path / "jobs"
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(flarecli.pack, index, out, part=f"{number}/4", shard_size=700)
            for number in (1, 2, 3, 4)
        ]
        assert sum(job.result().rows for job in jobs) == ROWS
    with ThreadPoolExecutor(2) as pool:
        joins = [pool.submit(flarecli.pack, index, out, join=True, shard_size=700) for _ in "ab"]
        assert joins[0].result() == joins[1].result()
    flarecli.pack(index, tmp_path / "one", part_rows=24, shard_size=700)
    assert files_of(out) == files_of(tmp_path / "one")


@pytest.mark.parametrize("job", ["join", "2/4"])
def test_a_job_killed_at_any_step_can_be_run_again(index: str, tmp_path: Path, job: str) -> None:
    start, wanted = tmp_path / "start", tmp_path / "wanted"
    options: dict[str, Any] = {"join": True} if job == "join" else {"part": job}
    for number in (1, 2, 3, 4) if job == "join" else (1,):
        flarecli.pack(index, start, part=f"{number}/4", shard_rows=20)

    def run(out: Path) -> None:
        flarecli.pack(index, out, shard_rows=20, **options)

    shutil.copytree(start, wanted)
    run(wanted)
    expected, states = state_of(wanted), list[Any]()
    for step, out, is_complete in killed_at_each_step(run, start):
        found = state_of(out)
        if found in states:
            continue  # the job was completed from the same files after an earlier kill
        states.append(found)
        if "playlist.yaml" in found and ".flare" not in found:
            assert found == expected, step
        if not is_complete:
            run(out)
        assert state_of(out) == expected, step
        assert not list(tmp_path.glob(".*flare*")), step
    assert len(states) > 8
    if job == "join":
        flarecli.pack(index, tmp_path / "one", part_rows=24, shard_rows=20)
        assert files_of(wanted) == files_of(tmp_path / "one")


class Killed(BaseException):
    pass


def test_a_join_in_a_bucket_stopped_at_any_step_can_be_run_again(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = f"memory://jobs{time.monotonic_ns()}"
    real, kills = {name: getattr(FsspecStore, name) for name in ("write", "delete")}, 0
    flarecli.pack(index, tmp_path / "one", part_rows=32)
    for step in range(100):
        out, left = f"{bucket}/{step}", [step]
        for number in (1, 2, 3):
            flarecli.pack(index, out, part=f"{number}/3")

        def dying(name: str, left: list[int] = left) -> Any:
            def call(self: Any, path: str, *more: Any, **named: Any) -> Any:
                if not path.endswith("/lock"):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed
                return real[name](self, path, *more, **named)

            return call

        is_killed = False
        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(FsspecStore, name, dying(name))
            try:
                flarecli.pack(index, out, join=True)
            except Killed:
                is_killed = True
        kills += is_killed
        assert flarecli.pack(index, out, join=True).rows == ROWS
        at = locate(out)
        objects = {entry.name: (at / entry.name).read() for entry in at.list()}
        assert objects == files_of(tmp_path / "one"), step
        if not is_killed:
            break
    assert kills > 3
