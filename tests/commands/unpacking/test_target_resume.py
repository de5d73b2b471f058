"""A resumed unpack needs the same rows and options, and lists each failed row once."""

import json
import re

import pytest

from flarecli import commands
from flarecli.commands.unpacking import target as outlets
from flarecli.errors import ReachError, UnsafeError, UsageError
from flarecli.model import Settings
from flarecli.write import Writer
from tests.outputs import files_of

OTHERS = "the unfinished unpack was started from a different source or with different options"
LIMITS = {"jobs": 2, "retries": 0, "timeout": 5, "deadline": 10}


def dataset(path, values):
    with Writer(
        str(path),
        columns={"id": "int", "data": "bytes"},
        settings=Settings(shard_rows=4),
        overwrite=path.exists(),
    ) as writer:
        for i, value in enumerate(values):
            writer.write({"id": i, "data": value})
    return str(path)


def links(folder, names):
    """Write an index of links to files; a name in brackets has no file."""
    folder.mkdir(exist_ok=True)
    for name in names:
        if not name.startswith("("):
            (folder / name).write_text(name)
    (folder / "i.csv").write_text(
        "id,url\n" + "".join(f"k{i},{name}\n" for i, name in enumerate(names))
    )
    return str(folder / "i.csv")


def stop_at(monkeypatch, name):
    """Simulate a failing disk at a file."""
    put = outlets.Folder.write

    def failing(self, at, data):
        if at.startswith(name):
            raise ReachError("the disk is gone", where=at)
        put(self, at, data)

    monkeypatch.setattr(outlets.Folder, "write", failing)


def few(monkeypatch):
    """Process a few rows at a time."""
    monkeypatch.setattr("flarecli.write.fetch_links.MAX_SLICE_ROWS", 3)
    monkeypatch.setattr("flarecli.write.fetch_links.MAX_ROWS_AHEAD", 3)


def test_an_unpack_of_a_changed_dataset_is_not_resumed(tmp_path, monkeypatch):
    source, values = tmp_path / "d", [b"%d" % i for i in range(20)]
    dataset(source, values)
    with monkeypatch.context() as patch, pytest.raises(ReachError):
        stop_at(patch, "9.")
        commands.unpack(str(source), str(tmp_path / "f"))
    dataset(source, [b"%d" % (99 - i) for i in range(20)])
    before = {
        name: data for name, data in files_of(tmp_path / "f").items() if name != ".flare/lock"
    }
    assert len(before) > 3
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(source), str(tmp_path / "f"), resume=True)
    assert str(caught.value) == f"{tmp_path}/f: {OTHERS}"
    assert {
        name: data for name, data in files_of(tmp_path / "f").items() if name != ".flare/lock"
    } == before


@pytest.mark.parametrize(
    "other",
    [
        {"on_error": "fail"},
        {"index": "csv"},
        {"limit": 8},
        {"where": "id <> 'k1'"},
        {"key": None},
        {"fetch": ["url:file"]},
        {"columns": ["url"]},
    ],
    ids=str,
)
def test_a_resume_with_other_options_is_refused_and_changes_nothing(tmp_path, monkeypatch, other):
    few(monkeypatch)
    index, options = (
        links(tmp_path / "in", list("abcdefgh")),
        {"fetch": ["url"], "key": "id", "on_error": "skip", **LIMITS},
    )
    with monkeypatch.context() as patch, pytest.raises(ReachError):
        stop_at(patch, "k7")
        commands.unpack(index, str(tmp_path / "f"), **options)
    before = {
        name: data for name, data in files_of(tmp_path / "f").items() if name != ".flare/lock"
    }
    assert len(before) > 3
    with pytest.raises(UsageError) as caught:
        commands.unpack(index, str(tmp_path / "f"), resume=True, **{**options, **other})
    assert str(caught.value) == f"{tmp_path}/f: {OTHERS}"
    assert {
        name: data for name, data in files_of(tmp_path / "f").items() if name != ".flare/lock"
    } == before


@pytest.mark.parametrize("names", ["ab(c)de(f)gh(i)", "(a)bcde(f)(g)(h)i", "abc(d)(e)(f)ghi"])
def test_failed_rows_are_listed_once_however_often_an_unpack_is_interrupted(
    tmp_path, monkeypatch, names
):
    few(monkeypatch)
    given = re.findall(r"\(.\)|.", names)
    index, options = (
        links(tmp_path / "in", given),
        {"fetch": ["url"], "key": "id", "on_error": "skip", **LIMITS},
    )
    lacking = [row for row, name in enumerate(given) if name.startswith("(")]
    complete = commands.unpack(index, str(tmp_path / "whole"), **options)
    assert (complete.rows, complete.failed) == (len(given) - len(lacking), len(lacking))
    assert [
        json.loads(line)["row"]
        for line in (tmp_path / "whole" / "failed.jsonl").read_text().splitlines()
    ] == lacking
    for stop in range(1, len(given)):
        if stop in lacking:
            continue
        with monkeypatch.context() as patch, pytest.raises(ReachError):
            stop_at(patch, f"k{stop}.")
            commands.unpack(index, str(tmp_path / f"f{stop}"), **options)
        done = commands.unpack(index, str(tmp_path / f"f{stop}"), resume=True, **options)
        assert (done.rows, done.failed, done.reasons) == (
            complete.rows,
            complete.failed,
            complete.reasons,
        )
        assert files_of(tmp_path / f"f{stop}") == files_of(tmp_path / "whole")


def test_rows_are_in_the_journal_before_the_next_batch(tmp_path):
    """The journal may not stay in a buffer of the process."""
    folder = outlets.Folder(str(tmp_path / "f"), {"verb": "unpack"}, resume=False, overwrite=False)
    folder.write("a", memoryview(b"1"))
    folder.finish_batch([{"values": {}, "files": {"data": ("a", 1)}}], 1)
    lines = [
        json.loads(line)
        for line in (tmp_path / "f" / ".flare" / "journal").read_text().splitlines()
    ]
    assert lines[1:] == [
        {
            "rows": [{"values": {}, "files": {"data": ["a", 1]}}],
            "next": 1,
            "failed": {"bytes": 0, "kinds": {}},
        },
    ]
    folder.abandon()


def test_an_unpacked_folder_with_failed_rows_may_be_replaced(tmp_path):
    index, options = (
        links(tmp_path / "in", ["a", "(b)", "c"]),
        {"fetch": ["url"], "key": "id", "on_error": "skip", **LIMITS},
    )
    commands.unpack(index, str(tmp_path / "f"), **options)
    assert "failed.jsonl" in files_of(tmp_path / "f")
    commands.unpack(
        links(tmp_path / "other", ["x"]), str(tmp_path / "f"), overwrite=True, **options
    )
    assert sorted(files_of(tmp_path / "f")) == ["index.jsonl", "k0.bin"]


def test_a_file_added_during_the_unpack_is_not_replaced(tmp_path, monkeypatch):
    index, note = links(tmp_path / "in", list("abcdef")), outlets.Folder.finish_batch
    few(monkeypatch)

    def recording(self, rows, next):
        note(self, rows, next)
        (tmp_path / "f" / "k5.bin").write_text("mine")

    monkeypatch.setattr(outlets.Folder, "finish_batch", recording)
    with pytest.raises(UsageError) as caught:
        commands.unpack(index, str(tmp_path / "f"), fetch=["url"], key="id", **LIMITS)
    assert str(caught.value) == f"{tmp_path}/f/k5.bin: already exists"
    assert (tmp_path / "f" / "k5.bin").read_text() == "mine"


def test_a_link_at_the_path_of_the_journal_is_not_followed(tmp_path):
    """A copied folder may contain such a link."""
    (tmp_path / "mine").write_text("precious")
    (tmp_path / "f" / ".flare").mkdir(parents=True)
    (tmp_path / "f" / ".flare" / "journal").symlink_to(tmp_path / "mine")
    for options in ({"resume": True}, {"resume": True, "overwrite": True}):
        with pytest.raises(UnsafeError) as caught:
            commands.unpack(
                links(tmp_path / "in", ["a"]),
                str(tmp_path / "f"),
                fetch=["url"],
                **LIMITS,
                **options,
            )
        assert (
            str(caught.value)
            == f"{tmp_path}/f/.flare/journal: is a symbolic link; its target may be outside the folder"
        )
    assert (tmp_path / "mine").read_text() == "precious"


def test_a_finished_unpack_of_fewer_rows_is_refused(tmp_path):
    with Writer(str(tmp_path / "d"), columns={"key": "str", "b": "bytes"}) as writer:
        for n in range(5):
            writer.write({"key": f"k{n}", "b": b"x"})
    out = str(tmp_path / "out")
    assert commands.unpack(str(tmp_path / "d"), out, limit=2).rows == 2
    assert commands.unpack(str(tmp_path / "d"), out, limit=2, resume=True).resumed_rows == 2
    with pytest.raises(UsageError) as caught:
        commands.unpack(str(tmp_path / "d"), out, limit=3, resume=True)
    assert (
        str(caught.value)
        == f"{out}: folder contains the complete output of 2 rows, but 3 rows are selected"
    )
    assert caught.value.hint == "Use --overwrite to replace the output, or specify another folder."


def test_a_dict_is_not_accepted_as_a_list_of_names(tmp_path):
    for do in (commands.pack, commands.unpack):
        with pytest.raises(UsageError) as caught:
            do(str(tmp_path / "d.csv"), str(tmp_path / "out"), fetch={"url": "image"})
        assert (str(caught.value), caught.value.hint) == (
            "expected a list of names, got dict",
            'Write a pair as "COLUMN:NAME".',
        )
