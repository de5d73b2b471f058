"""Duplicate keys: the first row of each key is found, in memory and in temporary files."""

import contextlib
import os
import resource
import signal
import subprocess
import sys
import tempfile
import tracemalloc

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.commands import pack
from flarecli.errors import FormatError
from flarecli.read import open as open_dataset
from flarecli.write import Keys
from flarecli.write import keys as keys_module
from tests.properties import examples

LIMITS = ("_MEMORY_RECORDS", "_PAGE_RECORDS", "_LOG_MEMORY_BYTES", "_FAN_IN", "_SEARCHED_KEYS")
TINY = {"_MEMORY_RECORDS": 4, "_PAGE_RECORDS": 2, "_LOG_MEMORY_BYTES": 8, "_FAN_IN": 2}


@pytest.fixture(params=["memory", "files"])
def limits(request, monkeypatch):
    """Run a test with the default limits, and with limits that force temporary files."""
    if request.param == "files":
        for name, value in TINY.items():
            monkeypatch.setattr(keys_module, name, value)
    return request.param


def expected_rows(batches, rows):
    """Return the first row of each key in each batch, by a dictionary."""
    first, out = {}, []
    for batch, numbers in zip(batches, rows, strict=True):
        out.append([])
        for key, row in zip(batch, numbers, strict=True):
            out[-1].append(-1 if key is None else first.get(key, -1))
            if key is not None:
                first.setdefault(key, row)
    return out


def found_rows(batches, rows, kind):
    with Keys() as keys:
        return [
            keys.seen(pa.array(batch, kind), np.array(numbers, np.int64)).tolist()
            for batch, numbers in zip(batches, rows, strict=True)
        ]


KINDS = {
    "string": (pa.string(), st.text(max_size=2) | st.integers(0, 40).map(str)),
    "large_string": (pa.large_string(), st.integers(0, 40).map(lambda i: "é" * i)),
    "string_view": (pa.string_view(), st.integers(0, 40).map(lambda i: "a" * i)),
    "binary": (pa.binary(), st.binary(max_size=2)),
    "fixed": (pa.binary(2), st.binary(min_size=2, max_size=2)),
    "dictionary": (pa.dictionary(pa.int8(), pa.string()), st.integers(0, 40).map(str)),
    "int8": (pa.int8(), st.integers(-128, 127)),
    "int64": (pa.int64(), st.integers(-20, 20) | st.sampled_from([-(2**63), 2**63 - 1])),
    "uint64": (pa.uint64(), st.integers(0, 20) | st.sampled_from([2**63, 2**64 - 1])),
    "float": (pa.float64(), st.integers(-20, 20).map(lambda i: i / 7)),
    "bool": (pa.bool_(), st.booleans()),
    "date": (pa.date32(), st.dates()),
    "list": (pa.list_(pa.int8()), st.tuples(st.integers(0, 5), st.integers(0, 5))),
}


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(40), deadline=None)
@given(data=st.data())
def test_the_first_row_of_each_key_is_found(kind, data):
    """Draw the batches, the row numbers (in any order, as after a shuffle) and the limits."""
    type_, values = KINDS[kind]
    batches = data.draw(st.lists(st.lists(st.none() | values, max_size=12), max_size=24))
    count = sum(map(len, batches))
    numbers = iter(data.draw(st.permutations(range(count))))
    rows = [[next(numbers) for _ in batch] for batch in batches]
    with pytest.MonkeyPatch.context() as patch:
        for name in LIMITS:
            patch.setattr(keys_module, name, data.draw(st.integers(2, 9), name))
        patch.setattr(keys_module, "_MIN_FILTER_BITS", data.draw(st.integers(1, 4)))
        assert found_rows(batches, rows, type_) == expected_rows(batches, rows)


@pytest.mark.parametrize("kind", KINDS)
@settings(max_examples=examples(20), deadline=None)
@given(data=st.data())
def test_keys_are_found_without_adding_them(kind, data):
    type_, values = KINDS[kind]
    batches = data.draw(st.lists(st.lists(st.none() | values, max_size=12), max_size=12))
    wanted = data.draw(st.lists(st.none() | values, max_size=12))
    first = {}
    with Keys() as keys, pytest.MonkeyPatch.context() as patch:
        for name in LIMITS:
            patch.setattr(keys_module, name, data.draw(st.integers(2, 9), name))
        for number, batch in enumerate(batches):
            keys.seen(pa.array(batch, type_), 100 * number)
            for i, key in enumerate(batch):
                first.setdefault(key, 100 * number + i)
        first[None] = -1
        for _ in range(2):
            found = keys.find(pa.array(wanted, type_)).tolist()
            assert found == [first.get(key, -1) for key in wanted]


@settings(max_examples=examples(60), deadline=None)
@given(
    batches=st.lists(st.lists(st.none() | st.integers(0, 60).map(str), max_size=12), max_size=24),
    hashes=st.integers(1, 5),
)
def test_keys_with_equal_hashes_are_not_duplicates(batches, hashes):
    """Give each key one of a few hashes: records of one hash fill several pages and runs."""
    rows = [list(range(100 * i, 100 * i + len(batch))) for i, batch in enumerate(batches)]
    with pytest.MonkeyPatch.context() as patch:
        for name, value in TINY.items():
            patch.setattr(keys_module, name, value)
        patch.setattr(
            keys_module.xxhash,
            "xxh3_64_intdigest",
            lambda value, digest=xxhash.xxh3_64_intdigest: digest(value) % hashes * 2**61,
        )
        assert found_rows(batches, rows, pa.string()) == expected_rows(batches, rows)


def test_many_keys_are_found_in_files_of_several_sizes(monkeypatch):
    monkeypatch.setattr(keys_module, "_MEMORY_RECORDS", 500)
    monkeypatch.setattr(keys_module, "_LOG_MEMORY_BYTES", 10_000)
    random = np.random.default_rng(3)
    for kind in (pa.string(), pa.int64()):
        numbers = random.integers(0, 30_000, 40_000)
        names = pa.array(numbers).cast(kind)
        with Keys() as keys:
            found = [keys.seen(names[at : at + 300], at) for at in range(0, len(names), 300)]
        _, first, which = np.unique(numbers, return_index=True, return_inverse=True)
        first = first[which]
        assert np.array_equal(np.concatenate(found), np.where(first < np.arange(40_000), first, -1))


def test_keys_may_be_invalid_utf8(limits):
    offsets = pa.py_buffer(np.array([0, 2, 3, 5], np.int32))
    text = pa.Array.from_buffers(
        pa.string(), 3, [None, offsets, pa.py_buffer(b"\xff\xfea\xff\xfe")]
    )
    with Keys() as keys:
        assert keys.seen(text, 0).tolist() == [-1, -1, 0]
        assert keys.seen(text, 3).tolist() == [0, 1, 0]


def test_an_empty_key_is_a_key_and_a_null_is_not(limits):
    with Keys() as keys:
        assert keys.seen(pa.array(["", None, "", None]), 5).tolist() == [-1, -1, 5, -1]
        assert keys.seen(pa.array(["", None]), 9).tolist() == [5, -1]


def test_a_batch_without_keys_is_accepted(limits):
    with Keys() as keys:
        assert keys.seen(pa.array([], pa.string()), 0).tolist() == []
        assert keys.seen(pa.array([None, None], pa.int64()), 0).tolist() == [-1, -1]


def open_temporary_files():
    """Return the number of open files in the temporary folder that have no name; 0 without
    /proc.
    """
    if not os.path.exists("/proc/self/fd"):
        return 0
    count = 0
    for number in os.listdir("/proc/self/fd"):
        with contextlib.suppress(FileNotFoundError):  # the handle of this list
            link = os.readlink(f"/proc/self/fd/{number}")
            count += link.startswith(tempfile.gettempdir()) and link.endswith(" (deleted)")
    return count


@pytest.fixture
def source(tmp_path, monkeypatch):
    """A table of 400 keys and 4 duplicates, in small batches, with limits that force files."""
    for name, value in TINY.items():
        monkeypatch.setattr(keys_module, name, value)
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "temporary"))
    (tmp_path / "temporary").mkdir()
    ids = [f"key {i}" for i in range(400)]
    for row, earlier in ((399, 3), (300, 7), (301, 300), (200, 0)):
        ids[row] = ids[earlier]
    table = pa.table({"id": pa.array(ids), "n": range(400)})
    pq.write_table(table, tmp_path / "t.parquet", row_group_size=9)
    return tmp_path


@pytest.mark.skipif(not os.path.exists("/proc/self/fd"), reason="needs /proc")
def test_close_removes_the_temporary_files(monkeypatch):
    for name, value in TINY.items():
        monkeypatch.setattr(keys_module, name, value)
    before = open_temporary_files()
    with Keys() as keys:
        for start in range(0, 100, 10):
            keys.seen(pa.array([f"key {i}" for i in range(start, start + 10)]), start)
        assert open_temporary_files() >= before + 2  # the log and a run
    assert open_temporary_files() == before


def test_temporary_files_are_removed_after_a_pack(source):
    before = open_temporary_files()
    packed = pack(str(source / "t.parquet"), str(source / "out"), key="id", on_duplicate="first")
    assert (packed.rows, packed.duplicates) == (396, 4)
    rows = [row["n"] for row in open_dataset(str(source / "out"))]
    assert rows == [i for i in range(400) if i not in (200, 300, 301, 399)]
    assert open_temporary_files() == before
    assert list((source / "temporary").iterdir()) == []


def test_temporary_files_are_removed_after_a_duplicate(source):
    before = open_temporary_files()
    with pytest.raises(FormatError) as caught:
        pack(str(source / "t.parquet"), str(source / "out"), key="id")
    file = str(source / "t.parquet")
    assert str(caught.value) == f"{file}[200]: key 'key 0' was used in row 0"
    assert open_temporary_files() == before
    assert list((source / "temporary").iterdir()) == []


FULL = """
import pyarrow as pa
from flarecli.errors import ReachError
from flarecli.write import Keys, keys
keys._LOG_MEMORY_BYTES = 1000
try:
    with Keys() as index:
        for start in range(0, 5000, 100):
            index.seen(pa.array([f"key {i}" for i in range(start, start + 100)]), start)
except ReachError as error:
    print(error, "|", error.hint)
"""


def test_a_full_disk_is_an_error(tmp_path):
    """A limit on the size of a file fails a write as a full disk does."""
    limit = (10_000, 10_000)
    done = subprocess.run(
        [sys.executable, "-B", "-c", FULL],
        capture_output=True,
        text=True,
        check=True,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, limit),
    )
    assert done.stdout == (
        f"{tmp_path}: cannot write temporary files for the keys: file too large "
        "| Set TMPDIR to a folder on a larger disk.\n"
    )


INTERRUPTED = """
import itertools, os
import pyarrow as pa
from flarecli.write import Keys, keys
keys._MEMORY_RECORDS = keys._LOG_MEMORY_BYTES = 8

def deleted():
    count = 0
    for number in os.listdir("/proc/self/fd") if os.path.exists("/proc/self/fd") else ():
        try:
            count += os.readlink(f"/proc/self/fd/{number}").endswith(" (deleted)")
        except FileNotFoundError:  # the handle of this list
            pass
    return count

with Keys() as index:
    for start in itertools.count(0, 100):
        index.seen(pa.array([f"key {i}" for i in range(start, start + 100)]), start)
        if start == 2000:
            print("ready", deleted(), flush=True)
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGKILL])
def test_temporary_files_are_removed_after_a_signal(tmp_path, number):
    process = subprocess.Popen(
        [sys.executable, "-c", INTERRUPTED],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        env={**os.environ, "TMPDIR": str(tmp_path)},
    )
    with process:
        assert process.stdout is not None
        ready, count = process.stdout.readline().split()
        assert ready == b"ready"
        assert int(count) > 0 or not os.path.exists("/proc")  # files exist before the signal
        process.send_signal(number)
    assert process.returncode != 0
    assert list(tmp_path.iterdir()) == []


def test_memory_does_not_grow_with_the_records_of_a_merged_run(monkeypatch):
    """Each record has 32 bytes. The filter and the first hashes of pages take 3 bytes per key."""
    monkeypatch.setattr(keys_module, "_MEMORY_RECORDS", 1 << 12)
    rows, batch = 1 << 19, 1 << 13
    tracemalloc.start()
    try:
        with Keys() as keys:
            for start in range(0, rows, batch):
                keys.seen(pa.array(np.arange(start, start + batch)), start)
            peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 8 * rows
