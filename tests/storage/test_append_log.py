"""Append logs in local folders and in buckets: appended entries survive, a torn last line is
ignored.
"""

import os
import time

import numpy as np
import pyarrow as pa
import pytest

from flarecli import __version__, commands
from flarecli.errors import BusyError, FormatError, ReachError, UnsafeError, UsageError
from flarecli.model import Settings
from flarecli.progress import Progress
from flarecli.storage import locate
from flarecli.storage.append_log import format_line, open_log
from flarecli.write import Failure, Writer

FIRST, SECOND = {"shard": "é", "rows": 2}, {"shard": "b", "rows": 3}


@pytest.fixture(params=["folder", "bucket"])
def out(request, tmp_path):
    if request.param == "bucket":
        return locate(f"memory://log{time.monotonic_ns()}")
    (tmp_path / ".flare").mkdir()
    return locate(str(tmp_path))


def entries(log):
    return [entry for _, entry in log.entries()]


@pytest.mark.parametrize("name", [".flare/journal", "failed.jsonl"])
def test_a_log_returns_the_appended_entries(out, name):
    log = open_log(out / name)
    assert (log.size, entries(log)) == (0, [])
    log.append(format_line(FIRST))
    log.append(format_line(SECOND))
    log.close()
    again = open_log(out / name)
    assert [line.entry for line in again.entries()] == [FIRST, SECOND]
    assert [line.stop for line in again.entries()] == [31, 57]
    assert again.size == 57
    again.cut(31)
    assert entries(open_log(out / name)) == [FIRST]
    again.cut(0)
    assert (open_log(out / name).size, entries(open_log(out / name))) == (0, [])


def test_a_published_log_is_one_file(out):
    log = open_log(out / "failed.jsonl")
    log.append(b"a\n")
    log.append(b"b\n")
    log.publish()
    assert bytes((out / "failed.jsonl").read()) == b"a\nb\n"


def test_reading_a_missing_log_creates_no_file(tmp_path):
    log = open_log(locate(str(tmp_path)) / "log")
    assert (log.size, list(log.blocks()), entries(log)) == (0, [], [])
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize(
    "torn", [b"{", b'{"shard": "b"', b'{"shard": "b", "rows": 3}', b"\xff" * 70]
)
def test_a_torn_last_line_is_ignored_and_cut_off(tmp_path, torn):
    path = tmp_path / "log"
    path.write_bytes(format_line(FIRST) + torn)
    log = open_log(locate(str(tmp_path)) / "log")
    ((stop, entry),) = log.entries()
    assert (entry, log.size) == (FIRST, stop + len(torn))
    log.cut(stop)
    log.append(format_line(SECOND))
    assert path.read_bytes() == format_line(FIRST) + format_line(SECOND)


def test_lines_longer_than_a_block_are_read_whole(tmp_path):
    texts = ["a" * 700_000, "b", "c" * 300_000]
    (tmp_path / "log").write_bytes(b"".join(format_line({"t": text}) for text in texts))
    log = open_log(locate(str(tmp_path)) / "log")
    assert [entry["t"] for entry in entries(log)] == texts


@pytest.mark.parametrize("line", ["7", "[]", "{", "", "[" * 100_000, '{"a": 1}\r{"a": 2}'])
def test_a_line_that_is_not_a_json_object_has_no_entry(tmp_path, line):
    (tmp_path / "log").write_text(f'{{"a": 0}}\n{line}\n')
    log = open_log(locate(str(tmp_path)) / "log")
    assert entries(log) == [{"a": 0}, None]


def test_a_symbolic_link_instead_of_a_log_is_not_followed(tmp_path):
    (tmp_path / "mine").write_text('{"a": 1}\n')
    (tmp_path / "log").symlink_to("mine")
    log = open_log(locate(str(tmp_path)) / "log")
    for use in (lambda: log.size, lambda: log.append(b"x\n"), lambda: log.cut(3)):
        with pytest.raises(UnsafeError):
            use()
    assert (tmp_path / "mine").read_text() == '{"a": 1}\n'


def test_a_file_that_replaced_a_log_is_not_removed(tmp_path):
    log = open_log(locate(str(tmp_path)) / "log")
    log.append(b"a\n")
    (tmp_path / "log").rename(tmp_path / "moved")
    (tmp_path / "log").write_text("mine")
    log.remove()
    assert (tmp_path / "log").read_text() == "mine"


def test_entries_after_a_missing_object_are_dropped():
    out = locate(f"memory://log{time.monotonic_ns()}")
    log = open_log(out / ".flare/journal")
    for number in range(4):
        log.append(format_line({"n": number}))
    (out / ".flare/journal/00001.json").delete()
    assert entries(open_log(out / ".flare/journal")) == [{"n": 0}]
    assert [entry.name for entry in (out / ".flare/journal").list()] == ["00000.json"]


def test_an_object_that_another_process_added_is_kept():
    out = locate(f"memory://log{time.monotonic_ns()}")
    mine, theirs = open_log(out / ".flare/journal"), open_log(out / ".flare/journal")
    theirs.append(b'{"n": 1}\n')
    mine.append(b'{"n": 1}\n')  # the same bytes: our own request, whose response was lost
    theirs.append(b'{"n": 2}\n')
    with pytest.raises(BusyError) as caught:
        mine.append(b'{"n": 3}\n')
    assert caught.value.message == "another pack is writing to this folder"
    assert entries(open_log(out / ".flare/journal")) == [{"n": 1}, {"n": 2}]
    with pytest.raises(FormatError):
        mine.cut(4)


PACK = """\
{{"flare": "{version}", "format": "mds", "settings": {{"compression": null, "hashes": [], "shard_bytes": 67108864, "shard_rows": 2, "newline": "\\n", "separator": ","}}}}
{{"columns": [["n", "int"]]}}
{{"shard": "shard.00000.mds", "rows": 2, "next": 2, "files": [{{"name": "shard.00000.mds", "size": 195, "hashes": {{"xxh3_128": "f13764504628b35cc534126079edd67d"}}, "raw_size": null, "raw_hashes": {{}}}}], "failed": {{"bytes": 0, "kinds": {{}}}}}}
{{"shard": "shard.00001.mds", "rows": 2, "next": 5, "files": [{{"name": "shard.00001.mds", "size": 195, "hashes": {{"xxh3_128": "466300f48832846fb61bf70d726030fa"}}, "raw_size": null, "raw_hashes": {{}}}}], "failed": {{"bytes": 92, "kinds": {{"null": 1}}}}}}
"""


FAILED = (
    '{"file": null, "row": 3, "key": "k3", "column": "n", "kind": "null", "reason": "n is null"}\n'
)


def write(path, stop, **options):
    """Write rows 0 to `stop`, of which row 3 fails."""
    with Writer(
        str(path), columns={"n": "int"}, settings=Settings(shard_rows=2), **options
    ) as writer:
        start = writer.next
        for row in range(start, stop):
            if row == 3:
                writer.failed.add(Failure(3, "k3", "n", "null", "n is null"))
            else:
                batch = pa.record_batch({"n": pa.array([row], pa.int64())})
                writer.write_batch(batch, np.array([row]))
    return start


def test_an_unfinished_pack_of_version_0_1_is_resumed_to_the_same_bytes(tmp_path):
    whole, half = tmp_path / "whole", tmp_path / "half"
    write(whole, 7)
    (half / ".flare").mkdir(parents=True)
    for name in ("shard.00000.mds", "shard.00001.mds"):
        (half / name).write_bytes((whole / name).read_bytes())
    (half / "failed.jsonl").write_text(FAILED + "torn")
    (half / ".flare/journal").write_text(PACK.format(version=__version__) + '{"shard": "sha')
    assert write(half, 7, resume=True) == 5
    assert {one.name: one.read_bytes() for one in half.iterdir()} == {
        one.name: one.read_bytes() for one in whole.iterdir()
    }


def test_an_unfinished_pack_of_another_version_is_refused_by_name(tmp_path):
    (tmp_path / "out/.flare").mkdir(parents=True)
    (tmp_path / "out/.flare/journal").write_text(PACK.format(version="0.0.9"))
    with pytest.raises(UsageError) as caught:
        write(tmp_path / "out", 7, resume=True)
    assert (
        caught.value.message
        == f'the unfinished pack was started with flare "0.0.9", not "{__version__}"'
    )


UNPACK = """\
{"rows": [{"values": {"key": "k0", "b": null}, "files": {"b": ["00.bin", 0]}}, \
{"values": {"key": "k1", "b": null}, "files": {"b": ["01.bin", 1]}}, \
{"values": {"key": "k2", "b": null}, "files": {"b": ["02.bin", 2]}}, \
{"values": {"key": "k3", "b": null}, "files": {"b": ["03.bin", 3]}}], \
"next": 4, "failed": {"bytes": 0, "kinds": {}}}
{"rows": [{"values": {"key": "k4", "b": n"""


BEGUN = """\
{"next": 0, "names": ["00.bin", "01.bin", "02.bin", "03.bin"]}
{"next": 4, "names": ["04.bin", "05.bin"]}
{"next": 6, "na"""


class Stopped(Exception):
    """Raised after the rows of the first shard."""


class Stopping(Progress):
    rows = 0

    def advance(self, rows, size=0):
        self.rows += rows
        if self.rows > 4:
            raise Stopped


@pytest.fixture
def half(tmp_path):
    """A folder of an unpack of version 0.1 that was killed while it wrote row 4."""
    with Writer(
        str(tmp_path / "src"), columns={"key": "str", "b": "bytes"}, settings=Settings(shard_rows=4)
    ) as writer:
        for i in range(6):
            writer.write({"key": f"k{i}", "b": b"x" * i})
    half = tmp_path / "half"
    with pytest.raises(Stopped):
        unpack(tmp_path, half, progress=Stopping())
    journal = half / ".flare/journal"
    journal.write_text(journal.read_text().splitlines(keepends=True)[0] + UNPACK)
    (half / ".flare/begun").write_text(BEGUN)
    (half / "04.bin").write_bytes(b"torn!")
    return half


def unpack(folder, out, **options):
    return commands.unpack(str(folder / "src"), str(out), name="{row:02d}.bin", **options)


def test_an_unfinished_unpack_of_version_0_1_is_resumed(tmp_path, half):
    unpack(tmp_path, tmp_path / "whole")
    assert unpack(tmp_path, half, resume=True).resumed_rows == 4
    assert {one.name: one.read_bytes() for one in half.iterdir()} == {
        one.name: one.read_bytes() for one in (tmp_path / "whole").iterdir()
    }


def test_an_unfinished_unpack_of_another_version_is_refused_by_name(tmp_path, half):
    journal = half / ".flare/journal"
    journal.write_text(journal.read_text().replace(f'"flare": "{__version__}"', '"flare": "0.0.9"'))
    with pytest.raises(UsageError) as caught:
        unpack(tmp_path, half, resume=True)
    assert (
        caught.value.message
        == f'the unfinished unpack was started with flare "0.0.9", not "{__version__}"'
    )
    assert (half / "04.bin").read_bytes() == b"torn!"


def test_a_failed_close_does_not_close_another_file(tmp_path):
    log = open_log(locate(str(tmp_path)) / "log")
    log.append(format_line(FIRST))
    os.close(log._fd)  # so that the log's own close fails
    with pytest.raises(ReachError) as caught:
        log.close()
    assert str(caught.value) == f"{tmp_path}/log: bad file descriptor"
    with (tmp_path / "other").open("wb") as other:  # gets the number of the closed file
        log.close()
        other.write(b"x")
    assert (tmp_path / "other").read_bytes() == b"x"
