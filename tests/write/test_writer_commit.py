"""The last steps of a pack, and resumes: the playlist is written last, and each failed row is
listed once.
"""

import gc
import json
import os
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest

from flarecli import commands, playlists
from flarecli.errors import FormatError, ReachError, UnsafeError, UsageError
from flarecli.formats import find
from flarecli.hashes import digest
from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.write import Failure, Writer, parts
from tests.outputs import files_of

COLUMNS = {"n": "int"}
TWO = Settings(shard_rows=2)
LACKING = (3, 4, 8, 10, 11)


def pack(out, rows, how=TWO, **options):
    with Writer(str(out), columns=COLUMNS, settings=how, **options) as writer:
        for row in range(writer.rows, rows):
            writer.write({"n": row})
    return files_of(out)


def leave_unfinished(out, rows, how=TWO, **options):
    writer = Writer(str(out), columns=COLUMNS, settings=how, **options)
    for row in range(writer.rows, rows):
        writer.write({"n": row})
    writer._write_samples()
    writer.abandon()


def test_rows_that_fill_a_shard_exactly_are_in_one_shard(tmp_path):
    """The original flushes if its limit would be exceeded: a row that fits exactly is added."""
    pack(
        tmp_path / "one", 3, Settings(shard_bytes=999, shard_rows=3)
    )  # each shard contains the limit, with the same number of digits
    exact = os.path.getsize(tmp_path / "one" / "shard.00000.mds")
    for limit, expected in (
        (exact, [3, 3, 1]),
        (exact - 1, [2, 2, 2, 1]),
        (exact + 11, [3, 3, 1]),
        (exact + 12, [4, 3]),
    ):
        pack(tmp_path / f"{limit}", 7, Settings(shard_bytes=limit))
        listed = json.loads((tmp_path / f"{limit}" / "index.json").read_text())["shards"]
        assert [shard["samples"] for shard in listed] == expected, limit
        assert max(shard["raw_data"]["bytes"] for shard in listed) <= limit


def test_the_playlist_is_written_after_all_other_files(tmp_path, monkeypatch):
    from flarecli.formats import find

    format, seen = find("mds"), []

    def interrupted(at, *args):
        seen.append(
            sorted(name for name in files_of(tmp_path / "out") if not name.startswith(".flare/"))
        )
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(format, "write_index", interrupted)
        pack(tmp_path / "out", 3)
    assert seen == [["shard.00000.mds", "shard.00001.mds"]]
    assert pack(tmp_path / "out", 3, resume=True) == pack(tmp_path / "whole", 3)


def test_the_playlist_of_parts_is_written_last_and_lists_their_files(tmp_path, monkeypatch):
    index, seen = tmp_path / "i.csv", []
    index.write_text("n\n" + "".join(f"{n}\n" for n in range(9)))

    def interrupted(*args):
        seen.append(sorted(path.name for path in (tmp_path / "out").iterdir()))
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(find("mds"), "merge_indexes", interrupted)
        commands.pack(str(index), str(tmp_path / "out"), part_rows=4)
    assert seen == [[".flare", "00000", "00001", "00002"]]
    packed = commands.pack(str(index), str(tmp_path / "out"), part_rows=4, resume=True)
    assert (packed.rows, packed.resumed_rows) == (9, 9)
    (stream,) = playlists.read(locate(str(tmp_path / "out" / "playlist.yaml"))).streams
    for part in ("00000", "00001", "00002"):
        data = (tmp_path / "out" / part / "playlist.yaml").read_bytes()
        listed = stream.files[f"{part}/playlist.yaml"]
        assert (listed.size, listed.hashes) == (len(data), {"xxh3_128": digest(data)})


def test_parts_with_different_checksums_are_not_joined(tmp_path):
    pack(tmp_path / "out" / "00000", 3)
    pack(tmp_path / "out" / "00001", 3, Settings(shard_rows=2, hashes=("sha1",)))
    with pytest.raises(FormatError) as caught:
        parts.join(locate(str(tmp_path / "out")), ["00000", "00001"], {})
    assert (
        str(caught.value)
        == f"{tmp_path}/out/00001: hash types differ: expected xxh3_128, got sha1, xxh3_128"
    )
    assert caught.value.hint == "Pack all parts with the same --hash."
    assert not (tmp_path / "out" / "playlist.yaml").exists()


def test_parts_of_different_formats_are_not_joined(tmp_path):
    pack(tmp_path / "out" / "00000", 3)
    pack(tmp_path / "out" / "00001", 3, format="json")
    with pytest.raises(FormatError) as caught:
        parts.join(locate(str(tmp_path / "out")), ["00000", "00001"], {})
    message = "the format is json; earlier parts have the format mds"
    assert str(caught.value) == f"{tmp_path}/out/00001: {message}"
    assert caught.value.hint == "Pack all parts with the same --format."


def failing(out, stop=None, **options):
    """Rows 3, 4, 8 and the last two fail.

    With `stop`, the process ends after this number of shards, with further failures in the list.
    """
    writer = Writer(str(out), columns=COLUMNS, settings=TWO, **options)
    for begin in range(writer.next, 12, 5):
        rows = range(begin, min(begin + 5, 12))
        for row in rows:
            if row in LACKING:
                writer.failed.add(
                    Failure(row, f"k{row}", "n", "null" if row % 2 else "value", "n is null")
                )
        good = [row for row in rows if row not in LACKING]
        if good:
            writer.write_batch(pa.record_batch({"n": pa.array(good, pa.int64())}), np.array(good))
        if stop is not None and writer.shards >= stop:
            writer.abandon()
            with (Path(out) / "failed.jsonl").open("ab") as adding_file:
                adding_file.write(
                    b'{"file": null, "row": 4, "key": "k4", "column'
                )  # ended while it wrote
            return writer
    writer.close()
    return writer


@pytest.mark.parametrize("stop", [1, 2])
def test_failed_rows_are_counted_and_listed_once_however_often_a_pack_is_interrupted(
    tmp_path, stop
):
    complete = failing(tmp_path / "whole")
    assert [
        json.loads(line)["row"]
        for line in (tmp_path / "whole" / "failed.jsonl").read_text().splitlines()
    ] == [*LACKING]
    assert complete.failed.counts == {"null": 2, "value": 3}
    for rounds in range(2):  # interrupted twice at the same place
        failing(tmp_path / f"out{rounds}", stop)
        if rounds:
            failing(tmp_path / f"out{rounds}", stop + 1, resume=True)
        second = failing(tmp_path / f"out{rounds}", resume=True)
        assert second.failed.counts == complete.failed.counts
        assert files_of(tmp_path / f"out{rounds}") == files_of(tmp_path / "whole")
    assert list(commands.verify(str(tmp_path / "out0"))) == []


def test_failed_rows_after_the_last_shard_are_listed(tmp_path):
    with Writer(str(tmp_path / "out"), columns=COLUMNS, settings=TWO) as writer:
        for row in range(3):
            writer.write_batch(pa.record_batch({"n": pa.array([row], pa.int64())}), np.array([row]))
        writer._flush(3)
        writer.failed.add(Failure(3, "k3", "n", "null", "n is null"))
    assert [
        json.loads(line)["row"]
        for line in (tmp_path / "out" / "failed.jsonl").read_text().splitlines()
    ] == [3]


def test_an_unfinished_pack_of_another_version_is_not_resumed(tmp_path, monkeypatch):
    """The bytes may differ between versions."""
    index = tmp_path / "i.csv"
    index.write_text("n\n1\n2\n3\n4\n5\n")
    leave_unfinished(tmp_path / "out", 5)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(find("mds"), "merge_indexes", _interrupted)
        commands.pack(str(index), str(tmp_path / "parts"), part_rows=2)
    monkeypatch.setattr("flarecli.write.writer.__version__", "99.1")
    monkeypatch.setattr("flarecli.commands.packing.parts.__version__", "99.1")
    from flarecli import __version__

    for out, go_on in (
        ("out", lambda: pack(tmp_path / "out", 5, resume=True)),
        (
            "parts",
            lambda: commands.pack(str(index), str(tmp_path / "parts"), part_rows=2, resume=True),
        ),
    ):
        with pytest.raises(UsageError) as caught:
            go_on()
        assert (
            str(caught.value)
            == f'{tmp_path}/{out}: the unfinished pack was started with flare "{__version__}", not "99.1"'
        )


def _interrupted(*_):
    raise KeyboardInterrupt


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("rows", "2"),
        ("rows", None),
        ("next", 2.5),
        ("failed", []),
        ("files", []),
        ("files", [{"x": 1}]),
    ],
)
def test_an_invalid_line_of_the_journal_is_ignored(tmp_path, name, value):
    leave_unfinished(tmp_path / "out", 9)
    journal = tmp_path / "out" / ".flare" / "journal"
    lines = [json.loads(line) for line in journal.read_text().splitlines()]
    lines[3][name] = value
    journal.write_text("".join(json.dumps(line) + "\n" for line in lines))
    writer = Writer(str(tmp_path / "out"), columns=COLUMNS, settings=TWO, resume=True)
    assert writer.rows == 2
    writer.abandon()
    assert pack(tmp_path / "out", 9, resume=True) == pack(tmp_path / "whole", 9)


def test_a_refused_resume_closes_all_files(tmp_path):
    leave_unfinished(tmp_path / "out", 5)
    (tmp_path / "out" / ".flare" / "journal").open("ab").write(
        b"torn"
    )  # so that the list is opened and truncated
    before = set(os.listdir("/proc/self/fd"))
    for _ in range(3):
        with pytest.raises(UsageError):
            pack(tmp_path / "out", 5, Settings(shard_rows=3), resume=True)
    assert len(os.listdir("/proc/self/fd")) == len(before)


def test_a_link_at_the_path_of_failed_jsonl_is_not_followed(tmp_path):
    failing(tmp_path / "out", 1)
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "out" / "failed.jsonl").unlink()
    (tmp_path / "out" / "failed.jsonl").symlink_to(tmp_path / "mine")
    with pytest.raises(UnsafeError):
        failing(tmp_path / "out", resume=True)
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_truncated_list_of_failed_rows_is_synced_before_the_playlist_is_written(
    tmp_path, monkeypatch
):
    """No later row may fail, since that would sync the list."""
    writer = Writer(str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=1))
    writer.failed.add(Failure(0, "k0", "n", "null", "n is null"))
    for row in (1, 2, 3):
        writer.write_batch(pa.record_batch({"n": pa.array([row], pa.int64())}), np.array([row]))
    writer.abandon()
    failed = tmp_path / "out" / "failed.jsonl"
    size, safe, fsync = failed.stat().st_size, [], os.fsync
    failed.write_bytes(failed.read_bytes() + b"torn")

    def recording_fsync(fd):
        if os.readlink(f"/proc/self/fd/{fd}") == str(failed):
            safe.append(os.fstat(fd).st_size)
        fsync(fd)

    monkeypatch.setattr("os.fsync", recording_fsync)
    with Writer(
        str(tmp_path / "out"), columns=COLUMNS, settings=Settings(shard_rows=1), resume=True
    ) as writer:
        assert safe == [size]


def test_a_failed_truncation_is_an_error_with_the_name_of_the_file(tmp_path, monkeypatch):
    leave_unfinished(tmp_path / "out", 5)
    with (tmp_path / "out" / ".flare" / "journal").open("ab") as journal:
        journal.write(b"torn")

    def refused(*_):
        raise OSError(5, "Input/output error")

    monkeypatch.setattr("os.ftruncate", refused)
    with pytest.raises(ReachError) as caught:
        pack(tmp_path / "out", 5, resume=True)
    assert str(caught.value) == f"{tmp_path}/out/.flare/journal: input/output error"


def test_a_refused_writer_releases_the_folder_and_removes_nothing(tmp_path):
    leave_unfinished(tmp_path / "out", 5)
    before = {
        name: data for name, data in files_of(tmp_path / "out").items() if name != ".flare/lock"
    }
    for columns, how, message in (
        ({"n": "str"}, TWO, "the unfinished pack has different columns"),
        (
            COLUMNS,
            Settings(shard_rows=3),
            "the unfinished pack was started with shard_rows 2, not 3",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            Writer(str(tmp_path / "out"), columns=columns, settings=how, resume=True)
        assert str(caught.value) == f"{tmp_path}/out: {message}"
        assert {
            name: data for name, data in files_of(tmp_path / "out").items() if name != ".flare/lock"
        } == before
    assert pack(tmp_path / "out", 5, resume=True) == pack(tmp_path / "whole", 5)


def test_a_closed_writer_causes_no_resource_warning(tmp_path, recwarn):
    pack(tmp_path / "out", 3)
    writer = Writer(str(tmp_path / "other"), columns=COLUMNS)
    writer.abandon()
    del writer
    gc.collect()
    assert [str(one.message) for one in recwarn if issubclass(one.category, ResourceWarning)] == []


def test_without_a_size_limit_shards_are_at_most_4_gib(tmp_path, monkeypatch):
    monkeypatch.setattr("flarecli.write.writer.SHARD_LIMIT", 300)
    pack(tmp_path / "out", 50, Settings(shard_bytes=None))
    assert max(path.stat().st_size for path in (tmp_path / "out").glob("*.mds")) <= 300
    assert len(list((tmp_path / "out").glob("*.mds"))) > 2
