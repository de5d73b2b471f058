"""Packed folders compared with a file of the original and with pickles, and hostile pickles."""

import json
import os
import pickle
import subprocess
import sys
import zlib
from collections import OrderedDict
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import FlareError, FormatError, IntegrityError, UnsafeError, UsageError
from flarecli.formats import find
from flarecli.formats.ffrecord import packed_folder
from flarecli.formats.ffrecord.table import packed_table
from flarecli.model import Chunk
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore
from tests.properties import examples

ffrecord = find("ffrecord")

GOLDEN = Path(__file__).parents[3] / "fixtures" / "ffrecord" / "packed"
HINT = "The last record is not a list of files; read the records instead."
names = st.text("abé\U0001f642\udcff. ", min_size=1, max_size=6).filter(
    lambda name: name.strip(". ")
)
trees = st.recursive(st.just(0), lambda below: st.dictionaries(names, below, max_size=4)).filter(
    lambda tree: isinstance(tree, dict)
)


def shard_of(records):
    sums = np.array([zlib.crc32(data) for data in records], np.uint32)
    data = packed_table(sums, np.array([len(data) for data in records], np.int64)) + b"".join(
        records
    )
    return ffrecord.open_shard(Chunk(Location(MemoryStore({"p.ffr": data}), "p.ffr")))


def with_list(listed, files=2):
    """Return a file of `files` records of one byte each, and a list of files."""
    return shard_of([b"x"] * files + [packed_folder.MAGIC + listed])


def pickled(tree, protocol=4):
    return pickle.dumps(ordered(tree), protocol)


def ordered(tree):
    return OrderedDict(
        (name, ordered(entry) if isinstance(entry, dict) else entry) for name, entry in tree.items()
    )


def golden():
    return ffrecord.open_shard(Chunk(locate(str(GOLDEN / "data" / "packed.ffr"))))


def test_a_packed_folder_of_the_original_is_listed():
    shard = golden()
    assert packed_folder.is_packed(shard)
    tree = packed_folder.directory(shard)
    lines = [json.loads(line) for line in (GOLDEN / "expected.jsonl").read_text().splitlines()]
    assert list(packed_folder.files(tree)) == [
        (line["path"], line["index"]) for line in lines if line["path"] is not None
    ]
    assert list(packed_folder.folders(tree)) == ["a", "a/z", "c", "emptydir"]
    for path, row in packed_folder.files(tree):
        assert (
            ffrecord.read_rows(shard, [row])[0]["data"]
            == (GOLDEN / "source_tree" / path).read_bytes()
        )
    assert list(ffrecord.verify_shard(shard)) == []


@pytest.mark.parametrize("held", [True, False])
def test_a_repacked_folder_has_the_bytes_of_the_original(held):
    at = locate(str(GOLDEN / "source_tree"))
    contents = {
        entry.name: (at / entry.name).read() if held else at / entry.name
        for entry in reversed(list(at.list()))
    }
    to = Location(MemoryStore())
    chunk = packed_folder.write_folder(to, "packed.ffr", contents, ["emptydir", "a"])
    assert chunk.at.read() == (GOLDEN / "data" / "packed.ffr").read_bytes()
    assert (chunk.rows, chunk.files[0].size) == (12, 915)


def test_an_empty_folder_is_one_record():
    chunk = packed_folder.write_folder(Location(MemoryStore()), "e.ffr", {})
    assert packed_folder.directory(ffrecord.open_shard(chunk)) == {}
    assert chunk.rows == 1


def test_other_files_are_not_packed_folders():
    for shard in (
        shard_of([]),
        shard_of([b""]),
        shard_of([b"piouhjgb"]),
        shard_of([packed_folder.MAGIC + b"x", b"y"]),
    ):
        assert not packed_folder.is_packed(shard)
        with pytest.raises(FormatError) as caught:
            packed_folder.directory(shard)
        assert str(caught.value) == "p.ffr: last record is not a list of files"


# -- hostile lists


class _Runs:
    def __init__(self, call, *args):
        self.call, self.args = call, args

    def __reduce__(self):
        return self.call, self.args


@pytest.mark.parametrize("protocol", range(6))
@pytest.mark.parametrize("call", [os.mkdir, eval, OrderedDict])
def test_code_is_never_run(protocol, call, tmp_path):
    target = str(tmp_path / "ran")
    args = {
        os.mkdir: (target,),
        eval: (f"__import__('os').mkdir({target!r})",),
        OrderedDict: ([["a", 0]],),
    }[call]
    for listed in (
        pickle.dumps(_Runs(call, *args), protocol),
        pickle.dumps(OrderedDict(a=_Runs(call, *args)), protocol),
    ):
        shard = with_list(listed)
        with pytest.raises(UnsafeError) as caught:
            packed_folder.directory(shard)
        assert caught.value.where == "p.ffr[2]"
        assert caught.value.hint == HINT
        (found,) = ffrecord.verify_shard(shard)
        assert (found.kind, found.message) == ("unsafe", caught.value.message)
    assert not (tmp_path / "ran").exists()


def test_an_unsafe_pickle_is_refused_with_the_object_it_refers_to():
    with pytest.raises(UnsafeError) as caught:
        packed_folder.directory(with_list(pickle.dumps(_Runs(os.system, "true"), 4)))
    assert (
        str(caught.value) == "p.ffr[2]: the pickle refers to 'posix.system', which could run code"
    )
    with pytest.raises(UnsafeError) as caught:
        packed_folder.directory(with_list(pickle.dumps({"a": [0]}, 4)))
    assert str(caught.value) == "p.ffr[2]: unsupported opcode EMPTY_DICT of the pickle at byte 20"


@pytest.mark.parametrize(
    ("tree", "kind", "message"),
    [
        ({"..": 0}, UnsafeError, "the name '..' points outside the folder"),
        ({"a": {"..": {"b": 0}}}, UnsafeError, "the name '..' points outside the folder"),
        ({"/etc": 0}, UnsafeError, "the name '/etc' contains a slash"),
        ({"a/b": 0}, UnsafeError, "the name 'a/b' contains a slash"),
        ({"": 0}, UnsafeError, "the name '' is empty"),
        ({"a\0b": 0}, UnsafeError, "the name 'a\\x00b' contains a control character"),
        ({"~": 0}, UnsafeError, "the name '~' starts with a home folder"),
        ({"x" * 256: 0}, UnsafeError, f"the name '{'x' * 77}…' has a part longer than 255 bytes"),
        ({"a": 2}, FormatError, "invalid record number 2 for 'a': the folder has 2 records"),
        ({"a": -1}, FormatError, "invalid record number -1 for 'a': the folder has 2 records"),
        (
            {"a": 1 << 70},
            FormatError,
            f"invalid record number {1 << 70} for 'a': the folder has 2 records",
        ),
        ({"a": 0, "b": {"c": 0}}, FormatError, "'b/c' is a second name for record 0"),
    ],
)
def test_names_and_records_are_checked(tree, kind, message):
    with pytest.raises(kind) as caught:
        packed_folder.directory(with_list(pickled(tree)))
    assert str(caught.value) == f"p.ffr[2]: {message}"


def test_a_path_longer_than_file_systems_allow_is_refused():
    tree = {"a": 0}
    for _ in range(30):
        tree = {"x" * 200: tree}
    with pytest.raises(UnsafeError) as caught:
        packed_folder.directory(with_list(pickled(tree)))
    assert caught.value.message.endswith("is longer than 4096 bytes")


ROOT = b"ccollections\nOrderedDict\n)R"


@pytest.mark.parametrize(
    ("listed", "name"),
    [
        (b"X\5\0\0\0\x1b[31mX\1\0\0\0b\x93.", r"'\x1b[31m.b'"),  # a terminal sequence
        ((ROOT + b"X\1\0\0\0a") * 3000 + b"K\0" + b"s" * 3000 + b"K\0\x93.", "an object"),
    ],
)
def test_the_name_of_a_class_is_quoted_and_a_deep_folder_is_not_a_name(listed, name):
    with pytest.raises(UnsafeError) as caught:
        packed_folder.directory(with_list(listed))
    assert str(caught.value) == f"p.ffr[2]: the pickle refers to {name}, which could run code"


@pytest.mark.parametrize(
    ("listed", "message"),
    [
        (b"", "9: pickle exhausted before seeing STOP"),
        (pickled({"a": 0})[:-1], "59: pickle exhausted before seeing STOP"),
        (pickled({"a": 0}) + b"x", "60: unexpected bytes after the end of the pickle: 1"),
        (b"K\0.", "11: the pickle does not contain exactly one folder"),
        (ROOT + ROOT + b".", "63: the pickle does not contain exactly one folder"),
        (ROOT + b"(.", "37: the pickle does not contain exactly one folder"),
        (ROOT + b"X\1\0\0\0aK\0s" + b"X\1\0\0\0aK\1s.", "53: duplicate name 'a'"),
        (
            ROOT + b"X\1\0\0\0aX\1\0\0\0bs.",
            "48: expected a file name followed by a record number, or a folder name followed by a folder",
        ),
        (
            ROOT + b"K\0K\0s.",
            "40: expected a file name followed by a record number, or a folder name followed by a folder",
        ),
        (ROOT + b"(K\0u.", "39: a folder, a name or an entry is missing"),
        (ROOT + b"u.", "36: the stack of the pickle contains no mark"),
        (b"(s.", "10: the stack of the pickle is empty"),
        (  # a folder inside itself
            ROOT + b"q\0X\1\0\0\0ah\0s.",
            "44: the pickle refers to memo entry 0, which does not exist or contains a folder",
        ),
        (ROOT + b"q\1.", "36: the memo entries of the pickle are not in order"),
        (
            ROOT + b"h\7.",
            "36: the pickle refers to memo entry 7, which does not exist or contains a folder",
        ),
        (
            ROOT + b"X\1\0\0\0\xffK\0s.",
            "35: 'utf-8' codec can't decode byte 0xff in position 0: invalid start byte",
        ),
        (
            b"X\xff\xff\xff\xffa",
            "9: expected 4294967295 bytes in a unicodestring4, but only 1 remain",
        ),
    ],
)
def test_broken_lists_are_refused(listed, message):
    with pytest.raises(FormatError) as caught:
        packed_folder.directory(with_list(listed))
    assert str(caught.value) == f"p.ffr[2]: invalid list of files at byte {message}"


_LARGE = """
import resource, sys
sys.path[:0] = {path!r}
from flarecli.errors import FlareError
from flarecli.formats.ffrecord import packed_folder
used = int(open("/proc/self/statm").read().split()[0]) * resource.getpagesize()  # of libraries, which reserve more than they use
resource.setrlimit(resource.RLIMIT_AS, (used + (250 << 20),) * 2)
for listed in (b"(" * (1 << 22), b")" * (1 << 22), b"ccollections\\nOrderedDict\\nq\\0" + b"(h\\0)RX\\1\\0\\0\\0a" * 100_000):
    try:
        packed_folder.parse(packed_folder.MAGIC + listed, 1, "it")
    except FlareError as error:
        print(error.kind)
"""


def test_lists_with_millions_of_opcodes_are_refused_in_bounded_memory():
    code = _LARGE.format(path=[str(GOLDEN.parents[2])])
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stdout.split() == ["format"] * 3


def test_a_list_that_is_too_large_is_not_read(monkeypatch):
    monkeypatch.setattr(packed_folder, "_MAX_LIST_BYTES", 40)
    with pytest.raises(FormatError) as caught:
        packed_folder.directory(with_list(b"x" * 32))
    assert str(caught.value) == "p.ffr[2]: list of files is 41 bytes; the maximum is 40"


def test_a_damaged_list_is_reported():
    shard = golden()
    data = bytearray(shard.chunk.at.read())
    data[-3] ^= 1
    shard = ffrecord.open_shard(Chunk(Location(MemoryStore({"p.ffr": data}), "p.ffr")))
    with pytest.raises(IntegrityError) as caught:
        packed_folder.directory(shard)
    assert (
        str(caught.value)
        == "p.ffr[11]: checksum mismatch: CRC-32 of 216 bytes; the size of the file may have changed"
    )


@settings(max_examples=examples(300), deadline=None)
@given(st.data())
def test_arbitrary_bytes_are_a_list_or_refused(data):
    listed = bytearray(
        pickled({"a": 0, "b": {"c": 1, "empty": {}}}, data.draw(st.sampled_from([2, 3, 4, 5])))
    )
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.integers(0, len(listed)))
        listed[at : at + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    try:
        tree = packed_folder.parse(packed_folder.MAGIC + bytes(listed), 2, "it")
    except FlareError:
        return
    assert all(0 <= row < 2 for _, row in packed_folder.files(tree))


@settings(max_examples=examples(100), deadline=None)
@given(
    st.lists(
        st.sampled_from(
            [
                b"(",
                b")",
                b"R",
                b"s",
                b"u",
                b"K\0",
                b"h\0",
                b"h\1",
                b"\x94",
                ROOT,
                b"X\1\0\0\0a",
                b"X\1\0\0\0b",
                b"0",
                b".",
            ]
        ),
        max_size=20,
    )
)
def test_arbitrary_opcodes_are_a_list_or_refused(codes):
    try:
        packed_folder.parse(packed_folder.MAGIC + b"".join(codes) + b".", 2, "it")
    except FlareError:
        pass


# -- writing


@settings(max_examples=examples(100), deadline=None)
@given(trees)
def test_packed_folders_are_listed_and_equal_a_pickle_of_the_tree(tree):
    files = [path for path, _ in packed_folder.files(tree)]
    chunk = packed_folder.write_folder(
        Location(MemoryStore()),
        "p.ffr",
        {path: path.encode("utf-8", "surrogatepass") for path in files},
        packed_folder.folders(tree),
    )
    shard = ffrecord.open_shard(chunk)
    again = packed_folder.directory(shard)
    assert sorted(path for path, _ in packed_folder.files(again)) == sorted(files)
    assert sorted(packed_folder.folders(again)) == sorted(packed_folder.folders(tree))
    for path, row in packed_folder.files(again):
        assert ffrecord.read_rows(shard, [row])[0]["data"].decode("utf-8", "surrogatepass") == path
    assert [row for _, row in packed_folder.files(again)] == list(range(len(files)))
    listed = ffrecord.read_rows(shard, [shard.rows - 1])[0]["data"]
    assert pickle.loads(listed[9:]) == ordered(again)
    for protocol in (2, 3, 4, 5):
        assert (
            packed_folder.parse(packed_folder.MAGIC + pickled(again, protocol), len(files)) == again
        )


def test_more_than_a_thousand_names_are_listed():
    contents = {f"{i % 3}/{i:05d}": b"%d" % i for i in range(5000)}
    shard = ffrecord.open_shard(
        packed_folder.write_folder(Location(MemoryStore()), "p.ffr", contents)
    )
    listed = dict(packed_folder.files(packed_folder.directory(shard)))
    assert {
        path: data["data"]
        for path, data in zip(listed, ffrecord.read_rows(shard, list(listed.values())), strict=True)
    } == contents


@pytest.mark.parametrize(
    ("contents", "empty"),
    [
        ({"a": b"", "a/b": b""}, []),
        ({"a": b""}, ["a"]),
        ({"a": b""}, ["a/b"]),
        ({"a/b": b"", "a": b""}, []),
    ],
)
def test_a_path_cannot_be_both_a_file_and_a_folder(contents, empty):
    with pytest.raises(UsageError) as caught:
        packed_folder.write_folder(Location(MemoryStore()), "p.ffr", contents, empty)
    assert str(caught.value) in (
        "'a' is both a file and a folder",
        "'a/b' is both a file and a folder",
    )


def test_names_that_leave_the_folder_are_not_packed():
    with pytest.raises(UnsafeError):
        packed_folder.write_folder(Location(MemoryStore()), "p.ffr", {"../a": b""})


def test_a_file_that_changes_while_it_is_packed_is_an_error(tmp_path):
    class Changing(MemoryStore):
        def blocks(self, path, size):
            self.files[path] = self.files[path][1:]
            yield self.files[path]

    at = Location(Changing({"a": b"abcdef"}, "store"), "a")
    with pytest.raises(IntegrityError) as caught:
        packed_folder.write_folder(locate(str(tmp_path)), "p.ffr", {"a": at})
    assert str(caught.value) == "store/a: file changed while it was packed"
    assert list(tmp_path.iterdir()) == []
