"""Datasets that change, read with the original libraries before, during and after each change.

PEER_PYTHON, WIDS_PYTHON, WEBDATASET_PYTHON and GRANULAR_PYTHON name interpreters that have
mosaicml-streaming, wids, webdataset and granular.
"""

import functools
import json
import os
import shutil
from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli as flare

SCRIPT = Path(__file__).with_name("changes_peer.py")


def needs(variable):
    return pytest.mark.skipif(
        variable not in os.environ, reason=f"{variable} names no interpreter that has the library"
    )


@pytest.fixture
def read(run_peer):
    """A function that reads addresses with a library: a list of rows for each, or the name of an
    error.
    """
    return lambda library, variable, addresses: run_peer(
        os.environ[variable],
        SCRIPT,
        library,
        text="".join(json.dumps(one) + "\n" for one in addresses),
    )


def rows(numbers):
    return [{"id": str(i), "text": f"row {i}"} for i in numbers]


def table(path, **columns):
    pq.write_table(pa.table(columns), path)
    return str(path)


def samples(path, first, stop):
    numbers = range(first, stop)
    return table(path, id=list(numbers), text=[f"row {i}" for i in numbers])


AFTER_DROP = [i for i in range(15) if i % 4 != 1]
AFTER_APPEND = [*AFTER_DROP, *range(15, 19)]
ROWS = {  # change -> numbers of the rows of the new version
    "append": list(range(15)),
    "drop": AFTER_DROP,
    "append again": AFTER_APPEND,
    "compact": AFTER_APPEND,
    "add column": AFTER_APPEND,
    "restore": list(range(15)),
    "append last": [*range(15), *range(19, 22)],
}
SCORES = [{"score": str(i / 2)} for i in AFTER_APPEND]
# change -> rows of its fragment; the drop does not rewrite the shard with 10, 11 and 12
FRAGMENTS = {
    "append": rows(range(10, 15)),
    "drop": rows(i for i in AFTER_DROP if i not in (10, 11, 12)),
    "append again": rows(range(15, 19)),
    "compact": rows(AFTER_APPEND),
    "add column": SCORES,
    "append last": rows(range(19, 22)),
}


@dataclass(frozen=True)
class State:
    """Copies of a dataset before and after a change.

    earlier, folder   the dataset before and after the change
    before, after     numbers of the rows before and after the change
    """

    earlier: Path
    folder: Path
    before: list[int]
    after: list[int]


def change(verb, out, path):
    """Make a change; `path` is that of a source to write."""
    if verb == "append":
        flare.pack(samples(path, 10, 15), out, append=True, shard_rows=3)
    elif verb == "append again":
        flare.pack(samples(path, 15, 19), out, append=True)
    elif verb == "append last":
        flare.pack(samples(path, 19, 22), out, append=True)
    elif verb == "drop":
        flare.drop(out, rows="1::4")
    elif verb == "compact":
        flare.compact(out, below="1MB")
    elif verb == "add column":
        scores = [i / 2 for i in AFTER_APPEND]
        flare.pack(table(path, score=scores), out, add_column="score")
    elif verb == "restore":
        flare.log(out, restore=2)


@pytest.fixture(scope="module")
def states(tmp_path_factory):
    """A function that makes all changes of a dataset of a format once, and returns change ->
    State.
    """

    @functools.cache
    def make(format):
        root = tmp_path_factory.mktemp(format)
        out, before, found = root / "out", list(range(10)), {}
        flare.pack(samples(root / "first.parquet", 0, 10), out, format=format, shard_rows=4)
        earlier = shutil.copytree(out, root / "first")
        for verb, after in ROWS.items():
            change(verb, out, root / f"{verb}.parquet")
            folder = shutil.copytree(out, root / verb.replace(" ", ""))
            found[verb] = State(earlier, folder, before, after)
            earlier, before = folder, after
        flare.prune(out, keep=2)
        found["prune"] = State(earlier, out, before, before)
        return found

    return make


def unpublished(state, index, to):
    """Copy a dataset whose newest version is committed, while `playlist.yaml` and the index are
    those of the version before.
    """
    shutil.copytree(state.folder, to)
    for name in ("playlist.yaml", index):
        shutil.copy(state.earlier / name, to / name)
    return to


def half_published(state, index, to):
    """Copy a dataset whose index is published, while `playlist.yaml` is that of the version
    before.
    """
    unpublished(state, index, to)
    shutil.copy(state.folder / index, to / index)
    return to


def cases_of(states, index, tmp_path):
    """Return (description, folder, row numbers) of each folder before, during and after each
    change.
    """
    for verb, state in states.items():
        folder = tmp_path / verb.replace(" ", "")
        yield f"before {verb}", state.earlier, state.before
        yield f"{verb} committed", unpublished(state, index, folder / "committed"), state.before
        yield f"{verb} half", half_published(state, index, folder / "half"), state.after
        yield f"after {verb}", state.folder, state.after


@needs("PEER_PYTHON")
@pytest.mark.parametrize("format", ["mds", "json"])
def test_mosaicml_reads_the_rows_of_one_version_around_each_change(read, states, tmp_path, format):
    cases = list(cases_of(states(format), "index.json", tmp_path))
    addresses = [[None, str(folder)] for _, folder, _ in cases]
    found = read("mosaicml", "PEER_PYTHON", addresses)
    for (name, _, numbers), one in zip(cases, found, strict=True):
        assert one == rows(numbers), name


@needs("PEER_PYTHON")
def test_a_local_folder_of_mosaicml_stays_at_its_version_until_a_prune(read, states, tmp_path):
    addresses = []
    for verb, state in states("mds").items():
        local = tmp_path / verb.replace(" ", "")
        local.mkdir()
        shutil.copy(state.earlier / "index.json", local)
        addresses.append([str(state.folder), str(local)])
    (tmp_path / "stale").mkdir()
    shutil.copy(states("mds")["compact"].folder / "index.json", tmp_path / "stale")
    addresses.append([str(states("mds")["prune"].folder), str(tmp_path / "stale")])
    *found, stale = read("mosaicml", "PEER_PYTHON", addresses)
    for (verb, state), one in zip(states("mds").items(), found, strict=True):
        assert one == rows(state.before), verb
    assert stale == "FileNotFoundError"


@needs("WIDS_PYTHON")
def test_wids_reads_the_rows_of_one_version_around_each_change(read, states, tmp_path):
    """All versions share a cache, in which a tar is found by the last part of its address."""
    cases = list(cases_of(states("webdataset"), "shardindex.json", tmp_path))
    addresses = [
        [str(folder / "shardindex.json"), str(tmp_path / "cache")] for _, folder, _ in cases
    ]
    for (name, _, numbers), one in zip(cases, read("wids", "WIDS_PYTHON", addresses), strict=True):
        assert one == rows(numbers), name


def urls(folder):
    stream, *_ = flare.inspect(folder, urls=True).streams
    return list(stream.urls)


@needs("WEBDATASET_PYTHON")
def test_webdataset_reads_the_tars_that_a_version_lists(read, states):
    cases = []
    for verb, state in states("webdataset").items():
        cases.append((f"after {verb}", urls(state.folder), state.after))
        listed = [url.replace(str(state.earlier), str(state.folder)) for url in urls(state.earlier)]
        cases.append((f"tars from before {verb}", listed, state.before))
    found = read("webdataset", "WEBDATASET_PYTHON", [one for _, one, _ in cases])
    for (name, _, numbers), one in zip(cases, found, strict=True):
        assert one == rows(numbers), name


@needs("GRANULAR_PYTHON")
def test_granular_reads_each_fragment_and_the_whole_of_each_version(read, states, tmp_path):
    cases, seen = [], set()
    for verb, state in states("granular").items():
        fragments = {path.name for path in state.folder.glob("fragment.*")} - seen
        seen |= fragments
        expected = FRAGMENTS.get(verb)
        assert len(fragments) == (expected is not None), verb
        cases += [(f"fragment of {verb}", state.folder / name, expected) for name in fragments]
        whole = tmp_path / verb.replace(" ", "")
        flare.pack(state.folder, whole, format="granular")
        scores = SCORES if verb == "add column" else [{}] * len(state.after)
        joined = [{**row, **one} for row, one in zip(rows(state.after), scores, strict=True)]
        cases.append((f"whole after {verb}", whole, joined))
        cases.append((f"first rows after {verb}", state.folder, rows(range(10))))
    found = read("granular", "GRANULAR_PYTHON", [str(folder / "shards") for _, folder, _ in cases])
    for (name, _, expected), one in zip(cases, found, strict=True):
        assert one == expected, name
