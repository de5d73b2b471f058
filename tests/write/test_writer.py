"""The Writer: size of shards, resume to the same bytes, and no unfinished dataset that looks
complete.
"""

import contextlib
import fcntl
import gc
import json
import multiprocessing
import os
import time
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import encodings, playlists, read
from flarecli.errors import (
    BusyError,
    FormatError,
    ReachError,
    UnfinishedError,
    UsageError,
    ValueFitError,
)
from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.write import Failure, Writer
from tests.outputs import files_of
from tests.properties import examples

COLUMNS = {"n": "int", "t": "str"}


def samples(count, size=50):
    return [{"n": i, "t": f"{i}-" * (i % size)} for i in range(count)]


def pack(path, rows, how=None, **options):
    with Writer(
        str(path), columns=COLUMNS, settings=how or Settings(shard_bytes=4000), **options
    ) as writer:
        for row in rows[writer.rows :]:
            writer.write(row)
    return files_of(path)


def rule(sizes, base, limit):
    """The rule of the original writer, sample by sample: flush if limit < size of the shard + size
    of the sample.
    """
    shards, running, count = [], base, 0
    for size in sizes:
        if limit < running + size and count:
            shards.append(count)
            running, count = base, 0
        running += size
        count += 1
    return [*shards, count] if count else shards


@settings(max_examples=examples(50), deadline=None)
@given(
    st.lists(st.integers(0, 300), min_size=1, max_size=80),
    st.integers(300, 900),
    st.lists(st.integers(1, 30), min_size=1, max_size=6),
)
def test_shards_end_before_the_size_limit(lengths, limit, steps):
    import tempfile

    columns = (encodings.column("t", "bytes"),)
    schema = pa.schema([encodings.field(column) for column in columns])
    with tempfile.TemporaryDirectory() as folder:
        writer = Writer(f"{folder}/out", columns=columns, settings=Settings(shard_bytes=limit))
        at, k = 0, 0
        while at < len(lengths):
            part = lengths[at : at + steps[k % len(steps)]]
            batch = pa.RecordBatch.from_arrays(
                [pa.array([bytes(n) for n in part], pa.large_binary())], schema=schema
            )
            writer.write_batch(batch, np.arange(at, at + len(part)))
            at, k = at + len(part), k + 1
        writer.close()
        index = json.loads(Path(folder, "out", "index.json").read_text())
        config = (
            len(Path(folder, "out", "shard.00000.mds").read_bytes())
            - 8
            - index["shards"][0]["samples"] * 4
        )
        first = [n + 4 for n in lengths[: index["shards"][0]["samples"]]]
        base = 8 + config - sum(first)
        assert [shard["samples"] for shard in index["shards"]] == rule(
            [n + 8 for n in lengths], base, limit
        )


def test_shards_end_at_the_row_limit(tmp_path):
    pack(tmp_path / "out", samples(25), Settings(shard_rows=10))
    assert [
        shard["samples"]
        for shard in json.loads((tmp_path / "out" / "index.json").read_text())["shards"]
    ] == [10, 10, 5]


def test_written_rows_are_read_back_in_order(tmp_path):
    pack(tmp_path / "out", samples(500))
    data = read.open(str(tmp_path / "out"))
    assert list(data) == samples(500)
    assert data.playlists[0].protected
    assert not (tmp_path / "out" / ".flare").exists()


def test_equal_rows_produce_equal_bytes(tmp_path):
    assert pack(tmp_path / "one", samples(300)) == pack(tmp_path / "two", samples(300))


def test_after_an_exception_there_is_no_index_and_a_resume_produces_the_same_bytes(tmp_path):
    complete = pack(tmp_path / "whole", samples(300))
    with (
        pytest.raises(RuntimeError),
        Writer(
            str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_bytes=4000)
        ) as writer,
    ):
        for row in samples(300)[:200]:
            writer.write(row)
        writer._write_samples()
        raise RuntimeError("the source failed")
    assert writer.shards > 0
    left = files_of(tmp_path / "out")
    assert "index.json" not in left
    assert "playlist.yaml" not in left
    with pytest.raises(UnfinishedError) as caught:
        read.open(str(tmp_path / "out"))
    assert str(caught.value) == f"{tmp_path}/out: folder contains an unfinished pack"
    assert caught.value.hint == "Run the same `flare pack` command again with --resume."
    with pytest.raises(UnfinishedError) as caught:
        pack(tmp_path / "out", samples(300))
    assert (
        caught.value.hint
        == "Run the same command with --resume, or use --overwrite to start again."
    )
    assert pack(tmp_path / "out", samples(300), resume=True) == complete


def test_a_failure_before_the_first_shard_leaves_no_files(tmp_path):
    with pytest.raises(RuntimeError), Writer(str(tmp_path / "out"), columns=COLUMNS):
        raise RuntimeError
    assert not (tmp_path / "out").exists()


def test_an_unfinished_pack_is_not_resumed_with_other_settings(tmp_path):
    with (
        pytest.raises(RuntimeError),
        Writer(
            str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_bytes=4000)
        ) as writer,
    ):
        for row in samples(300):
            writer.write(row)
        writer._write_samples()
        raise RuntimeError
    with pytest.raises(UsageError) as caught:
        pack(tmp_path / "out", samples(300), Settings(shard_bytes=5000), resume=True)
    assert (
        str(caught.value)
        == f"{tmp_path}/out: the unfinished pack was started with shard_bytes 4000, not 5000"
    )
    assert caught.value.hint == "Use --overwrite to start again."


def test_a_journal_truncated_at_any_byte_is_resumed_to_the_same_bytes(tmp_path):
    complete = pack(tmp_path / "whole", samples(120))
    with (
        pytest.raises(RuntimeError),
        Writer(
            str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_bytes=4000)
        ) as writer,
    ):
        for row in samples(120):
            writer.write(row)
        writer._write_samples()
        raise RuntimeError
    journal = tmp_path / "out" / ".flare" / "journal"
    data = journal.read_bytes()
    for cut in range(0, len(data), 97):
        journal.parent.mkdir(exist_ok=True)
        for name in ("index.json", "playlist.yaml"):
            (tmp_path / "out" / name).unlink(missing_ok=True)
        journal.write_bytes(data[:cut])
        assert pack(tmp_path / "out", samples(120), resume=True) == complete


def test_a_torn_line_of_the_journal_is_removed_before_the_next_line(tmp_path):
    rows, how = samples(12), Settings(shard_rows=2)
    for stop in (4, 9):  # interrupted, torn, resumed, interrupted and torn again
        with (
            pytest.raises(RuntimeError),
            Writer(str(tmp_path / "out"), columns=COLUMNS, settings=how, resume=True) as writer,
        ):
            for row in rows[writer.rows : stop]:
                writer.write(row)
            writer._write_samples()
            raise RuntimeError
        with (tmp_path / "out" / ".flare" / "journal").open("ab") as journal:
            journal.write(b'{"shard": "shard.000')
    writer = Writer(str(tmp_path / "out"), columns=COLUMNS, settings=how, resume=True)
    assert writer.rows == 8
    writer.abandon()
    assert pack(tmp_path / "out", rows, how, resume=True) == pack(tmp_path / "whole", rows, how)


@pytest.mark.parametrize("damage", ["remove", "cut"])
def test_a_missing_shard_of_the_journal_is_written_again(tmp_path, damage):
    complete = pack(tmp_path / "whole", samples(300))
    with (
        pytest.raises(RuntimeError),
        Writer(
            str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_bytes=4000)
        ) as writer,
    ):
        for row in samples(300):
            writer.write(row)
        writer._write_samples()
        raise RuntimeError
    second = tmp_path / "out" / "shard.00001.mds"
    second.unlink() if damage == "remove" else os.truncate(second, 100)
    assert pack(tmp_path / "out", samples(300), resume=True) == complete


def test_resuming_a_finished_dataset_changes_nothing(tmp_path):
    complete = pack(tmp_path / "out", samples(300))
    with Writer(str(tmp_path / "out"), columns=COLUMNS, resume=True) as writer:
        assert writer.is_done
    assert files_of(tmp_path / "out") == complete


def test_a_finished_writer_refuses_rows(tmp_path):
    schema = pa.schema([encodings.field(encodings.column(*one)) for one in COLUMNS.items()])
    batch = pa.RecordBatch.from_arrays(
        [pa.array([1]), pa.array(["a"], pa.large_string())], schema=schema
    )
    with Writer(str(tmp_path / "out"), columns=COLUMNS) as writer:
        writer.write({"n": 1, "t": "a"})
    complete = files_of(tmp_path / "out")
    again = Writer(str(tmp_path / "out"), columns=COLUMNS, resume=True)
    assert (again.is_done, again.rows) == (True, 1)
    for one in (writer, again):
        for write in (
            lambda one=one: one.write({"n": 2, "t": "b"}),
            lambda one=one: one.write_batch(batch, np.arange(1)),
        ):
            with pytest.raises(UsageError) as caught:
                write()
            assert str(caught.value) == f"{tmp_path}/out: the dataset is already finished"
        assert one.close() == f"{tmp_path}/out/playlist.yaml"
    assert files_of(tmp_path / "out") == complete
    given_up = Writer(str(tmp_path / "other"), columns=COLUMNS)
    given_up.abandon()
    for use in (given_up.close, lambda: given_up.write({"n": 2, "t": "b"})):
        with pytest.raises(UsageError) as caught:
            use()
        assert str(caught.value) == f"{tmp_path}/other: the Writer was abandoned"
    assert not (tmp_path / "other").exists()


def test_a_folder_that_is_not_empty_is_refused(tmp_path):
    (tmp_path / "notes.txt").write_text("mine")
    for overwrite in (False, True):
        with pytest.raises(UsageError) as caught:
            Writer(str(tmp_path), columns=COLUMNS, overwrite=overwrite)
        assert str(caught.value) == f"{tmp_path}: output folder is not empty"
        replacing = "Specify another folder: --overwrite replaces only output of `flare pack`."
        hint = "Use --resume to continue an unfinished pack, --append to add rows, --overwrite to replace a dataset, or specify another folder."
        assert caught.value.hint == (replacing if overwrite else hint)
    assert files_of(tmp_path) == {"notes.txt": b"mine"}
    with pytest.raises(UsageError, match="expected a folder, got a file(?m:$)"):
        Writer(str(tmp_path / "notes.txt"), columns=COLUMNS)


def test_overwrite_keeps_the_old_dataset_until_the_new_dataset_is_complete(tmp_path):
    old = pack(tmp_path / "out", samples(10))
    with (
        pytest.raises(RuntimeError),
        Writer(
            str(tmp_path / "out"),
            columns=COLUMNS,
            overwrite=True,
            settings=Settings(shard_bytes=4000),
        ) as writer,
    ):
        for row in samples(300):
            writer.write(row)
        writer._write_samples()
        raise RuntimeError
    assert files_of(tmp_path / "out") == old
    assert pack(tmp_path / "out", samples(300), overwrite=True, resume=True) == pack(
        tmp_path / "other", samples(300)
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "out"]


def test_overwrite_refuses_a_folder_with_other_files(tmp_path):
    old = pack(tmp_path / "out", samples(10))
    (tmp_path / "out" / "notes.txt").write_text("mine")
    with pytest.raises(UsageError) as caught:
        pack(tmp_path / "out", samples(300), overwrite=True)
    assert (
        str(caught.value)
        == f"{tmp_path}/out: contains a file 'notes.txt', which is not part of the dataset"
    )
    assert files_of(tmp_path / "out") == {**old, "notes.txt": b"mine"}


def test_an_interrupted_replacement_is_completed(tmp_path):
    pack(tmp_path / "out", samples(10))
    writer = Writer(
        str(tmp_path / "out"), columns=COLUMNS, overwrite=True, settings=Settings(shard_bytes=4000)
    )
    for row in samples(300):
        writer.write(row)
    writer._write_samples()
    (tmp_path / "out").rename(tmp_path / ".out.flare-old")  # killed between the two renames
    writer.failed.close()
    writer.target.release()
    assert pack(tmp_path / "out", samples(300), overwrite=True, resume=True) == pack(
        tmp_path / "other", samples(300)
    )
    assert sorted(p.name for p in tmp_path.iterdir()) == ["other", "out"]


@pytest.mark.parametrize("options", [{"resume": True}, {"resume": True, "overwrite": True}])
def test_a_kill_after_the_replacement_leaves_no_old_dataset(tmp_path, monkeypatch, options):
    pack(tmp_path / "out", samples(10))
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("flarecli.write.folder_target.shutil.rmtree", _interrupted)
        pack(tmp_path / "out", samples(300), overwrite=True)
    assert sorted(path.name for path in tmp_path.iterdir()) == [".out.flare-old", "out"]
    with pytest.raises(UnfinishedError):
        read.open(str(tmp_path / "out"))
    assert pack(tmp_path / "out", samples(300), **options) == pack(tmp_path / "other", samples(300))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def _interrupted(*_, **__):
    raise KeyboardInterrupt


def test_a_lock_on_a_replaced_folder_is_not_accepted(tmp_path, monkeypatch):
    """Another pack ends between the opening of its scratch folder and the lock: the folder is
    checked again.
    """
    flock, began = fcntl.flock, []

    def replacing_flock(fd, how):
        flock(fd, how)
        if not began:
            began.append(fd)
            (tmp_path / "out" / ".flare").rename(tmp_path / "put away")

    monkeypatch.setattr("fcntl.flock", replacing_flock)
    with Writer(str(tmp_path / "out"), columns=COLUMNS) as writer:
        assert sorted(path.name for path in (tmp_path / "out" / ".flare").iterdir()) == [
            "journal",
            "lock",
        ]
        assert list((tmp_path / "put away").iterdir()) == []
        writer.write({"n": 1, "t": ""})
    assert len(read.open(str(tmp_path / "out"))) == 1


def test_a_pack_is_unfinished_until_its_scratch_folder_is_removed(tmp_path, monkeypatch):
    unlink = os.unlink

    def killed(path, **more):
        if path == "lock":
            raise KeyboardInterrupt
        unlink(path, **more)

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("flarecli.write.folder_target.os.unlink", killed)
        pack(tmp_path / "out", samples(10))
    with pytest.raises(UnfinishedError):
        read.open(str(tmp_path / "out"))
    assert pack(tmp_path / "out", samples(10), resume=True) == pack(tmp_path / "other", samples(10))


def test_each_line_of_the_journal_is_synced_before_the_next_step(tmp_path, monkeypatch):
    fsync, safe = os.fsync, []

    def recording_fsync(fd):
        name = os.readlink(f"/proc/self/fd/{fd}")
        if name.endswith("/journal"):
            safe.append(os.fstat(fd).st_size)
        fsync(fd)

    monkeypatch.setattr("os.fsync", recording_fsync)
    with Writer(str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=1)) as writer:
        journal, sizes = tmp_path / "out" / ".flare" / "journal", []
        for row in samples(4):
            writer.write(row)
            writer._write_samples()
            sizes.append(journal.stat().st_size)
            assert safe[-1] == sizes[-1]
    assert len(set(sizes)) == 4


def test_a_dataset_with_a_remaining_scratch_folder_is_finished(tmp_path):
    complete = pack(tmp_path / "out", samples(10))
    (tmp_path / "out" / ".flare").mkdir()  # killed between the last two steps
    with pytest.raises(UsageError, match="output folder is not empty(?m:$)"):
        pack(tmp_path / "out", samples(20))
    assert files_of(tmp_path / "out") == complete
    with Writer(str(tmp_path / "out"), columns=COLUMNS, resume=True) as writer:
        assert (writer.is_done, writer.rows) == (True, 10)
    assert not (tmp_path / "out" / ".flare").exists()


def test_the_rest_of_an_earlier_replacement_is_replaced(tmp_path):
    pack(tmp_path / ".out.flare-old", samples(5))
    pack(tmp_path / "out", samples(10))
    assert pack(tmp_path / "out", samples(20), overwrite=True) == pack(
        tmp_path / "other", samples(20)
    )
    assert sorted(path.name for path in tmp_path.iterdir()) == ["other", "out"]


def test_a_failed_replacement_releases_the_lock(tmp_path, monkeypatch):
    def refused(*_):
        raise OSError(5, "Input/output error")

    with monkeypatch.context() as patch, pytest.raises(ReachError) as caught:
        patch.setattr("flarecli.write.folder_target.os.rmdir", refused)
        pack(tmp_path / "out", samples(10))
    assert str(caught.value) == f"{tmp_path}/out: Input/output error"
    assert pack(tmp_path / "out", samples(10), resume=True) == pack(tmp_path / "other", samples(10))


def _hold(path, ready, go):
    writer = Writer(path, columns=COLUMNS)
    ready.set()
    go.wait(60)
    writer.write({"n": 1, "t": ""})
    writer.close()


def test_the_second_pack_into_a_folder_is_refused_with_the_name_of_the_first(tmp_path):
    ready, go = multiprocessing.Event(), multiprocessing.Event()
    other = multiprocessing.get_context("fork").Process(
        target=_hold, args=(str(tmp_path / "out"), ready, go)
    )
    other.start()
    try:
        assert ready.wait(60)
        for options in ({}, {"resume": True}, {"overwrite": True}):
            with pytest.raises(BusyError) as caught:
                Writer(str(tmp_path / "out"), columns=COLUMNS, **options)
            assert (
                f"another pack is writing to this folder (process {other.pid} on "
                in caught.value.message
            )
            assert caught.value.exit_code == 3
    finally:
        go.set()
        other.join(60)
    assert len(read.open(str(tmp_path / "out"))) == 1


def test_a_lock_ends_with_its_process(tmp_path):
    ready, go = multiprocessing.Event(), multiprocessing.Event()
    other = multiprocessing.get_context("fork").Process(
        target=_hold, args=(str(tmp_path / "out"), ready, go)
    )
    other.start()
    assert ready.wait(60)
    other.kill()
    other.join(60)
    pack(tmp_path / "out", samples(3), Settings(), resume=True)


@pytest.mark.parametrize(
    ("sample", "message"),
    [
        ({"n": 1}, "the sample has no column 't'"),
        ({"n": 1, "t": "", "x": 1}, "the sample has an unknown column 'x'"),
        (
            {"n": 1 << 63, "t": ""},
            "row 0: column 'n': int 9223372036854775808 cannot be stored as int",
        ),
        ({"n": 1.5, "t": ""}, "row 0: column 'n': float 1.5 cannot be stored as int"),
        ({"n": 1, "t": "\ud800"}, "row 0: column 't': str '\\ud800' cannot be stored as str"),
        (
            {"n": b"1234567", "t": ""},
            "row 0: column 'n': 7 bytes cannot be stored as int; expected 8",
        ),
    ],
)
def test_a_sample_that_does_not_fit_is_refused_by_name(tmp_path, sample, message):
    with (
        pytest.raises((UsageError, ValueFitError)) as caught,
        Writer(str(tmp_path / "out"), columns=COLUMNS) as writer,
    ):
        writer.write(sample)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Settings("gzip"), "unknown compression 'gzip'"),
        (Settings(hashes=("crc",)), "unknown hash 'crc'"),
        (
            Settings(shard_bytes=1 << 32),
            "shard_bytes: expected at most 4294967295 (4 GiB), got 4294967296",
        ),
        (Settings(shard_rows=0), "shard_rows: expected at least 1, got 0"),
    ],
)
def test_invalid_settings_are_refused_before_the_target_is_claimed(tmp_path, how, message):
    with pytest.raises(UsageError) as caught:
        Writer(str(tmp_path / "out"), columns=COLUMNS, settings=how)
    assert str(caught.value) == message
    assert not (tmp_path / "out").exists()


def test_failed_rows_are_listed_in_order_with_a_checksum_in_the_playlist(tmp_path):
    with Writer(str(tmp_path / "out"), columns=COLUMNS) as writer:
        writer.failed.add(Failure(0, "k0", "t", "null", "t is null"))
        writer.write({"n": 1, "t": ""})
        writer.failed.add(Failure(2, "k2", "u", "http", "http://u:p@h/x?token=1: 404"))
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "failed.jsonl").read_text().splitlines()
    ]
    assert lines == [
        {"file": None, "row": 0, "key": "k0", "column": "t", "kind": "null", "reason": "t is null"},
        {
            "file": None,
            "row": 2,
            "key": "k2",
            "column": "u",
            "kind": "http",
            "reason": "http://h/x: 404",
        },
    ]
    (stream,) = playlists.read(locate(str(tmp_path / "out" / "playlist.yaml"))).streams
    assert stream.files["failed.jsonl"].size == (tmp_path / "out" / "failed.jsonl").stat().st_size


def test_a_missing_shard_is_recorded_once_for_any_number_of_resumes(tmp_path):
    rows, how = samples(400), Settings(shard_bytes=4000)
    complete = pack(tmp_path / "whole", rows)
    out = tmp_path / "out"

    def resumed(count):
        writer = Writer(str(out), columns=COLUMNS, settings=how, resume=True)
        for row in rows[writer.rows : count]:
            writer.write(row)
        writer._write_samples()
        writer.abandon()

    resumed(300)
    (out / "shard.00001.mds").unlink()
    resumed(150)  # writes this shard again, and ends before the next recorded shards
    assert pack(out, rows, resume=True) == complete


def test_overwrite_of_an_unfinished_pack_removes_only_its_files(tmp_path):
    rows = samples(300)
    with (
        pytest.raises(RuntimeError),
        Writer(
            str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_bytes=4000)
        ) as writer,
    ):
        for row in rows:
            writer.write(row)
        writer._write_samples()
        raise RuntimeError
    (tmp_path / "out" / "notes.txt").write_text("precious")
    with pytest.raises(UsageError) as caught:
        pack(tmp_path / "out", rows, overwrite=True)
    assert (
        str(caught.value)
        == f"{tmp_path}/out: contains a file 'notes.txt', which is not part of the dataset"
    )
    assert (tmp_path / "out" / "notes.txt").read_text() == "precious"


def test_a_resume_that_fails_before_its_first_shard_removes_only_its_files(tmp_path):
    with (
        pytest.raises(RuntimeError),
        Writer(str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=1)) as writer,
    ):
        for row in samples(2):
            writer.write(row)
        writer._write_samples()
        raise RuntimeError
    (tmp_path / "out" / "shard.00000.mds").unlink()  # then no shard is finished
    (tmp_path / "out" / "notes.txt").write_text("precious")
    with (
        pytest.raises(RuntimeError),
        Writer(
            str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=1), resume=True
        ),
    ):
        raise RuntimeError
    assert (tmp_path / "out" / "notes.txt").read_text() == "precious"
    (tmp_path / "out" / "notes.txt").unlink()
    with (
        pytest.raises(RuntimeError),
        Writer(
            str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=1), resume=True
        ),
    ):
        raise RuntimeError
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == []


ZIPPED = ["mds", "json", "csv", "tsv", "xsv", "webdataset"]  # other shards are not compressed


@pytest.mark.parametrize(
    ("format", "compression"),
    [
        *((one, None) for one in (*ZIPPED, "ffrecord", "granular", "granular-refs")),
        *((one, "zstd") for one in ZIPPED),
    ],
)
def test_an_unfinished_pack_of_each_format_can_be_overwritten(tmp_path, format, compression):
    columns = {"t": "bytes" if format == "ffrecord" else "str"}

    def write(name, rows, **options):
        how = Settings(shard_rows=2, compression=compression, separator=";")
        with Writer(
            str(tmp_path / name), format=format, columns=columns, settings=how, **options
        ) as writer:
            for i in range(rows):
                writer.write({"t": b"%d" % i if format == "ffrecord" else str(i)})
            if name == "out" and not options:
                writer._write_samples()
                raise RuntimeError
        return files_of(tmp_path / name)

    with pytest.raises(RuntimeError):
        write("out", 5)
    (tmp_path / "out" / "12 notes").write_text("mine")
    with pytest.raises(
        UsageError, match="contains a file '12 notes', which is not part of the dataset(?m:$)"
    ):
        write("out", 7, overwrite=True)
    (tmp_path / "out" / "12 notes").unlink()
    assert write("out", 7, overwrite=True) == write("other", 7)
    assert write("out", 3, overwrite=True) == write("third", 3)


@pytest.mark.parametrize("out", ["", "file://"])
def test_an_empty_target_is_not_the_root_folder(out):
    with pytest.raises(UsageError) as caught:
        Writer(out, columns=COLUMNS)
    assert str(caught.value) == "the name of the output folder is empty"


def test_a_missing_list_of_failed_rows_is_not_filled_with_zeros(tmp_path):
    out, how = tmp_path / "out", Settings(shard_rows=1)
    writer = Writer(str(out), columns={"v": "int"}, settings=how)
    writer.failed.add(Failure(0, "k", "v", "null", "v is null"))
    writer.write_batch(pa.record_batch({"v": pa.array([1, 2], pa.int64())}), np.array([1, 2]))
    writer.abandon()
    (out / "failed.jsonl").unlink()
    with pytest.raises(FormatError) as caught:
        Writer(str(out), columns={"v": "int"}, settings=how, resume=True)
    assert str(caught.value) == f"{out}/failed.jsonl: file is 0 bytes; the journal lists 91"


@pytest.mark.parametrize("line", ["[1]\n", "3\n", "{\n"])
def test_an_invalid_journal_is_a_format_error(tmp_path, line):
    """The lines are complete, but are not a journal."""
    (tmp_path / "out" / ".flare").mkdir(parents=True)
    (tmp_path / "out" / ".flare" / "journal").write_text(line)
    with pytest.raises(FormatError) as caught:
        Writer(str(tmp_path / "out"), columns=COLUMNS, resume=True)
    assert str(caught.value) == f"{tmp_path}/out: cannot read the journal"


LISTS = {
    "bytes[]": [b"c", b"ab"],
    "float64[]": [0.5, -1.0],
    "int[]": [1, -(2**62)],
    "json[]": [{"a": 1}, None],
    "str[]": ["x", "é"],
}


def test_samples_may_contain_lists_if_the_format_stores_them(tmp_path):
    rows = [
        LISTS,
        {name: [] for name in LISTS},
        {name: values[:1] for name, values in LISTS.items()},
    ]
    with Writer(
        str(tmp_path / "d"), format="granular-refs", columns={name: name for name in LISTS}
    ) as writer:
        for row in rows:
            writer.write(row)
    assert list(read.open(str(tmp_path / "d"))) == rows


def test_samples_are_buffered_by_the_bytes_of_their_lists(tmp_path, monkeypatch):
    monkeypatch.setattr("flarecli.write.writer.MAX_BUFFERED_BYTES", 5000)
    with Writer(str(tmp_path / "d"), format="granular-refs", columns={"a": "bytes[]"}) as writer:
        writer.write({"a": [b"x" * 6000]})
        assert not writer._samples


def _left(path, rows, how=None, last=1):
    """Write rows, and drop the Writer."""
    writer = Writer(str(path), columns=COLUMNS, settings=how or Settings(shard_bytes=4000), jobs=2)
    for row in rows:
        writer.write(row)
    return 1 / last


@pytest.mark.parametrize(
    "how",
    [Settings(shard_bytes=4000), Settings(shard_bytes=4000, compression="zstd")],
    ids=["plain", "zstd"],
)
def test_a_garbage_collected_writer_releases_its_lock_and_writes_no_playlist(tmp_path, how):
    complete = pack(tmp_path / "whole", rows := samples(3000), how)
    gc.disable()
    try:
        with pytest.warns(
            ResourceWarning, match="out: a Writer was garbage collected without close"
        ) as warned:
            _left(tmp_path / "out", rows[:2500], how)
            stop = time.monotonic() + 60
            while not len(warned) and time.monotonic() < stop:
                time.sleep(0.01)  # threads that write its shards refer to the Writer
    finally:
        gc.enable()
    assert not {"index.json", "playlist.yaml"} & files_of(tmp_path / "out").keys()
    assert pack(tmp_path / "out", rows, how, resume=True) == complete


def test_a_writer_garbage_collected_before_its_first_shard_leaves_no_files(tmp_path):
    with (
        pytest.warns(ResourceWarning),
        contextlib.suppress(ZeroDivisionError),
    ):  # pytest.raises would keep the frame and its variables
        _left(tmp_path / "out", samples(3), last=0)
    assert not (tmp_path / "out").exists()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")
def test_a_garbage_collected_writer_releases_its_lock_when_warnings_are_errors(tmp_path):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        _left(tmp_path / "out", samples(3))
    Writer(str(tmp_path / "out"), columns=COLUMNS).abandon()


def test_a_forked_process_does_not_abandon_the_writer_of_its_parent(tmp_path):
    writer = Writer(str(tmp_path / "out"), columns=COLUMNS)
    child = os.fork()
    if not child:
        with contextlib.suppress(BaseException):
            del writer
        os._exit(0)
    os.waitpid(child, 0)
    writer.write({"n": 1, "t": "x"})
    with pytest.raises(BusyError):
        Writer(str(tmp_path / "out"), columns=COLUMNS, resume=True)
    writer.close()
    assert len(read.open(str(tmp_path / "out"))) == 1


@pytest.mark.parametrize("how", [{}, {"shard_rows": 3}], ids=str)
def test_a_repeated_key_in_a_tar_is_reported_with_its_row_and_the_shard_is_not_written(
    tmp_path, how
):
    columns = {"__key__": "str", "t": "str"}
    writer = Writer(
        str(tmp_path / "out"), format="webdataset", columns=columns, settings=Settings(**how)
    )
    for key in "abcabd":
        writer.write({"__key__": key, "t": "x"})
    if how:  # another shard may repeat the key
        writer.write({"__key__": "b", "t": "x"})
        writer.write({"__key__": "b", "t": "x"})
    with pytest.raises(ValueFitError) as caught:
        writer.close()
    row, key = ("7", "b") if how else ("3", "a")
    assert str(caught.value) == f"row {row}: duplicate key {key!r} in the same shard"
    assert sorted(name for name in files_of(tmp_path / "out") if name.endswith(".tar")) == (
        ["00000.tar", "00001.tar"] if how else []
    )
    writer.abandon()
