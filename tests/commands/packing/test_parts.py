"""A pack in parts has the rows of a single pack; its bytes do not depend on the machine or the
order of the parts.
"""

import contextlib
import json
import os
import shutil
import signal
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli.commands.options import PackOptions
from flarecli.commands.packing import parts
from flarecli.commands.packing.media import MediaOptions
from flarecli.commands.packing.plan import PackTask
from flarecli.errors import (
    BusyError,
    FlareError,
    FormatError,
    NoRowsError,
    ReachError,
    UnfinishedError,
    UsageError,
)
from flarecli.storage import locate
from flarecli.write import Failure, Writer, claim, engines
from tests.commands.packing.note_collector import NoteCollector
from tests.outputs import files_of

ROWS = 95


@pytest.fixture
def index(tmp_path: Path) -> str:
    path = tmp_path / "index.parquet"
    columns = {
        "id": [f"k{i:02}" for i in range(ROWS)],
        "n": list(range(ROWS)),
        "text": ["é" * i for i in range(ROWS)],
    }
    pq.write_table(pa.table(columns), path, row_group_size=10)
    return str(path)


@pytest.mark.parametrize("format", ["mds", "json", "csv", "granular", "webdataset", "ffrecord"])
def test_parts_have_the_rows_of_one_pack_and_no_findings(
    index: str, tmp_path: Path, format: str
) -> None:
    columns = ["text"] if format == "ffrecord" else None
    one, many = str(tmp_path / "one"), str(tmp_path / "many")
    flarecli.pack(index, one, format=format, columns=columns, shard_size=2000)
    packed = flarecli.pack(
        index, many, format=format, columns=columns, shard_size=2000, part_rows=30
    )
    assert packed.rows == ROWS
    assert flarecli.open(many)[:] == flarecli.open(one)[:]
    assert list(flarecli.verify(many)) == []
    assert sorted(path.name for path in Path(many).iterdir() if path.is_dir()) == [
        "00000",
        "00001",
        "00002",
        "00003",
    ]
    assert [len(flarecli.open(f"{many}/{part:05}")) for part in range(4)] == [30, 30, 30, 5]


def backwards(work: Callable[[Any], Any], items: Sequence[Any]) -> Iterator[tuple[int, Any]]:
    return ((i, work(items[i])) for i in reversed(range(len(items))))


def test_the_sources_of_parts_may_be_an_iterator(index: str, tmp_path: Path) -> None:
    packed = flarecli.pack(iter([index, index]), tmp_path / "out", part_rows=50)
    assert packed.rows == 2 * ROWS


def test_the_bytes_do_not_depend_on_the_order_of_the_parts(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    flarecli.pack(index, str(tmp_path / "a"), part_rows=20, where="n % 3 <> 0")
    monkeypatch.setattr(engines, "run", lambda engine, work, items: backwards(work, items))
    flarecli.pack(index, str(tmp_path / "b"), part_rows=20, where="n % 3 <> 0")
    assert files_of(tmp_path / "a") == files_of(tmp_path / "b")


def test_an_index_of_the_original_lists_all_parts(index: str, tmp_path: Path) -> None:
    flarecli.pack(index, str(tmp_path / "out"), part_rows=40)
    listed = json.loads((tmp_path / "out/index.json").read_text())
    assert [shard["raw_data"]["basename"] for shard in listed["shards"]] == [
        f"{part:05}/shard.00000.mds" for part in range(3)
    ]
    assert [shard["samples"] for shard in listed["shards"]] == [40, 40, 15]


def test_parts_without_selected_rows_are_not_written(index: str, tmp_path: Path) -> None:
    packed = flarecli.pack(index, str(tmp_path / "out"), part_rows=20, where="n < 10 or n > 70")
    assert packed.rows == 34
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        "00000",
        "00003",
        "00004",
        "index.json",
        "playlist.yaml",
    ]
    assert [row["n"] for row in flarecli.open(str(tmp_path / "out"))[:]] == [
        *range(10),
        *range(71, ROWS),
    ]


def test_a_pack_without_selected_rows_leaves_no_files(index: str, tmp_path: Path) -> None:
    with pytest.raises(NoRowsError) as caught:
        flarecli.pack(index, str(tmp_path / "out"), part_rows=20, where="n > 1000")
    assert str(caught.value.message) == "found no valid row from which to infer the columns"
    assert not (tmp_path / "out").exists()


def test_failed_rows_are_listed_with_their_number_in_all_rows(tmp_path: Path) -> None:
    numbers = [300 if i in (3, 25, 29) else i for i in range(40)]
    pq.write_table(pa.table({"n": numbers}), tmp_path / "i.parquet")
    one, many = tmp_path / "one", tmp_path / "many"
    flarecli.pack(str(tmp_path / "i.parquet"), str(one), encode={"n": "uint8"}, on_error="skip")
    packed = flarecli.pack(
        str(tmp_path / "i.parquet"), str(many), encode={"n": "uint8"}, on_error="skip", part_rows=10
    )
    assert (packed.rows, packed.failed, dict(packed.reasons)) == (37, 3, {"value": 3})
    assert (many / "failed.jsonl").read_bytes() == (one / "failed.jsonl").read_bytes()
    assert list(flarecli.verify(str(many))) == []


def test_a_failed_row_ends_the_pack_with_the_name_of_its_part(tmp_path: Path) -> None:
    source, out = str(tmp_path / "i.parquet"), str(tmp_path / "out")
    pq.write_table(pa.table({"n": [*range(25), 300, *range(14)]}), source)
    with pytest.raises(FormatError) as caught:
        flarecli.pack(source, out, encode={"n": "uint8"}, part_rows=10)
    assert caught.value.where == f"part 00002: {source}[25]"
    with pytest.raises(UnfinishedError):
        flarecli.open(out)
    with pytest.raises(UsageError) as other:
        flarecli.pack(source, out, encode={"n": "uint8"}, part_rows=11, resume=True)
    assert other.value.message == "the unfinished pack was started with part_rows 10, not 11"
    packed = flarecli.pack(
        source, out, encode={"n": "uint8"}, part_rows=10, overwrite=True, on_error="skip"
    )
    assert (packed.rows, packed.failed) == (39, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shuffle": 1},
            "--shuffle and --part-rows cannot be combined, because a shuffle needs the rows of all parts",
        ),
        (
            {"limit": 5, "where": "n > 1"},
            "--limit with --where needs the number of matching rows in all parts",
        ),
        (
            {"key": "id", "on_duplicate": "first"},
            "`--on-duplicate first` needs the keys of all parts",
        ),
        ({"engine": "slurm"}, "--engine: expected local or ray, got 'slurm'"),
        ({"part_rows": 0}, "--part-rows: expected at least 1, got 0"),
    ],
)
def test_options_that_need_rows_of_several_parts_are_refused(
    index: str, tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError) as caught:
        flarecli.pack(index, str(tmp_path / "out"), **{"part_rows": 20, **options})
    assert caught.value.message == message
    assert not (tmp_path / "out").exists()


def test_a_key_used_in_two_parts_is_refused_before_anything_is_packed(tmp_path: Path) -> None:
    source = str(tmp_path / "i.parquet")
    pq.write_table(pa.table({"id": [*range(30), 4], "n": range(31)}), source)
    with pytest.raises(FormatError) as caught:
        flarecli.pack(source, str(tmp_path / "out"), key="id", part_rows=10)
    assert (caught.value.message, caught.value.where) == (
        "key '4' was used in row 4",
        f"{source}[30]",
    )
    assert not (tmp_path / "out").exists()


def test_limit_counts_the_rows_of_all_parts(index: str, tmp_path: Path) -> None:
    packed = flarecli.pack(index, str(tmp_path / "out"), part_rows=20, limit=50)
    assert [row["n"] for row in flarecli.open(packed.playlist)[:]] == list(range(50))


def test_a_dataset_is_converted_in_parts(index: str, tmp_path: Path) -> None:
    flarecli.pack(index, str(tmp_path / "mds"), shard_size=700)
    packed = flarecli.pack(
        str(tmp_path / "mds"), str(tmp_path / "tar"), format="webdataset", part_rows=25
    )
    assert packed.rows == ROWS
    assert [row["n"] for row in flarecli.open(packed.playlist)[:]] == list(range(ROWS))


def test_finished_parts_are_not_packed_again(index: str, tmp_path: Path) -> None:
    out = str(tmp_path / "out")
    first = flarecli.pack(index, out, part_rows=20)
    before = {path: path.stat().st_mtime_ns for path in Path(out).rglob("*")}
    second = flarecli.pack(index, out, part_rows=20, resume=True)
    assert (second.rows, second.resumed_rows) == (first.rows, first.rows)
    assert before == {path: path.stat().st_mtime_ns for path in Path(out).rglob("*")}


def test_a_second_pack_into_the_same_target_is_refused_by_name(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, caught = str(tmp_path / "out"), []

    def twice(
        engine: str, work: Callable[[Any], Any], items: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        try:
            flarecli.pack(index, out, part_rows=20, resume=True)
        except FlareError as error:
            caught.append(error)
        return ((i, work(item)) for i, item in enumerate(items))

    monkeypatch.setattr(engines, "run", twice)
    flarecli.pack(index, out, part_rows=20)
    assert isinstance(caught[0], BusyError)
    assert f"another pack is writing to this folder (process {os.getpid()} on " in caught[0].message


@pytest.mark.parametrize("ends", [True, False])
def test_a_part_that_a_lost_driver_still_packs_is_waited_for(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, ends: bool
) -> None:
    others: list[Any] = []

    def beside(
        engine: str, work: Callable[[Any], Any], items: Sequence[Any]
    ) -> Iterator[tuple[int, Any]]:
        others.append(claim(items[1].out))
        if ends:
            threading.Timer(0.3, others[0].abandon, [False]).start()
        return ((i, work(item)) for i, item in enumerate(items))

    flarecli.pack(index, str(tmp_path / "a"), part_rows=20)
    monkeypatch.setattr(engines, "run", beside)
    monkeypatch.setattr(parts, "_BUSY_DELAY_S", 0.05)
    monkeypatch.setattr(parts, "_MAX_BUSY_S", 60.0 if ends else 0.2)
    if ends:
        flarecli.pack(index, str(tmp_path / "b"), part_rows=20)
        assert files_of(tmp_path / "a") == files_of(tmp_path / "b")
        return
    with pytest.raises(BusyError) as caught:
        flarecli.pack(index, str(tmp_path / "b"), part_rows=20)
    others[0].abandon(False)
    assert caught.value.where == f"part 00001: {tmp_path / 'b/00001'}"
    assert (
        f"another pack is writing to this folder (process {os.getpid()} on " in caught.value.message
    )


def test_a_pack_in_parts_killed_at_any_time_is_resumed_to_the_same_bytes(
    index: str, tmp_path: Path
) -> None:
    flarecli.pack(index, tmp_path / "whole", part_rows=3, shard_size=300)

    def started(out: Path) -> int:
        """Start a pack in a fork of this process, and return its process id."""
        child = os.fork()
        if not child:
            code = 1
            try:
                flarecli.pack(index, out, part_rows=3, shard_size=300, resume=True)
                code = 0
            finally:
                os._exit(code)
        return child

    kills = 0
    for round in range(2):
        out = tmp_path / f"out{round}"
        while True:
            child, ended, status = started(out), 0, 0
            deadline = time.monotonic() + 60
            while (
                len(list(out.glob("*/playlist.yaml"))) < 3 + 7 * kills % 20 or kills >= 4
            ) and time.monotonic() < deadline:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    break
                time.sleep(0.002)
            if not ended:
                os.kill(child, signal.SIGKILL)
                os.waitpid(child, 0)
                kills += 1
                continue
            assert os.waitstatus_to_exitcode(status) == 0
            break
        assert files_of(out) == files_of(tmp_path / "whole")
        shutil.rmtree(out)
    assert kills


def test_a_resume_with_other_options_is_refused_and_removes_nothing(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt), monkeypatch.context() as patch:
        patch.setattr(parts.parts, "join", _interrupted)
        flarecli.pack(index, str(out), part_rows=20)
    before = files_of(out)
    assert "00003/playlist.yaml" in before
    with pytest.raises(UsageError) as caught:
        flarecli.pack(index, str(out), part_rows=21, resume=True)
    assert str(caught.value) == f"{out}: the unfinished pack was started with part_rows 20, not 21"
    (out / ".flare" / "lock").write_bytes(before[".flare/lock"])  # the owner, and the start time
    assert files_of(out) == before
    flarecli.pack(index, str(tmp_path / "whole"), part_rows=20)
    flarecli.pack(index, str(out), part_rows=20, resume=True)
    assert files_of(out) == files_of(tmp_path / "whole")


def _interrupted(*_: Any) -> None:
    raise KeyboardInterrupt


@pytest.mark.parametrize("format", ["mds", "granular"])
@pytest.mark.parametrize("is_whole", [True, False])
def test_overwrite_replaces_parts_but_no_other_files(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, format: str, is_whole: bool
) -> None:
    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        if not is_whole:
            patch.setattr(parts.parts, "join", _interrupted)
        with contextlib.suppress(KeyboardInterrupt):
            flarecli.pack(index, str(out), format=format, part_rows=20)
    assert (out / "playlist.yaml").exists() == is_whole
    for name in (
        "notes.txt",
        *([] if is_whole else ["00002/notes.txt"]),
    ):  # a playlist lists a part with all of its files
        (out / name).write_text("mine")
        with pytest.raises(UsageError) as caught:
            flarecli.pack(index, str(out), format=format, part_rows=30, overwrite=True)
        assert (
            caught.value.message == "contains a file 'notes.txt', which is not part of the dataset"
        )
        assert (out / name).read_text() == "mine"
        (out / name).unlink()
    (out / "00007").mkdir()
    with pytest.raises(
        UsageError, match="contains a file '00007', which is not part of the dataset"
    ):
        flarecli.pack(index, str(out), format=format, part_rows=30, overwrite=True)
    (out / "00007").rmdir()
    flarecli.pack(index, str(out), format=format, part_rows=30, overwrite=True)
    flarecli.pack(index, str(tmp_path / "fresh"), format=format, part_rows=30)
    assert files_of(out) == files_of(tmp_path / "fresh")


def test_if_all_links_fail_the_reason_is_reported(tmp_path: Path) -> None:
    pq.write_table(pa.table({"url": [f"gone{i}.jpg" for i in range(40)]}), tmp_path / "i.parquet")
    with pytest.raises(ReachError) as caught:
        flarecli.pack(
            str(tmp_path / "i.parquet"), str(tmp_path / "out"), fetch=["url"], part_rows=10
        )
    assert str(caught.value) == f"{tmp_path}/i.parquet[0]: gone0.jpg: no such file or folder"
    assert caught.value.hint == (
        "Check that --fetch names a column of URLs, or of paths relative to the folder of the "
        "source, or use --on-error skip to omit such rows."
    )
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    "query",
    [
        "SELECT n % 7 AS n FROM dataframe GROUP BY 1",
        "SELECT * FROM dataframe ORDER BY n",
        "FROM dataframe LIMIT 3",
    ],
)
def test_a_query_over_several_rows_is_refused(index: str, tmp_path: Path, query: str) -> None:
    with pytest.raises(UsageError) as caught:
        flarecli.pack(index, str(tmp_path / "out"), part_rows=20, where=query)
    assert caught.value.message == "the condition of --where needs rows of several parts"


def test_a_query_over_single_rows_is_packed_in_parts(index: str, tmp_path: Path) -> None:
    packed = flarecli.pack(
        index,
        str(tmp_path / "out"),
        part_rows=20,
        where="SELECT n * 2 AS n FROM dataframe WHERE n > 50",
    )
    assert packed.rows == ROWS - 51


@pytest.mark.parametrize(
    ("options", "shards"),
    [({}, 5), ({"shard_rows": 7}, 15), ({"limit": 41}, 3), ({"shard_size": 600}, None)],
)
def test_a_dry_run_counts_the_shards_of_each_part(
    index: str, tmp_path: Path, options: dict[str, Any], shards: int | None
) -> None:
    would = flarecli.pack(index, str(tmp_path / "out"), part_rows=20, dry_run=True, **options)
    packed = flarecli.pack(index, str(tmp_path / "out"), part_rows=20, **options)
    assert would.rows == packed.rows
    if shards is None:  # rows differ in size, and shards are not full
        assert abs(would.shards - packed.shards) <= packed.shards // 3
    else:
        assert would.shards == packed.shards == shards


def test_notes_of_parts_are_reported(tmp_path: Path) -> None:
    folder = tmp_path / "folder"
    folder.mkdir()
    for i in range(6):
        (folder / f"{i}.jpg").write_bytes(b"\x89PNG\r\n\x1a\n" if i > 3 else b"\xff\xd8\xff\xe0")
    (folder / ".hidden").write_bytes(b"")
    one, many = NoteCollector(), NoteCollector()
    flarecli.pack(str(folder), str(tmp_path / "one"), progress=one)
    flarecli.pack(str(folder), str(tmp_path / "many"), part_rows=3, progress=many)
    assert one.notes == [
        "skipped 1 hidden file: .hidden",
        "column 'image': 2 values are png, not jpeg: 4.jpg, 5.jpg",
    ]
    assert many.notes == [one.notes[0], f"part 00001: {one.notes[1]}"]
    pq.write_table(pa.table({"url": ["https://example.com/a"] * 4}), tmp_path / "i.parquet")
    output = NoteCollector()
    flarecli.pack(str(tmp_path / "i.parquet"), str(tmp_path / "urls"), part_rows=2, progress=output)
    assert output.notes == [
        "column 'url' contains addresses; add --fetch url to pack the linked files"
    ]


def _part(
    folder: Path, columns: dict[str, str], rows: list[dict[str, Any]], failed: list[Failure]
) -> None:
    with Writer(str(folder), columns=columns) as writer:
        for failure in failed:
            writer.failed.add(failure)
        for row in rows:
            writer.write(row)


def test_failed_rows_of_parts_are_reported_by_key(tmp_path: Path) -> None:
    source, seen = tmp_path / "i.jsonl", NoteCollector()
    source.write_text(
        "".join(f'{{"id": "k{i}", "n": {n}}}\n' for i, n in enumerate([1, 300, 2, 400]))
    )
    options: dict[str, Any] = {"encode": {"n": "uint8"}, "key": "id", "on_error": "skip"}
    flarecli.pack(source, tmp_path / "a", part_rows=2, progress=seen, **options)
    k1, k3 = [
        (key, f"n {n} cannot be stored as uint8 (0 to 255)")
        for key, n in (("k1", 300), ("k3", 400))
    ]
    assert seen.failures == [k1, k3]

    class Interrupting(NoteCollector):
        def failed(self, key: str, reason: str, rows: int = 1) -> None:
            if key == "k3":
                raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        flarecli.pack(source, tmp_path / "b", part_rows=2, progress=Interrupting(), **options)
    resumed = NoteCollector()
    flarecli.pack(source, tmp_path / "b", part_rows=2, resume=True, progress=resumed, **options)
    assert resumed.failures == [("part 00000", "1 row failed, see its failed.jsonl"), k3]
    # a worker of another process has no progress to which it could report
    task = PackTask(PackOptions(source, str(tmp_path / "c"), **options), MediaOptions())
    outcome = parts.pack_part(task)
    assert outcome.packed is not None
    assert (outcome.packed.failed, outcome.failed, outcome.reported) == (2, 0, (0, 0, 0.0))


def test_parts_with_different_columns_are_not_joined(tmp_path: Path) -> None:
    _part(tmp_path / "00000", {"n": "int"}, [{"n": 1}], [])
    _part(tmp_path / "00001", {"n": "str"}, [{"n": "1"}], [])
    with pytest.raises(FormatError) as caught:
        parts.parts.join(locate(str(tmp_path)), ["00000", "00001"], {})
    assert (
        str(caught.value) == f"{tmp_path}/00001: columns differ from the columns of earlier parts"
    )
    assert not (tmp_path / "playlist.yaml").exists()


def test_failed_rows_without_a_file_are_numbered_over_all_parts(tmp_path: Path) -> None:
    _part(
        tmp_path / "00000",
        {"n": "int"},
        [{"n": 1}, {"n": 2}],
        [Failure(1, "a", "n", "value", "too large")],
    )
    _part(
        tmp_path / "00001",
        {"n": "int"},
        [],
        [
            Failure(0, "b", "n", "value", "too large", "i.parquet", 70),
            Failure(1, "c", "n", "value", "too large"),
        ],
    )
    _part(
        tmp_path / "00002", {"n": "int"}, [{"n": 3}], [Failure(1, "d", "n", "value", "too large")]
    )
    parts.parts.join(locate(str(tmp_path)), ["00000", "00001", "00002"], {})
    listed = [json.loads(line) for line in (tmp_path / "failed.jsonl").read_text().splitlines()]
    assert [(one["key"], one["row"]) for one in listed] == [("a", 1), ("b", 70), ("c", 4), ("d", 6)]
    assert len(flarecli.open(str(tmp_path))) == 3
