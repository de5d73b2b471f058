"""Other files in the output folder of an unpack are never removed or replaced."""

import json
import os
import shutil
import signal
from dataclasses import replace
from pathlib import Path

import pytest

from flarecli import commands
from flarecli.commands.unpacking import target as outlets
from flarecli.errors import ReachError, UnsafeError, UsageError
from flarecli.model import Settings
from flarecli.progress import Progress
from flarecli.write import Writer
from tests.kills import killed_at_each_step
from tests.outputs import files_of, state_of

HINT = "Move this file elsewhere first."
ROWS = 12
CALLS = (
    "write",
    "link",
    "rename",
    "unlink",
    "mkdir",
    "rmdir",
    "fsync",
    "ftruncate",
)  # a kill may occur before these calls


def kept(folder):
    """Return the files that a refusal must not change, without the owner of the lock."""
    return {name: data for name, data in files_of(folder).items() if name != ".flare/lock"}


@pytest.fixture
def source(tmp_path):
    """Write a dataset of twelve files in folders, three per batch."""
    with Writer(
        str(tmp_path / "d"), columns={"key": "str", "b": "bytes"}, settings=Settings(shard_rows=3)
    ) as writer:
        for n in range(ROWS):
            writer.write({"key": f"{n % 2}/k{n}", "b": b"%d" % n})
    return str(tmp_path / "d")


def names(rows):
    return sorted(f"{n % 2}/k{n}.bin" for n in rows)


def leave_unfinished(source, to, monkeypatch, after=7):
    """Run an unpack whose disk fails at a file."""
    put, count = outlets.Folder.write, iter(range(after))

    def failing(self, name, data):
        if next(count, None) is None:
            raise ReachError("the disk is full", where=name)
        put(self, name, data)

    with monkeypatch.context() as patch, pytest.raises(ReachError):
        patch.setattr(outlets.Folder, "write", failing)
        commands.unpack(source, str(to))


def killed(step, source, to, **options):
    """Unpack in a process that is killed before a step; return whether it reached the step."""
    child = os.fork()
    if child:
        return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 9
    try:
        signal.alarm(30)
        left = [step]

        def counting(real):
            def call(*args, **more):
                left[0] -= 1
                if left[0] < 0:
                    os._exit(9)
                return real(*args, **more)

            return call

        for name in CALLS:
            setattr(os, name, counting(getattr(os, name)))
        commands.unpack(source, to, **options)
    finally:
        os._exit(0)


def test_overwrite_of_an_unfinished_unpack_removes_only_its_files(source, tmp_path, monkeypatch):
    to = tmp_path / "f"
    leave_unfinished(source, to, monkeypatch)
    for other in (
        "notes.txt",
        "0/notes.txt",
        "mine/notes.txt",
        "k8.bin",
        "1/k99.bin",
        "index.jsonl",
        "index.csv",
    ):
        (to / other).parent.mkdir(exist_ok=True)
        (to / other).write_text("mine")
        before = kept(to)
        with pytest.raises(UsageError) as caught:
            commands.unpack(source, str(to), overwrite=True)
        assert (str(caught.value), caught.value.hint) == (
            f"{to}: contains another file {other!r}, which the unfinished unpack did not write",
            HINT,
        )
        assert kept(to) == before
        (to / other).unlink()
    (to / "mine").rmdir()
    commands.unpack(source, str(to), overwrite=True, rows="3:5", index="none")
    assert sorted(files_of(to)) == names([3, 4])


def test_a_symbolic_link_in_the_target_is_a_file_of_the_user(source, tmp_path, monkeypatch):
    to = tmp_path / "f"
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "notes").write_text("precious")
    commands.unpack(source, str(tmp_path / "done"))
    leave_unfinished(source, to, monkeypatch)
    for folder, output in (
        (to, ", which the unfinished unpack did not write"),
        (tmp_path / "done", ": index.jsonl does not list it"),
    ):
        (folder / "0" / "link").symlink_to(tmp_path / "mine")
        with pytest.raises(UsageError) as caught:
            commands.unpack(source, str(folder), overwrite=True)
        assert str(caught.value) == f"{folder}: contains another file '0/link'{output}"
        assert os.readlink(folder / "0" / "link") == str(tmp_path / "mine")
    assert files_of(tmp_path / "mine") == {"notes": b"precious"}


@pytest.mark.parametrize("ends", ["of another size", "of the same size"])
def test_a_resume_replaces_only_files_that_it_began(source, tmp_path, monkeypatch, ends):
    to, content = tmp_path / "f", "0" if ends == "of the same size" else "mine"
    leave_unfinished(source, to, monkeypatch, 4)
    (to / "1" / "k9.bin").write_text(content)
    for options, output in (
        ({"resume": True}, f"{to}/1/k9.bin: already exists"),
        ({"resume": True}, f"{to}/1/k9.bin: already exists"),
        (
            {"overwrite": True},
            f"{to}: contains another file '1/k9.bin', which the unfinished unpack did not write",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            commands.unpack(source, str(to), **options)
        assert str(caught.value) == output
        assert (to / "1" / "k9.bin").read_text() == content
    (to / "1" / "k9.bin").unlink()
    commands.unpack(source, str(to), resume=True)
    commands.unpack(source, str(tmp_path / "whole"))
    assert files_of(to) == files_of(tmp_path / "whole")


def test_a_file_that_appears_before_unpack_writes_it_is_kept(source, tmp_path, monkeypatch):
    to, put = tmp_path / "f", outlets.Folder.write

    def adding_file(self, name, data):
        if name.endswith("k7.bin"):
            (to / name).write_text("mine")
        put(self, name, data)

    with monkeypatch.context() as patch, pytest.raises(UsageError) as caught:
        patch.setattr(outlets.Folder, "write", adding_file)
        commands.unpack(source, str(to))
    assert str(caught.value) == f"{to}/1/k7.bin: already exists"
    with pytest.raises(UsageError) as caught:
        commands.unpack(source, str(to), overwrite=True)
    assert (
        str(caught.value)
        == f"{to}: contains another file '1/k7.bin', which the unfinished unpack did not write"
    )
    assert (to / "1" / "k7.bin").read_text() == "mine"


def test_an_unpack_that_fails_at_once_removes_only_its_files(source, tmp_path, monkeypatch):
    leave_unfinished(source, tmp_path / "f", monkeypatch, 2)
    assert not (tmp_path / "f").exists()
    (tmp_path / "f").mkdir()
    put = outlets.Folder.write

    def failing_with_file(self, name, data):
        put(self, name, data)
        (tmp_path / "f" / "mine").write_text("mine")
        raise ReachError("the disk is full", where=name)

    with monkeypatch.context() as patch, pytest.raises(ReachError):
        patch.setattr(outlets.Folder, "write", failing_with_file)
        commands.unpack(source, str(tmp_path / "f"))
    assert (tmp_path / "f" / "mine").read_text() == "mine"


@pytest.mark.parametrize("index", ["jsonl", "none"])
def test_an_unpack_killed_at_any_step_can_be_resumed_or_overwritten(source, tmp_path, index):
    some, others = {"index": index, "rows": "0:4"}, {"index": index, "rows": "2:5"}
    commands.unpack(source, str(tmp_path / "whole"), **some)
    commands.unpack(source, str(tmp_path / "other"), **others)
    complete, other = files_of(tmp_path / "whole"), files_of(tmp_path / "other")

    def is_whole(folder):
        return files_of(folder) == complete and not (folder / ".flare").exists()

    count, states, second = 0, [], tmp_path / "second"
    for step, to, _ in killed_at_each_step(
        lambda to: commands.unpack(source, str(to), **some), tmp_path / "none"
    ):
        count += 1
        if (state := state_of(to)) in states:
            continue  # the same folder was checked after an earlier kill
        states.append(state)
        shutil.rmtree(second, ignore_errors=True)
        if to.exists():
            shutil.copytree(to, second)
        if not is_whole(to):
            if (to / ".flare" / "journal").exists():
                (to / "mine").write_text("mine")
                with pytest.raises(UsageError) as caught:
                    commands.unpack(source, str(to), overwrite=True, **some)
                assert (
                    str(caught.value)
                    == f"{to}: contains another file 'mine', which the unfinished unpack did not write"
                )
                (to / "mine").unlink()
            killed(step // 4, source, str(to), resume=True, **some)
            if not is_whole(to):
                commands.unpack(source, str(to), resume=True, **some)
            assert files_of(to) == complete, step
            if (second / ".flare" / "journal").exists():
                commands.unpack(source, str(second), overwrite=True, **others)
                assert files_of(second) == other, step
    assert count > 60


def test_the_names_of_a_batch_are_synced_once_before_its_first_file(source, tmp_path, monkeypatch):
    waits, recorded, fsync, put = [], [], os.fsync, outlets.Folder.write

    def waiting(fd):
        if os.readlink(f"/proc/self/fd/{fd}").endswith("/begun"):
            waits.append(Path(f"/proc/self/fd/{fd}").read_bytes())
        fsync(fd)

    def putting(self, name, data):
        recorded.append(any(name in json.loads(line)["names"] for line in waits[-1].splitlines()))
        put(self, name, data)

    monkeypatch.setattr("os.fsync", waiting)
    monkeypatch.setattr(outlets.Folder, "write", putting)
    commands.unpack(source, str(tmp_path / "f"))
    assert recorded == [True] * ROWS
    assert len(waits) == ROWS // 3 + 1  # and one for the index
    lines = [json.loads(line) for line in waits[-1].splitlines()]
    assert [line["next"] for line in lines] == [0, 3, 6, 9, 12]
    assert lines[-1]["names"] == ["index.jsonl"]


def test_files_named_only_by_an_incomplete_record_are_kept(source, tmp_path, monkeypatch):
    to = tmp_path / "f"
    leave_unfinished(source, to, monkeypatch)
    with (to / ".flare" / "begun").open("ab") as log:
        log.write(b'{"next": 9, "names": ["mine"]}')
    (to / "mine").write_text("mine")
    with pytest.raises(UsageError):
        commands.unpack(source, str(to), overwrite=True)
    commands.unpack(source, str(to), resume=True)
    commands.unpack(source, str(tmp_path / "whole"))
    assert files_of(to) == {**files_of(tmp_path / "whole"), "mine": b"mine"}


def test_a_folder_that_replaced_a_finished_unpack_is_not_overwritten(source, tmp_path):
    to = tmp_path / "f"
    commands.unpack(source, str(to))
    assert killed(60, source, str(to), overwrite=True)
    assert (tmp_path / ".f.flare-new").is_dir()
    to.rename(tmp_path / "elsewhere")
    to.mkdir()
    (to / "mine").write_text("mine")
    for options in ({"overwrite": True}, {"overwrite": True, "resume": True}):
        with pytest.raises(UsageError) as caught:
            commands.unpack(source, str(to), **options)
        assert (
            str(caught.value)
            == f"{to}: contains another file 'mine': there is no index that lists it"
        )
    assert files_of(to) == {"mine": b"mine"}


def test_a_finished_unpack_without_an_index_is_finished(source, tmp_path):
    """Without an index, a folder that is not empty must contain exactly the unpacked files."""
    to, notes = tmp_path / "f", []
    progress = Progress()
    progress.note = lambda text, verbose=False: None if verbose else notes.append(text)
    done = commands.unpack(source, str(to), index="none")
    second = commands.unpack(source, str(to), index="none", resume=True, progress=progress)
    assert (notes, second) == (
        ["nothing to resume: the unpack is finished"],
        replace(done, resumed_rows=ROWS),
    )
    assert sorted(files_of(to)) == names(range(ROWS))
    hint = "Specify another folder. If a folder is not empty and has no index, it must contain exactly the files that this command would write."

    def refused(output, **options):
        before = files_of(to)
        with pytest.raises(UsageError) as caught:
            commands.unpack(source, str(to), index="none", resume=True, **options)
        assert (str(caught.value), caught.value.hint) == (
            f"{to}: output folder is not empty, and {output}",
            hint,
        )
        assert files_of(to) == before

    refused("'0/k10.bin' is not a file of this unpack", rows="0:6")
    refused("'0/k0.txt' is missing", name="{key}.txt")
    (to / "notes").write_text("mine")
    refused("'notes' is not a file of this unpack")
    (to / "notes").unlink()
    (to / "0" / "k4.bin").write_text("four")
    refused("'0/k4.bin' is 4 bytes; expected 1")
    (to / "0" / "k4.bin").unlink()
    refused("'0/k4.bin' is missing")
    (to / "0" / "k4.bin").symlink_to("k2.bin")
    refused("'0/k4.bin' is missing")


def test_a_finished_unpack_without_an_index_counts_its_failed_rows(tmp_path):
    with Writer(str(tmp_path / "d"), columns={"key": "str", "b": "bytes"}) as writer:
        for key in ("a", "", "c", "../d"):
            writer.write({"key": key, "b": key.encode()})
    how = {"index": "none", "on_error": "skip"}
    done = commands.unpack(str(tmp_path / "d"), str(tmp_path / "f"), **how)
    assert (done.rows, done.failed, sorted(files_of(tmp_path / "f"))) == (
        2,
        2,
        ["a.bin", "c.bin", "failed.jsonl"],
    )
    assert commands.unpack(str(tmp_path / "d"), str(tmp_path / "f"), resume=True, **how) == replace(
        done, resumed_rows=2
    )
    (tmp_path / "f" / "failed.jsonl").unlink()
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(tmp_path / "d"), str(tmp_path / "f"), resume=True, **how)
    assert (
        str(caught.value)
        == f"{tmp_path}/f: output folder is not empty, and 'failed.jsonl' is missing"
    )


def test_a_finished_unpack_of_links_without_an_index_is_not_checked_by_downloads(tmp_path):
    (tmp_path / "a").write_text("a")
    (tmp_path / "i.csv").write_text("url\na\n")
    commands.unpack(str(tmp_path / "i.csv"), str(tmp_path / "f"), fetch=["url"], index="none")
    (tmp_path / "a").unlink()
    with pytest.raises(UsageError) as caught:
        commands.unpack(
            str(tmp_path / "i.csv"), str(tmp_path / "f"), fetch=["url"], index="none", resume=True
        )
    hint = "Specify another folder: without an index, flare cannot check that all downloads are complete."
    assert (str(caught.value), caught.value.hint) == (
        f"{tmp_path}/f: output folder is not empty",
        hint,
    )


@pytest.mark.parametrize("name", ["begun", "journal"])
def test_a_link_at_the_path_of_a_log_is_not_followed(source, tmp_path, monkeypatch, name):
    """A copied folder may contain such a link."""
    to = tmp_path / "f"
    leave_unfinished(source, to, monkeypatch)
    (tmp_path / "mine").write_text('{"next": 0, "names": ["notes"]}\n')
    (to / ".flare" / name).unlink()
    (to / ".flare" / name).symlink_to(tmp_path / "mine")
    (to / "notes").write_text("mine")
    for options in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(UnsafeError) as caught:
            commands.unpack(source, str(to), **options)
        assert (
            str(caught.value)
            == f"{to}/.flare/{name}: is a symbolic link; its target may be outside the folder"
        )
    assert (to / "notes").read_text() == "mine"
    assert (tmp_path / "mine").read_text() == '{"next": 0, "names": ["notes"]}\n'


@pytest.mark.parametrize(
    "line",
    [
        '{"next": "0", "names": 7}',
        '{"next": 0, "names": [7, ["notes"], null]}',
        '{"files": ["notes"]}',
        '{"files": {"b": 7}}',
        "7",
    ],
)
@pytest.mark.parametrize("name", ["begun", "journal"])
def test_files_named_only_by_invalid_records_are_kept(source, tmp_path, monkeypatch, name, line):
    to = tmp_path / "f"
    leave_unfinished(source, to, monkeypatch)
    with (to / ".flare" / name).open("a") as log:
        log.write(f"{line}\n")
    (to / "notes").write_text("mine")
    with pytest.raises(UsageError) as caught:
        commands.unpack(source, str(to), overwrite=True)
    assert (
        str(caught.value)
        == f"{to}: contains another file 'notes', which the unfinished unpack did not write"
    )
    (to / "notes").unlink()
    commands.unpack(source, str(to), overwrite=True, rows="0", index="none")
    assert sorted(files_of(to)) == names([0])


@pytest.mark.parametrize(
    "line",
    [
        '{"rows": [{"files": {"b": 7}, "values": {}}], "next": 3, "failed": {}}',
        '{"rows": [{"files": {"b": ["x"]}, "values": {}}], "next": 3, "failed": {}}',
        '{"rows": [{"files": [], "values": {}}], "next": 3, "failed": {}}',
        '{"rows": [{"files": {}}], "next": 3, "failed": {}}',
        '{"rows": [7], "next": 3, "failed": {}}',
        '{"rows": {}, "next": 3, "failed": {}}',
        '{"rows": [], "next": "3", "failed": {}}',
        '{"rows": [], "next": 3, "failed": []}',
        '{"rows": [], "next": 3}',
        "{}",
    ],
)
@pytest.mark.parametrize("at", [1, 2])
def test_a_resume_starts_at_the_first_invalid_line_of_the_journal(
    source, tmp_path, monkeypatch, line, at
):
    to = tmp_path / "f"
    leave_unfinished(source, to, monkeypatch)
    journal = to / ".flare" / "journal"
    lines = journal.read_text().splitlines()
    assert at < len(lines)
    journal.write_text("\n".join([*lines[:at], line, *lines[at + 1 :]]) + "\n")
    commands.unpack(source, str(to), resume=True)
    commands.unpack(source, str(tmp_path / "whole"))
    assert files_of(to) == files_of(tmp_path / "whole")


def test_files_added_to_the_old_folder_during_an_unpack_are_kept(source, tmp_path, monkeypatch):
    to, put = tmp_path / "f", outlets.Folder.write
    commands.unpack(source, str(to))
    old = files_of(to)

    def adding_file(self, name, data):
        (to / "notes").write_text("mine")
        put(self, name, data)

    with monkeypatch.context() as patch, pytest.raises(UsageError) as caught:
        patch.setattr(outlets.Folder, "write", adding_file)
        commands.unpack(source, str(to), overwrite=True, rows="0:6")
    assert (str(caught.value), caught.value.hint) == (
        f"{to}: contains another file 'notes': index.jsonl does not list it",
        HINT,
    )
    assert files_of(to) == {**old, "notes": b"mine"}
    (to / "notes").unlink()
    commands.unpack(source, str(to), overwrite=True, resume=True, rows="0:6")
    assert sorted(files_of(to)) == sorted([*names(range(6)), "index.jsonl"])
    assert sorted(os.listdir(tmp_path)) == ["d", "f"]
