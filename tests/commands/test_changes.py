"""Datasets that change: append, add a column, drop, compact, restore and prune, against a model in
Python.

FLARE_TEST_CHANGES=N makes N random changes of each format, instead of 12; see `make changes`.
"""

import hashlib
import inspect
import itertools
import json
import os
import random
import shlex
import shutil
import signal
import subprocess
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli as flare
from flarecli import playlists
from flarecli.__main__ import main
from flarecli.commands import drop_command
from flarecli.commands.rewrite import Group, rewrite
from flarecli.errors import (
    BusyError,
    FlareError,
    FormatError,
    MissingError,
    UnfinishedError,
    UnsafeError,
    UsageError,
    ValueFitError,
)
from flarecli.model import Playlist
from flarecli.progress import Progress
from flarecli.storage import Guard, locate
from flarecli.storage.local import LocalStore
from flarecli.units import format_size
from flarecli.write import versions
from flarecli.write.versions import open_for_change
from tests.kills import killed_at_each_step
from tests.lists import write_list
from tests.outputs import files_of, state_of

FORMATS = ["mds", "json", "csv", "ffrecord", "granular", "webdataset", "tfrecord"]
IS_FULL = "FLARE_TEST_CHANGES" in os.environ
STEPS = int(os.environ.get("FLARE_TEST_CHANGES", "12"))
WRITERS = (400, 8) if IS_FULL else (20, 4)  # appends, and the processes that share them


def rows(first, count):
    return [{"id": i, "text": f"text {i}"} for i in range(first, first + count)]


def table(samples, path):
    pq.write_table(pa.Table.from_pylist(samples), path)
    return str(path)


def stored(samples, format):
    """Return the columns that a test packs: ffrecord stores one."""
    return [{"text": one["text"]} for one in samples] if format == "ffrecord" else samples


def content(address):
    return flare.open(str(address)).to_arrow().to_pylist()


def plain(samples):
    """Return samples without the key that WebDataset generates."""
    return [{k: v for k, v in one.items() if k != "__key__"} for one in samples]


@pytest.fixture
def out(tmp_path):
    """A dataset of 10 rows in 3 shards."""
    flare.pack(table(rows(0, 10), tmp_path / "first.parquet"), tmp_path / "out", shard_rows=4)
    return tmp_path / "out"


def test_an_append_is_a_new_version_and_the_old_version_stays(out, tmp_path):
    packed = flare.pack(table(rows(10, 5), tmp_path / "more.parquet"), out, append=True)
    assert (packed.version, packed.rows) == (2, 5)
    assert content(out) == rows(0, 15)
    assert content(out / "playlist.000001.yaml") == rows(0, 10)
    assert content(out / "playlist.000002.yaml") == rows(0, 15)
    assert (out / "playlist.yaml").read_bytes() == (out / "playlist.000002.yaml").read_bytes()
    for name in ("playlist.yaml", "playlist.000001.yaml", "playlist.000002.yaml"):
        assert list(flare.verify(str(out / name))) == []


def test_the_function_append_writes_the_same_version_as_pack_with_append(out, tmp_path):
    other = shutil.copytree(out, tmp_path / "other")
    options = {"key": "id", "on_duplicate": "first", "shard_rows": 2}
    more = pa.Table.from_pylist(rows(8, 5))
    packed = flare.append(more, out, **options)
    assert packed == replace(
        flare.pack(more, other, append=True, **options), playlist=packed.playlist
    )
    assert (packed.version, packed.rows, packed.duplicates) == (2, 3, 2)
    assert content(out) == rows(0, 13)
    assert files_of(out) == files_of(other)
    parameters = [inspect.signature(one).parameters for one in (flare.append, flare.pack)]
    assert parameters[0] == parameters[1]
    with pytest.raises(UsageError) as caught:
        flare.append(more, out, overwrite=True)
    assert str(caught.value) == "--append and --overwrite cannot be combined"


def test_the_same_change_of_the_same_dataset_gives_the_same_bytes(out, tmp_path):
    other = shutil.copytree(out, tmp_path / "other")
    more = table(rows(10, 5), tmp_path / "more.parquet")
    for folder in (out, other):
        flare.pack(more, folder, append=True)
        flare.drop(folder, where="id % 3 = 0")
        flare.compact(folder)
    assert files_of(out) == files_of(other)


@pytest.mark.parametrize("format", FORMATS)
def test_random_changes_equal_a_model_and_every_version_is_valid(format, tmp_path):
    rng = random.Random(format)
    out, model = tmp_path / "out", rows(0, 20)
    columns = ["text"] if format == "ffrecord" else None
    flare.pack(
        table(stored(model, format), tmp_path / "0.parquet"),
        out,
        format=format,
        columns=columns,
        shard_rows=6,
    )
    seen, next_id = {1: list(model)}, 20
    for step in range(STEPS):
        change = rng.choice(["append", "append", "drop", "replace", "drop", "compact", "restore"])
        number = None
        if change == "append":
            new = rows(next_id, rng.randint(1, 9))
            next_id += len(new)
            source = table(stored(new, format), tmp_path / f"{step + 1}.parquet")
            number = flare.pack(source, out, append=True, shard_rows=rng.choice([3, 100])).version
            model = model + new
        elif change == "drop" and len(model) > 8:
            gone = sorted(rng.sample(range(len(model)), rng.randint(1, 4)))
            number = flare.drop(out, rows=",".join(map(str, gone))).version
            model = [one for i, one in enumerate(model) if i not in gone]
        elif change == "replace" and format not in ("ffrecord", "webdataset"):  # has the column id
            again = rng.sample([one["id"] for one in model], rng.randint(1, 5))
            new = [{"id": i, "text": f"text {i} of step {step}"} for i in [*again, next_id]]
            next_id += 1
            source = table(new, tmp_path / f"{step + 1}.parquet")
            packed = flare.pack(source, out, append=True, key="id", on_duplicate="replace")
            assert (packed.rows, packed.replaced) == (len(new), len(again))
            number = packed.version
            model = [one for one in model if one["id"] not in again] + new
        elif change == "compact":
            number = flare.compact(out, below="1MB").version
        elif change == "restore":
            wanted = rng.choice(sorted(seen))
            number = flare.log(out, restore=wanted)[-1].number
            model = list(seen[wanted])
        if number is not None:
            seen[number] = list(model)
        assert plain(content(out)) == stored(model, format), (step, change)
    assert [one.number for one in flare.log(out)] == sorted(seen)
    for number, expected in seen.items():
        address = str(out / f"playlist.{number:06d}.yaml")
        assert plain(content(address)) == stored(expected, format)
        assert list(flare.verify(address)) == []
    flare.pack(out, tmp_path / "whole", format=format)
    assert plain(content(tmp_path / "whole")) == stored(model, format)
    flare.prune(out, keep=2)
    assert plain(content(out)) == stored(model, format)
    assert list(flare.verify(str(out))) == []


CHANGES = {
    "append": lambda folder: flare.pack(
        str(folder.parent / "more.parquet"), folder, append=True, resume=True, shard_rows=3
    ),
    "append parts": lambda folder: flare.pack(
        str(folder.parent / "more.parquet"), folder, append=True, resume=True, part_rows=3
    ),
    "replace": lambda folder: flare.pack(
        str(folder.parent / "again.parquet"),
        folder,
        append=True,
        key="id",
        on_duplicate="replace",
        resume=True,
        shard_rows=2,
    ),
    "drop": lambda folder: flare.drop(folder, where="id % 4 = 1", resume=True),
    "compact": lambda folder: flare.compact(folder, resume=True),
    "add column": lambda folder: flare.pack(
        str(folder.parent / "column.parquet"), folder, add_column="score", resume=True
    ),
    "restore": lambda folder: flare.log(folder, restore=1),
    "prune": lambda folder: flare.prune(folder, keep=1),
    "erase": lambda folder: flare.drop(folder, where="id = 1", erase=True, resume=True),
}


@pytest.mark.parametrize("change", CHANGES)
def test_a_change_killed_at_any_step_leaves_complete_lists_and_can_be_repeated(
    change, out, tmp_path
):
    table(rows(10, 5), tmp_path / "more.parquet")
    scores = [{"score": i / 2} for i in range(12)]
    table(scores, tmp_path / "column.parquet")
    table([{"id": i, "text": "again"} for i in (5, 11, 12)], tmp_path / "again.parquet")
    flare.pack(table(rows(10, 2), tmp_path / "two.parquet"), out, append=True)
    if change in ("prune", "erase"):
        flare.drop(out, where="id = 9")
        flare.compact(out)
    unbroken = shutil.copytree(out, tmp_path / "unbroken")
    CHANGES[change](unbroken)
    expected, count, states = files_of(unbroken), 0, []
    for step, folder, is_complete in killed_at_each_step(CHANGES[change], out):
        count += 1
        if (state := state_of(folder)) in states:
            continue  # the same folder was checked and completed after an earlier kill
        states.append(state)
        for name in sorted(path.name for path in folder.glob("playlist*.yaml")):
            assert list(flare.verify(str(folder / name))) == [], (step, name)
        assert content(folder) in (content(out), content(unbroken)), step
        if not is_complete:
            CHANGES[change](folder)
        assert files_of(folder) == expected, step
    assert count > 10


@pytest.mark.parametrize("format", ["mds", "webdataset", "granular"])
def test_a_first_change_killed_at_any_step_leaves_a_valid_dataset(format, tmp_path):
    out = tmp_path / "out"
    flare.pack(table(rows(0, 4), tmp_path / "first.parquet"), out, format=format, shard_rows=2)
    more, count = table(rows(4, 1), tmp_path / "more.parquet"), 0
    for step, folder, _ in killed_at_each_step(lambda at: flare.pack(more, at, append=True), out):
        assert list(flare.verify(folder)) == [], step
        count += 1
    assert count > 10


@pytest.mark.parametrize("format", ["mds", "webdataset", "granular"])
def test_a_dataset_is_valid_if_it_is_changed_while_it_is_verified(format, tmp_path, monkeypatch):
    """Another process appends rows after the n-th request for the size of a file, for all n."""
    first, more = (table(rows(i, 4), tmp_path / f"{i}.parquet") for i in (0, 4))
    real, step, changed = LocalStore.size, 0, True
    while changed:
        out, requests, changed = tmp_path / f"out{step}", itertools.count(), False
        flare.pack(first, out, format=format, shard_rows=2)

        def size(store, path, *, out=out, requests=requests, step=step):
            nonlocal changed
            found = real(store, path)
            if not changed and next(requests) == step:
                changed = True
                pid = os.fork()
                if not pid:
                    try:
                        flare.pack(more, out, append=True)
                    finally:
                        os._exit(0)
                os.waitpid(pid, 0)
            return found

        with monkeypatch.context() as patch:
            patch.setattr(LocalStore, "size", size)
            assert list(flare.verify(out, jobs=1)) == [], step
        assert len(flare.open(out)) == (8 if changed else 4)
        step += 1
    assert step > 5


def test_an_index_of_a_changed_dataset_that_omits_a_shard_is_reported(out, tmp_path):
    flare.pack(table(rows(10, 2), tmp_path / "more.parquet"), out, append=True)
    index = json.loads((out / "index.json").read_text())
    index["shards"].pop()
    (out / "index.json").write_text(json.dumps(index))
    (found,) = flare.verify(out)
    assert (found.address, found.kind) == (f"{out}/index.json", "listing")
    assert found.message == f"lists other shards than {out}/playlist.yaml"


def test_a_missing_index_of_a_changed_dataset_is_reported_and_created_again(out, tmp_path):
    flare.pack(table(rows(10, 2), tmp_path / "more.parquet"), out, append=True)
    before = (out / "index.json").read_bytes()
    (out / "index.json").unlink()
    (found,) = flare.verify(out)
    assert (found.address, found.kind) == (f"{out}/index.json", "missing")
    assert found.message == "the index of the newest version is missing"
    assert found.hint == f"Fetch it again, or remove it and run `flare playlist {out} --reindex`."
    flare.reindex(out)
    assert (out / "index.json").read_bytes() == before
    assert list(flare.verify(out)) == []
    with pytest.raises(UsageError) as caught:
        flare.reindex(out)
    assert str(caught.value) == f"{out}/index.json: index already exists"
    (out / "index.json").write_bytes(before[:-9])
    flare.reindex(out, replace=True)
    assert (out / "index.json").read_bytes() == before
    (out / "index.000001.json").unlink()
    with pytest.raises(FormatError) as lost:
        flare.reindex(out, replace=True)
    assert str(lost.value) == f"{out}: no index lists the shard 'shard.00000.mds'"
    assert (out / "index.json").read_bytes() == before


def test_a_merged_index_lists_the_newest_version_of_a_changed_dataset(out, tmp_path):
    flare.pack(table(rows(10, 2), tmp_path / "more.parquet"), out, append=True)
    flare.drop(out, where="id = 1 or id = 11")
    flare.pack(table(rows(20, 1), tmp_path / "other.parquet"), tmp_path / "root" / "other")
    out.rename(tmp_path / "root" / "changed")
    flare.merge_index(tmp_path / "root")
    wanted = [one for one in rows(0, 11) if one["id"] != 1] + rows(20, 1)
    assert content(tmp_path / "root") == wanted
    (tmp_path / "root" / "changed" / "index.json").rename(tmp_path / "index.json")
    with pytest.raises(MissingError) as caught:
        flare.merge_index(tmp_path / "root")
    changed = tmp_path / "root" / "changed"
    assert str(caught.value) == f"{changed}/index.json: the index of the changed dataset is missing"
    assert caught.value.hint == f"Run `flare playlist {changed} --reindex`."
    index = json.loads((tmp_path / "root" / "index.json").read_text())
    assert sum(one["samples"] for one in index["shards"]) == len(wanted)


def test_a_damaged_current_list_is_replaced_as_the_hints_say(out, tmp_path):
    more = table(rows(10, 2), tmp_path / "more.parquet")
    flare.pack(more, out, append=True)
    before = (out / "playlist.yaml").read_bytes()
    (out / "playlist.yaml").write_bytes(before[: len(before) // 2])
    (found,) = flare.verify(out)
    assert found.address == f"{out}/playlist.yaml"
    assert found.hint == f"Fetch it again, or remove it and run `flare log {out} --restore 2`."
    (out / "playlist.yaml").unlink()
    assert [one.number for one in flare.log(out, restore=2)] == [1, 2]
    assert (out / "playlist.yaml").read_bytes() == before
    assert list(flare.verify(out)) == []


@pytest.mark.parametrize("change", ["append", "drop column"])
@pytest.mark.parametrize(
    ("format", "index"), [("mds", "index.json"), ("webdataset", "shardindex.json")]
)
def test_damage_to_an_index_is_reported_after_a_first_change_was_killed(
    format, index, change, tmp_path, capsys
):
    """The process of the change was killed before it replaced `playlist.yaml`."""
    out = tmp_path / "out"
    flare.pack(table(rows(0, 4), tmp_path / "first.parquet"), out, format=format, shard_rows=2)
    if change == "append":
        flare.pack(table(rows(4, 1), tmp_path / "more.parquet"), out, append=True)
    else:
        flare.drop(out, drop_column="id")
    for name in ("playlist.yaml", "playlist.first.yaml"):
        shutil.copy(out / "playlist.000001.yaml", out / name)
    for name in ("playlist.yaml", "playlist.first.yaml", "playlist.000001.yaml"):
        assert main(["verify", str(out / name)]) == 0
    assert main(["verify", str(out)]) == 0
    capsys.readouterr()
    for name in (index, f"{index.partition('.')[0]}.000001.json"):
        complete = (out / name).read_bytes()
        half = complete[: len(complete) // 2]
        changed = complete.replace(b"text", b"tex_").replace(b'"nsamples": 2', b'"nsamples": 3')
        for damaged in (half, changed):
            (out / name).write_bytes(damaged)
            if damaged != complete:
                assert main(["verify", str(out)]) == 1, name
                assert f"{out}/{name}: " in capsys.readouterr().out
        (out / name).write_bytes(complete)
    assert main(["verify", str(out)]) == 0


def test_a_column_is_dropped_from_its_stream_or_from_all_shards(out, tmp_path):
    flare.pack(
        table([{"score": i} for i in range(10)], tmp_path / "c.parquet"), out, add_column="score"
    )
    assert content(out)[3] == {"id": 3, "text": "text 3", "score": 3}
    shards = {path.name for path in out.rglob("shard.*")}
    assert flare.drop(out, drop_column="score").version == 3
    assert content(out) == rows(0, 10)
    assert {path.name for path in out.rglob("shard.*")} == shards
    assert flare.drop(out, drop_column="id").shards == 3
    assert content(out) == [{"text": f"text {i}"} for i in range(10)]
    with pytest.raises(UsageError) as caught:
        flare.drop(out, drop_column="text")
    assert str(caught.value) == f"{out}/playlist.000004.yaml: 'text' is the only column"
    for number in range(1, 5):
        assert list(flare.verify(str(out / f"playlist.{number:06d}.yaml"))) == []


@pytest.mark.parametrize("erase", [False, True])
@pytest.mark.parametrize("name", ["score", "text"])
def test_a_resumed_drop_of_a_dropped_column_changes_nothing(name, erase, out, tmp_path, capsys):
    """`score` is a stream of its own; `text` is a column of the first stream."""
    scores = table([{"score": i} for i in range(10)], tmp_path / "scores.parquet")
    flare.pack(scores, out, add_column="score")
    options = {"drop_column": name, "resume": True, "erase": erase}
    assert flare.drop(out, **options).version == 3
    flare.pack(
        table(rows(10, 1), tmp_path / "m.parquet"),
        out,
        append=True,
        allow_missing=True,
        null=["fill"],
        columns=["id"],
    )
    before = files_of(out)
    assert flare.drop(out, **options).version is None
    arguments = ["drop", str(out), "--drop-column", name]
    capsys.readouterr()
    assert main([*arguments, "--resume", *(["--erase"] if erase else [])]) == 0
    assert capsys.readouterr().err == "version 3 has already removed this column\n"
    assert files_of(out) == before
    assert main(arguments) == 2
    if name == "score":
        more = table([{"score": -i} for i in range(11)], tmp_path / "other.parquet")
        assert flare.pack(more, out, add_column="score").version == 5
        assert flare.drop(out, **options).version == 6


def test_a_resumed_drop_of_row_numbers_does_not_remove_the_next_rows(out, tmp_path):
    expected = {":2": rows(2, 8), "-2:": rows(2, 6)}
    for number, spec in enumerate(expected, 2):
        assert flare.drop(out, rows=spec, resume=True).version == number
        for _ in range(2):
            assert flare.drop(out, rows=spec, resume=True).version is None
            assert content(out) == expected[spec]
    assert flare.drop(out, rows=":2", erase=True, resume=True).version == 4
    assert flare.drop(out, rows=":2", erase=True, resume=True).version is None
    assert content(out) == rows(4, 4)
    assert flare.drop(out, rows=":2").version == 5


def test_erased_rows_are_in_no_byte_of_the_folder(out, tmp_path, capsys):
    secret = "planted secret 8317"
    flare.pack(table([{"id": 10, "text": secret}], tmp_path / "s.parquet"), out, append=True)
    flare.pack(table(rows(11, 4), tmp_path / "more.parquet"), out, append=True)
    flare.log(out, pin="before")
    with pytest.raises(UsageError) as caught:
        flare.drop(out, where="id = 10", erase=True)
    assert (
        str(caught.value) == f"{out}: the pin playlist.before.yaml lists files that would be erased"
    )
    assert caught.value.hint == "Delete the pin, or use --break-pins."
    assert any(secret.encode() in data for data in files_of(out).values())
    assert main(["drop", str(out), "--where", "id = 10", "--erase", "--break-pins"]) == 0
    assert capsys.readouterr().err.splitlines()[0] == (
        "erased the rows from this folder; caches of readers and backups may still contain them"
    )
    assert not any(secret.encode() in data for data in files_of(out).values())
    assert content(out) == rows(0, 10) + rows(11, 4)
    assert [one.number for one in flare.log(out)] == [1, 4]
    for one in flare.log(out):
        assert list(flare.verify(str(out / f"playlist.{one.number:06d}.yaml"))) == []


# Long, because random names and checksums contain each number of four digits now and then.
ERASED, KEPT = 8317_0000_0000_0017, 8318_0000_0000_0018


def with_failures(out, tmp_path):
    """Append rows of which two fail: those with the keys ERASED and KEPT."""
    (tmp_path / "keyed.csv").write_text(
        f"id,text\n20,fine\n{ERASED},{'x' * 3000}\n{KEPT},{'y' * 3000}\n21,fine too\n"
    )
    flare.pack(
        str(tmp_path / "keyed.csv"),
        out,
        append=True,
        key="id",
        on_error="skip",
        max_object=2000,
    )


def failed_rows(out):
    """Return the keys in the lines of all lists of failed rows."""
    return sorted(
        json.loads(line)["key"]
        for path in out.rglob("failed*.jsonl")
        for line in path.read_text().splitlines()
    )


def test_erased_keys_are_in_no_list_of_failed_rows(out, tmp_path):
    with_failures(out, tmp_path)
    flare.pack(
        table([{"id": ERASED, "text": "later"}], tmp_path / "late.parquet"), out, append=True
    )
    assert failed_rows(out) == [str(ERASED), str(KEPT)]
    (tmp_path / "keys.txt").write_text(f"{ERASED}\n")
    flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True)
    assert failed_rows(out) == [str(KEPT)]
    for secret in (str(ERASED).encode(), ERASED.to_bytes(8, "little"), b"later"):
        assert not any(secret in data for data in files_of(out).values())
    assert [one["id"] for one in content(out)] == [*range(10), 20, 21]
    assert [one.number for one in flare.log(out)] == [1, 4]
    for name in ("playlist.yaml", "playlist.000001.yaml", "playlist.000004.yaml"):
        assert list(flare.verify(str(out / name))) == []
    flare.compact(out)
    flare.prune(out, keep=1)
    assert failed_rows(out) == [str(KEPT)]
    assert list(flare.verify(str(out))) == []


def test_a_failed_row_is_erased_by_its_key_although_no_row_of_the_dataset_has_it(out, tmp_path):
    with_failures(out, tmp_path)
    (tmp_path / "keys.txt").write_text(f"{ERASED}\n{KEPT}\n")
    changed = flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True)
    assert (changed.version, changed.rows, changed.shards) == (3, 0, 0)
    assert failed_rows(out) == []
    assert [one.number for one in flare.log(out)] == [1, 3]
    assert list(flare.verify(str(out))) == []
    again = flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True)
    assert again.version is None


def test_a_pin_that_lists_failed_rows_with_an_erased_key_is_refused(out, tmp_path):
    with_failures(out, tmp_path)
    flare.log(out, pin="before")
    (tmp_path / "keys.txt").write_text(f"{ERASED}\n")
    with pytest.raises(UsageError) as caught:
        flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True)
    assert (
        str(caught.value) == f"{out}: the pin playlist.before.yaml lists files that would be erased"
    )
    assert not (out / ".flare-erased").exists()
    flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True, break_pins=True)
    assert failed_rows(out) == [str(KEPT)]


def test_failed_rows_of_parts_are_erased_by_their_keys(tmp_path):
    out = tmp_path / "out"
    rows_of = [f"{i},{'x' * 3000 if i in (3, 7) else 'fine'}" for i in range(9)]
    (tmp_path / "a.csv").write_text("\n".join(["id,text", *rows_of]) + "\n")
    options = {"key": "id", "on_error": "skip", "max_object": 2000, "part_rows": 4}
    flare.pack(str(tmp_path / "a.csv"), out, **options)
    assert failed_rows(out) == ["3", "3", "7", "7"]
    (tmp_path / "keys.txt").write_text("3\n")
    flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True)
    assert failed_rows(out) == ["7", "7"]
    assert list(flare.verify(str(out))) == []
    assert [one["id"] for one in content(out)] == ["0", "1", "2", "4", "5", "6", "8"]


def test_a_row_with_an_erased_key_is_a_failed_row_of_a_later_append(out, tmp_path, capsys):
    flare.drop(out, where="id in (3, 4)", key="id", erase=True)
    text = (out / ".flare-erased").read_text()
    kept = json.loads(text)
    assert (list(kept), list(kept["columns"])) == (["key", "columns"], ["id"])
    expected = {
        hashlib.blake2b(one, digest_size=16, key=bytes.fromhex(kept["key"])).hexdigest()
        for one in (b"3", b"4")
    }
    assert set(kept["columns"]["id"]) == expected
    more = table([{"id": i, "text": f"planted {i}"} for i in (10, 3, 11)], tmp_path / "m.parquet")
    with pytest.raises(FormatError) as caught:
        flare.pack(more, out, append=True)
    assert str(caught.value) == f"{more}[1]: a row with this key was erased from the dataset"
    options = ["--append", "--on-error", "skip", "--json"]
    assert main(["pack", more, str(out), *options]) == 1
    packed = json.loads(capsys.readouterr().out)
    assert (packed["rows"], packed["failed"], packed["reasons"]) == (2, 1, {"erased": 1})
    (failed,) = out.glob("fragment.*/failed.jsonl")
    assert json.loads(failed.read_text()) == {
        "file": "m.parquet",
        "row": 1,
        "key": "",
        "column": "id",
        "kind": "erased",
        "reason": "a row with this key was erased from the dataset",
    }
    assert [one["id"] for one in content(out)] == [0, 1, 2, *range(5, 12)]
    flare.prune(out, keep=1)
    assert not any(b"planted 3" in data for data in files_of(out).values())
    assert (out / ".flare-erased").read_text() == text
    assert list(flare.verify(str(out))) == []


def with_links(ids, web, path):
    """Write a table of two links per row, to `/N.jpg` and `/N.txt`."""
    for i in ids:
        web.file(f"/{i}.jpg", b"\xff\xd8\xff\xe0 image %d" % i)
        web.file(f"/{i}.txt", b"page %d" % i)
    samples = [{"id": i, "image": web.url(f"/{i}.jpg"), "page": web.url(f"/{i}.txt")} for i in ids]
    return table(samples, path)


@pytest.mark.parametrize("options", [{}, {"key": "id"}, {"part_rows": 2}, {"where": "id != 4"}])
def test_the_links_of_a_row_with_an_erased_key_are_not_requested(options, web, tmp_path):
    out = tmp_path / "out"
    links = {"fetch": ["image", "page"], "encode": {"page": "str"}, "allow_private": True}
    flare.pack(with_links(range(4), web, tmp_path / "first.parquet"), out, **links)
    flare.drop(out, where="id = 2", key="id", erase=True)
    more = with_links([4, 2, 5, 6], web, tmp_path / "more.parquet")
    links |= {"append": True, **options}
    web.asked.clear()
    flare.pack(more, out, **links, on_error="skip", dry_run=True)
    with pytest.raises(FormatError) as caught:
        flare.pack(more, out, **links)
    part = "part 00000: " if "part_rows" in options else ""
    assert str(caught.value) == f"{part}{more}[1]: a row with this key was erased from the dataset"
    packed = flare.pack(more, out, **links, on_error="skip")
    kept = [5, 6] if "where" in options else [4, 5, 6]
    assert (packed.rows, packed.failed, dict(packed.reasons)) == (len(kept), 1, {"erased": 1})
    # parts and their fragment have separate lists
    (failed,) = {path.read_text() for path in out.glob("fragment.*/**/failed.jsonl")}
    assert json.loads(failed) == {
        "file": "more.parquet",
        "row": 1,
        "key": "",
        "column": "id",
        "kind": "erased",
        "reason": "a row with this key was erased from the dataset",
    }
    assert set(web.asked) == {f"/{i}.{kind}" for i in kept for kind in ("jpg", "txt")}
    assert [(one["id"], one["page"]) for one in content(out)] == [
        (i, f"page {i}") for i in [0, 1, 3, *kept]
    ]
    assert list(flare.verify(str(out))) == []


def test_a_row_with_an_erased_key_and_without_a_link_fails_because_of_the_key(web, tmp_path):
    out = tmp_path / "out"
    links = {"fetch": ["image"], "allow_private": True, "columns": ["id", "image"]}
    flare.pack(with_links(range(4), web, tmp_path / "first.parquet"), out, **links)
    flare.drop(out, where="id = 2", key="id", erase=True)
    samples = [{"id": i, "image": web.url("/0.jpg") if i == 9 else None} for i in (2, 8, 9)]
    more = table(samples, tmp_path / "more.parquet")
    packed = flare.pack(more, out, append=True, on_error="skip", **links)
    assert (packed.rows, dict(packed.reasons)) == (1, {"erased": 1, "null": 1})


def test_an_address_is_not_compared_with_the_erased_texts_of_its_column(web, tmp_path):
    out, address = tmp_path / "out", web.file("/page", b"other text")
    flare.pack(table([{"text": address}, {"text": "kept"}], tmp_path / "first.parquet"), out)
    flare.drop(out, where="text != 'kept'", key="text", erase=True)
    more = table([{"text": address}], tmp_path / "more.parquet")
    flare.pack(more, out, append=True, fetch=["text"], allow_private=True)
    assert content(out) == [{"text": "kept"}, {"text": "other text"}]
    web.file("/page", address.encode())  # the downloaded text is erased
    with pytest.raises(FormatError) as caught:
        flare.pack(more, out, append=True, fetch=["text"], allow_private=True)
    assert str(caught.value) == f"{more}[0]: a row with this key was erased from the dataset"


def test_an_erased_key_is_not_listed_if_the_row_fails_for_another_reason(out, tmp_path):
    flare.drop(out, where="id = 3", key="id", erase=True)
    (tmp_path / "a.csv").write_text("id,text\n10,fine\n3," + "x" * 3000 + "\n")
    options = {"key": "id", "on_error": "skip", "max_object": 2000}
    packed = flare.pack(str(tmp_path / "a.csv"), out, append=True, **options)
    assert dict(packed.reasons) == {"erased": 1}
    assert failed_rows(out) == [""]


def test_a_row_whose_key_is_erased_while_it_is_packed_is_not_appended(out, tmp_path, monkeypatch):
    more = table(rows(3, 1) + rows(50, 1), tmp_path / "more.parquet")
    real = versions.commit

    def commit(at, change, base, targets=()):
        monkeypatch.setattr(versions, "commit", real)
        flare.drop(out, where="id = 3", key="id", erase=True)
        return real(at, change, base, targets)

    monkeypatch.setattr(versions, "commit", commit)
    with pytest.raises(BusyError) as caught:
        flare.pack(more, out, append=True)
    assert caught.value.message == "another process has erased a key that one of the new rows has"
    with pytest.raises(FormatError):
        flare.pack(more, out, append=True, resume=True)
    packed = flare.pack(more, out, append=True, resume=True, on_error="skip")
    assert (packed.rows, packed.failed) == (1, 1)
    flare.prune(out, keep=1)
    assert not any(b"text 3" in data for data in files_of(out).values())
    assert [one["id"] for one in content(out)] == [0, 1, 2, *range(4, 10), 50]


def test_a_damaged_list_of_erased_keys_is_reported(out, tmp_path):
    flare.drop(out, where="id = 3", key="id", erase=True)
    more = table(rows(10, 1), tmp_path / "more.parquet")
    for text in (
        "{",
        "[]",
        "[" * 100_000,
        '{"key": "00", "columns": {}}',
        '{"key": "zz", "columns": {"a": 5}}',
    ):
        (out / ".flare-erased").write_text(text)
        with pytest.raises(FormatError) as caught:
            flare.pack(more, out, append=True)
        assert str(caught.value) == (
            f"{out}/.flare-erased: expected a JSON object with the fields 'key' and 'columns'"
        )


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"keys": "keys.txt"}, "--keys needs --key"),
        ({"rows": "0", "break_pins": True}, "--break-pins needs --erase"),
        (
            {"where": "id = 1", "key": "id"},
            "--key needs --keys or --erase, and cannot be used with --drop-column",
        ),
        (
            {"drop_column": "text", "key": "id", "erase": True},
            "--key needs --keys or --erase, and cannot be used with --drop-column",
        ),
        ({"where": "id = 1", "key": "x", "erase": True}, "--key: no column 'x'"),
    ],
)
def test_a_key_of_a_drop_needs_keys_or_erased_rows(out, options, message):
    before = files_of(out)
    with pytest.raises(UsageError) as caught:
        flare.drop(out, **options)
    assert caught.value.message == message
    assert files_of(out) == before


def test_an_erasure_killed_at_any_step_erases_keys_when_it_is_repeated(out, tmp_path):
    with_failures(out, tmp_path)
    flare.pack(
        table([{"id": ERASED, "text": "later"}], tmp_path / "late.parquet"), out, append=True
    )
    flare.log(out, pin="before")
    (tmp_path / "keys.txt").write_text(f"{ERASED}\n")

    def erase(folder):
        flare.drop(
            folder,
            keys=tmp_path / "keys.txt",
            key="id",
            erase=True,
            break_pins=True,
            resume=True,
        )

    unbroken = shutil.copytree(out, tmp_path / "unbroken")
    erase(unbroken)
    expected, count = files_of(unbroken), 0
    del expected[".flare-erased"]  # has a random key
    for step, folder, _ in killed_at_each_step(erase, out):
        count += 1
        for name in sorted(path.name for path in folder.glob("playlist*.yaml")):
            assert list(flare.verify(str(folder / name))) == [], (step, name)
        erase(folder)
        found = files_of(folder)
        assert len(json.loads(found.pop(".flare-erased"))["columns"]["id"]) == 1
        assert found == expected, step
    assert not any(str(ERASED).encode() in data for data in expected.values())
    assert count > 20


SECRET = "planted secret 8317"


def planted(tmp_path):
    """A dataset from which a row with a planted text was dropped, but not erased."""
    out = tmp_path / "planted"
    samples = [*rows(0, 3), {"id": 3, "text": SECRET}, *rows(4, 6)]
    flare.pack(table(samples, tmp_path / "planted.parquet"), out, shard_rows=4)
    flare.drop(out, where="id = 3")
    (tmp_path / "keys.txt").write_text("3\n")
    return out


def has_secret(folder):
    return any(SECRET.encode() in data for data in files_of(folder).values())


def test_a_row_that_was_dropped_before_is_erased_by_its_key(tmp_path, capsys):
    out = planted(tmp_path)
    options = ["--erase", "--keys", str(tmp_path / "keys.txt"), "--key", "id"]
    before = state_of(out)
    assert main(["drop", str(out), *options, "--dry-run"]) == 0
    assert capsys.readouterr().err.splitlines() == [
        "1 of 1 key matches no row of the current version",
        "the erasure would delete 1 file, and all earlier versions that list it",
    ]
    assert state_of(out) == before and has_secret(out)
    assert main(["drop", str(out), *options]) == 0
    assert "no row matches" not in capsys.readouterr().err
    assert not has_secret(out)
    assert [one.number for one in flare.log(out)] == [2]
    assert len(json.loads((out / ".flare-erased").read_text())["columns"]["id"]) == 1
    assert content(out) == [*rows(0, 3), *rows(4, 6)] and list(flare.verify(str(out))) == []
    with pytest.raises(FormatError):
        flare.pack(table(rows(3, 1), tmp_path / "again.parquet"), out, append=True)


@pytest.mark.parametrize("selected", ["keys", "where"])
def test_a_row_that_was_dropped_and_appended_again_is_erased_everywhere(selected, tmp_path):
    out = planted(tmp_path)
    flare.pack(table(rows(3, 1), tmp_path / "again.parquet"), out, append=True)
    options = {"keys": tmp_path / "keys.txt"} if selected == "keys" else {"where": "id = 3"}
    assert flare.drop(out, **options, key="id", erase=True).rows == 1
    assert not has_secret(out)
    assert content(out) == [*rows(0, 3), *rows(4, 6)] and list(flare.verify(str(out))) == []


def test_a_pin_of_a_version_with_an_erased_key_is_refused_or_deleted(tmp_path):
    out = planted(tmp_path)
    (out / "playlist.first.yaml").write_bytes((out / "playlist.000001.yaml").read_bytes())
    flare.prune(out, keep=1)
    options = {"keys": tmp_path / "keys.txt", "key": "id", "erase": True}
    with pytest.raises(UsageError) as caught:
        flare.drop(out, **options)
    assert (
        str(caught.value) == f"{out}: the pin playlist.first.yaml lists files that would be erased"
    )
    assert has_secret(out) and not (out / ".flare-erased").exists()
    flare.drop(out, **options, break_pins=True)
    assert not has_secret(out) and not (out / "playlist.first.yaml").exists()


def test_the_key_and_the_text_of_a_dropped_row_are_erased_in_all_streams(tmp_path):
    out = tmp_path / "out"
    samples = [{"text": SECRET if i == 3 else f"text {i}"} for i in range(10)]
    flare.pack(table(samples, tmp_path / "a.parquet"), out, shard_rows=4)
    flare.pack(table([{"id": i} for i in range(10)], tmp_path / "b.parquet"), out, add_column="id")
    flare.drop(out, where="id = 3")
    (tmp_path / "keys.txt").write_text("3\n")
    unknown = shutil.copytree(out, tmp_path / "unknown")
    flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True)
    assert not has_secret(out)
    assert [one.number for one in flare.log(out)] == [3]
    (unknown / "playlist.000002.yaml").unlink()
    with pytest.raises(FormatError) as caught:
        flare.drop(unknown, keys=tmp_path / "keys.txt", key="id", erase=True)
    assert str(caught.value) == (
        f"{unknown}/playlist.000001.yaml: the keys of the rows in shard.00000.mds are unknown, "
        "because the playlist does not list the column 'id' or the numbers of rows"
    )


@pytest.mark.parametrize(("damage", "error"), [("missing", MissingError), ("cut", FormatError)])
def test_an_earlier_shard_that_cannot_be_read_stops_an_erasure(damage, error, tmp_path):
    out = planted(tmp_path)
    shard = out / "shard.00000.mds"
    data = shard.read_bytes()
    shard.unlink() if damage == "missing" else shard.write_bytes(data[: len(data) // 2])
    with pytest.raises(error) as caught:
        flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True)
    assert caught.value.exit_code in (3, 4) and "shard.00000.mds" in str(caught.value)
    assert not (out / ".flare-erased").exists()


def test_an_erasure_of_earlier_versions_killed_at_any_step_is_completed(tmp_path):
    out = planted(tmp_path)

    def erase(folder):
        flare.drop(folder, keys=tmp_path / "keys.txt", key="id", erase=True)

    count = 0
    for step, folder, _ in killed_at_each_step(erase, out):
        count += 1
        erase(folder)
        assert not has_secret(folder), step
        assert list(flare.verify(str(folder))) == [], step
        assert (folder / ".flare-erased").exists(), step
    assert count > 3


def test_a_key_is_not_refused_after_an_erasure_that_could_not_commit(out, tmp_path, monkeypatch):
    real = versions.commit

    def commit(at, change, base, targets=()):
        monkeypatch.setattr(versions, "commit", real)
        flare.drop(out, where="id = 2")
        return real(at, change, base, targets)

    monkeypatch.setattr(versions, "commit", commit)
    with pytest.raises(BusyError):
        flare.drop(out, where="id = 3", key="id", erase=True)
    assert not (out / ".flare-erased").exists()
    flare.pack(table(rows(3, 1), tmp_path / "more.parquet"), out, append=True)


def test_a_row_with_a_key_that_is_being_erased_stops_the_erasure(out, tmp_path, monkeypatch):
    real = versions.commit

    def commit(at, change, base, targets=()):
        monkeypatch.setattr(versions, "commit", real)
        flare.pack(table(rows(3, 1), tmp_path / "more.parquet"), out, append=True)
        return real(at, change, base, targets)

    monkeypatch.setattr(versions, "commit", commit)
    with pytest.raises(BusyError) as caught:
        flare.drop(out, where="id = 3", key="id", erase=True)
    assert str(caught.value) == f"{out}: another process has added a row whose key is being erased"
    assert not (out / ".flare-erased").exists()
    assert flare.drop(out, where="id = 3", key="id", erase=True).rows == 2


def test_an_erasure_of_a_version_that_is_restored_meanwhile_records_no_key(tmp_path, monkeypatch):
    out = planted(tmp_path)
    (tmp_path / "keys.txt").write_text("3\n9\n")
    real = versions.commit

    def commit(at, change, base, targets=()):
        monkeypatch.setattr(versions, "commit", real)
        flare.log(out, restore=1)
        return real(at, change, base, targets)

    monkeypatch.setattr(versions, "commit", commit)
    with pytest.raises(BusyError) as caught:
        flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True)
    assert caught.value.message == "the newest version lists files that are being erased"
    assert not (out / ".flare-erased").exists()
    assert flare.drop(out, keys=tmp_path / "keys.txt", key="id", erase=True).rows == 2
    assert not has_secret(out)


def test_a_column_of_lists_cannot_be_a_key_of_an_erasure(tmp_path):
    out = tmp_path / "out"
    flare.pack(table([{"id": [1, 2], "v": 0}], tmp_path / "a.parquet"), out, format="parquet")
    with pytest.raises(UsageError) as caught:
        flare.drop(out, key="id", where="v=0", erase=True)
    assert str(caught.value) == "column 'id' cannot be a key: expected text, numbers or bytes"


def test_too_many_erased_keys_are_refused_before_the_commit(out, monkeypatch):
    flare.drop(out, where="id = 2", key="id", erase=True)
    before = files_of(out)
    monkeypatch.setattr("flarecli.write.erased._MAX_BYTES", len(before[".flare-erased"]))
    with pytest.raises(UsageError) as caught:
        flare.drop(out, where="id = 3", key="id", erase=True)
    size = len(before[".flare-erased"])
    assert str(caught.value) == (
        f"{out}/.flare-erased: the hashes of the erased keys need {size + 36} bytes; "
        f"the maximum is {size}"
    )
    assert files_of(out)[".flare-erased"] == before[".flare-erased"] and len(content(out)) == 9


@pytest.mark.parametrize("kind", [pa.float64(), pa.float32(), pa.float16()])
def test_zero_and_negative_zero_are_the_same_erased_key(kind, tmp_path):
    out = tmp_path / "out"

    def floats(values, name):
        columns = {
            "id": pa.array(np.array(values, kind.to_pandas_dtype())),
            "v": range(len(values)),
        }
        pq.write_table(pa.table(columns), tmp_path / name)
        return str(tmp_path / name)

    flare.pack(floats([-0.0, 0.0, 1.5], "a.parquet"), out, format="parquet")
    (tmp_path / "keys.txt").write_text("0\n")
    options = {"keys": tmp_path / "keys.txt", "key": "id"}
    assert flare.drop(out, **options, dry_run=True).rows == 2
    (tmp_path / "keys.txt").write_text("-0\n")
    assert flare.drop(out, **options, dry_run=True).rows == 2
    flare.drop(out, where="v = 0", key="id", erase=True)
    for zero in (0.0, -0.0):
        with pytest.raises(FormatError, match="a row with this key was erased"):
            flare.pack(floats([zero], "b.parquet"), out, append=True)


@pytest.mark.parametrize("format", ["mds", "webdataset"])
def test_shards_that_a_change_removed_are_not_reported_as_a_gap(format, tmp_path):
    out = tmp_path / "out"
    first = table(rows(0, 10), tmp_path / "first.parquet")
    flare.pack(first, out, format=format, shard_rows=2)
    flare.drop(out, where="id in (2, 3, 6)")
    for name in ("playlist.yaml", "playlist.000001.yaml"):
        assert flare.inspect(out / name).streams[0].holes == ()
    (stream,) = flare.open(out).playlists[0].streams
    last = out / stream.urls[-1]
    last.unlink()
    assert flare.inspect(out).streams[0].holes == (f"{last.name}: missing, rows 5 to 6",)


def test_rows_are_dropped_by_the_keys_in_a_file(out, tmp_path):
    (tmp_path / "keys.txt").write_text("3\n8\n99\n")
    table([{"id": 1}, {"id": 5}], tmp_path / "keys.parquet")
    assert flare.drop(out, keys=tmp_path / "keys.txt", key="id").rows == 2
    assert flare.drop(out, keys=tmp_path / "keys.parquet", key="id").rows == 2
    assert [one["id"] for one in content(out)] == [0, 2, 4, 6, 7, 9]


def test_a_dry_run_and_a_drop_without_a_match_change_nothing(out):
    before = files_of(out)
    found = flare.drop(out, where="id < 2", dry_run=True)
    assert (found.version, found.rows, found.shards, found.dry_run) == (None, 2, 1, True)
    assert flare.drop(out, where="id > 99").version is None
    assert flare.compact(out, dry_run=True, below="1MB").shards == 3
    assert files_of(out) == before


def test_keys_of_the_dataset_count_as_earlier_rows(out, tmp_path):
    more = table(rows(8, 5), tmp_path / "more.parquet")
    with pytest.raises(FormatError) as caught:
        flare.pack(more, out, append=True, key="id")
    assert str(caught.value) == f"{more}[0]: key '8' is already in the dataset, in row 8"
    assert caught.value.hint == (
        "Use `--on-duplicate first` to skip rows with existing keys, or "
        "`--on-duplicate replace` to remove the existing rows."
    )
    packed = flare.pack(more, out, append=True, key="id", on_duplicate="first")
    assert (packed.rows, packed.duplicates) == (3, 2)
    assert content(out) == rows(0, 13)


def test_rows_with_existing_keys_are_replaced_in_one_version(out, tmp_path, capsys):
    again = [{"id": i, "text": f"new {i}"} for i in (1, 2, 9, 20)]
    source = table(again, tmp_path / "again.parquet")
    options = ["--append", "--key", "id", "--on-duplicate", "replace"]
    size = sum((out / f"shard.0000{i}.mds").stat().st_size for i in (0, 2))
    before = files_of(out)
    assert main(["pack", source, str(out), *options, "-n", "-q"]) == 0
    shown = capsys.readouterr().out
    assert shown.endswith(f"; would replace 3 rows in shards of {format_size(size)}\n")
    assert files_of(out) == before
    assert main(["pack", source, str(out), *options]) == 0
    shown = capsys.readouterr().err
    assert f" as version 2, replaced 3 rows in shards of {format_size(size)} in " in shown
    assert content(out) == [one for one in rows(0, 9) if one["id"] not in (1, 2)] + again
    assert [(one.number, one.verb, one.added, one.removed) for one in flare.log(out)] == [
        (1, "pack", 10, 0),
        (2, "replace", 4, 3),
    ]
    assert content(out / "playlist.000001.yaml") == rows(0, 10)
    for name in ("playlist.yaml", "playlist.000001.yaml"):
        assert list(flare.verify(str(out / name))) == []
    assert main(["pack", source, str(out), *options, "--json", "--resume"]) == 0
    packed = json.loads(capsys.readouterr().out)
    assert (packed["version"], packed["rows"], packed["replaced"]) == (2, 4, 3)
    assert (packed["resumed_rows"], packed["rewritten_bytes"]) == (4, 0)
    assert main(["pack", source, str(out), *options, "--json"]) == 0
    packed = json.loads(capsys.readouterr().out)
    assert (packed["version"], packed["replaced"], packed["duplicates"]) == (3, 4, 0)
    assert content(out) == [one for one in rows(0, 9) if one["id"] not in (1, 2)] + again


def test_all_rows_or_no_rows_of_the_dataset_are_replaced(out, tmp_path):
    new = flare.pack(
        table(rows(10, 2), tmp_path / "new.parquet"),
        out,
        append=True,
        key="id",
        on_duplicate="replace",
    )
    assert (new.version, new.replaced, flare.log(out)[-1].verb) == (2, 0, "append")
    again = [{"id": i, "text": "again"} for i in reversed(range(12))]
    packed = flare.pack(
        table(again, tmp_path / "all.parquet"), out, append=True, key="id", on_duplicate="replace"
    )
    assert (packed.version, packed.replaced) == (3, 12)
    assert content(out) == again
    assert list(flare.verify(str(out))) == []


def test_rows_of_several_streams_are_replaced_by_their_key(out, tmp_path):
    scores = table([{"score": i} for i in range(10)], tmp_path / "scores.parquet")
    flare.pack(scores, out, add_column="score")
    again = [{"id": i, "text": "again", "score": -i} for i in (3, 8)]
    source = table(again, tmp_path / "again.parquet")
    assert flare.pack(source, out, append=True, key="id", on_duplicate="replace").replaced == 2
    kept = [{**one, "score": one["id"]} for one in rows(0, 10) if one["id"] not in (3, 8)]
    assert content(out) == kept + again
    by_score = table([{"id": 30, "text": "x", "score": -8}], tmp_path / "score.parquet")
    flare.pack(by_score, out, append=True, key="score", on_duplicate="replace")
    assert content(out) == [*kept, again[0], {"id": 30, "text": "x", "score": -8}]
    assert list(flare.verify(str(out))) == []


def test_keys_of_webdataset_samples_are_replaced(tmp_path):
    out = tmp_path / "out"
    samples = [{"name": f"a/{i}", "text": f"text {i}"} for i in range(6)]
    flare.pack(table(samples, tmp_path / "0.parquet"), out, format="webdataset", key="name")
    again = [{"name": "a/4", "text": "again"}]
    source = table(again, tmp_path / "1.parquet")
    options = {"append": True, "key": "name", "on_duplicate": "replace"}
    assert flare.pack(source, out, **options, dry_run=True).replaced == 1
    assert flare.pack(source, out, **options).replaced == 1
    expected = [{"__key__": one["name"], "text": one["text"]} for one in samples]
    assert content(out) == [*expected[:4], expected[5], {"__key__": "a/4", "text": "again"}]


def test_a_failed_row_replaces_nothing(out, tmp_path):
    (tmp_path / "again.csv").write_text('id,text\n3,again\n4,"' + "x" * 3000 + '"\n')
    packed = flare.pack(
        str(tmp_path / "again.csv"),
        out,
        append=True,
        key="id",
        on_duplicate="replace",
        on_error="skip",
        max_object=2000,
    )
    assert (packed.rows, packed.replaced, packed.failed) == (1, 1, 1)
    kept = [one for one in rows(0, 10) if one["id"] != 3]
    assert content(out) == [*kept, {"id": 3, "text": "again"}]


def test_a_key_that_the_source_repeats_is_an_error_if_rows_are_replaced(out, tmp_path):
    again = [{"id": 3, "text": "one"}, {"id": 4, "text": "x"}, {"id": 3, "text": "two"}]
    source = table(again, tmp_path / "again.parquet")
    before = files_of(out)
    for dry_run in (True, False):
        with pytest.raises(FormatError) as caught:
            flare.pack(source, out, append=True, key="id", on_duplicate="replace", dry_run=dry_run)
        assert str(caught.value) == f"{source}[2]: key '3' was used in row 0"
        assert caught.value.hint == "Make the keys of the source unique."
        assert content(out) == rows(0, 10)
    assert {name: data for name, data in files_of(out).items() if name in before} == before


def test_an_overwrite_reports_the_versions_and_pins_that_it_deletes(out, tmp_path, capsys):
    source = table(rows(0, 3), tmp_path / "a.parquet")
    assert main(["pack", source, str(out), "--overwrite"]) == 0
    assert "--overwrite deletes" not in capsys.readouterr().err
    flare.append(source, out)
    flare.log(out, pin="run")
    for arguments in (["--dry-run"], []):
        assert main(["pack", source, str(out), "--overwrite", *arguments]) == 0
        err = capsys.readouterr().err
        assert "--overwrite deletes 2 versions and 1 pin of the dataset\n" in err
    assert [one.pin for one in flare.log(out)] == [None]
    assert content(out) == rows(0, 3)


def test_rows_are_skipped_only_by_a_key(out, tmp_path):
    source = table(rows(0, 1), tmp_path / "a.parquet")
    for append in (True, False):
        with pytest.raises(UsageError) as caught:
            flare.pack(source, out, append=append, on_duplicate="first")
        assert str(caught.value) == "`--on-duplicate first` needs --key"
        assert caught.value.hint == "Specify the key column with --key."


def test_hints_for_duplicate_keys_name_no_excluded_option(out, tmp_path):
    def hint(source, **options):
        with pytest.raises(FormatError) as caught:
            flare.pack(source, out, key="id", **options)
        return caught.value.hint

    scores = [{"id": i % 5, "score": i} for i in range(10)]
    assert hint(table(scores, tmp_path / "c.parquet"), add_column="score") == (
        "Make the keys of the source unique."
    )
    more = table(rows(8, 5), tmp_path / "more.parquet")
    assert hint(more, append=True, part_rows=2) == (
        "Use `--on-duplicate replace` to remove the existing rows."
    )
    assert flare.append(more, out, key="id", part_rows=2, on_duplicate="replace").replaced == 2


@pytest.mark.parametrize("key", [None, "id"])
def test_the_hint_for_a_null_in_an_added_column_recommends_only_null(key, out, tmp_path):
    scores = [{"id": i, "score": None if i == 4 else i} for i in range(10)]
    with pytest.raises(ValueFitError) as caught:
        flare.pack(table(scores, tmp_path / "c.parquet"), out, add_column="score", key=key)
    assert caught.value.hint == (
        "Use --null COL=VALUE or --null fill to store a value in place of a null."
    )


def test_a_pin_name_that_is_too_long_is_refused(out):
    flare.log(out, pin="p" * 100)
    with pytest.raises(UsageError) as caught:
        flare.log(out, pin="p" * 101)
    assert (str(caught.value), caught.value.hint) == (
        "a pin name may have at most 100 characters, got 101",
        "Use a shorter name.",
    )


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        (
            {"key": "id"},
            "`--on-duplicate replace` needs --append",
            "Use `--on-duplicate first` to keep only the first row of each key.",
        ),
        (
            {"append": True},
            "`--on-duplicate replace` needs --key",
            "Specify the key column with --key.",
        ),
    ],
)
def test_rows_are_replaced_only_in_a_dataset_and_by_a_key(out, tmp_path, options, message, hint):
    source = table(rows(0, 1), tmp_path / "a.parquet")
    with pytest.raises(UsageError) as caught:
        flare.pack(source, out, on_duplicate="replace", **options)
    assert (str(caught.value), caught.value.hint) == (message, hint)


def test_rows_that_arrive_while_rows_are_packed_are_replaced_too(out, tmp_path, monkeypatch):
    """Another process changes the dataset before the shards are rewritten, and again at the
    commit.
    """
    mine = table([{"id": i, "text": "mine"} for i in (2, 50)], tmp_path / "mine.parquet")
    real = versions.newest
    options = {"append": True, "key": "id", "on_duplicate": "replace"}

    def change(first):
        flare.drop(out, where="id = 3")
        flare.pack(table(rows(first, 2), tmp_path / f"{first}.parquet"), out, append=True)

    calls = iter(range(1000))

    def newest(at):
        if next(calls) == 1:  # after the rows were packed
            monkeypatch.setattr(versions, "newest", real)
            change(50)
        return real(at)

    monkeypatch.setattr(versions, "newest", newest)
    packed = flare.pack(mine, out, **options)
    assert (packed.version, packed.replaced) == (4, 2)
    assert [one["id"] for one in content(out)] == [0, 1, *range(4, 10), 51, 2, 50]

    commit = versions.commit

    def conflict(at, change, base, targets=()):
        monkeypatch.setattr(versions, "commit", commit)
        flare.pack(table(rows(60, 1), tmp_path / "60.parquet"), out, append=True)
        return commit(at, change, base, targets)

    mine = table([{"id": i, "text": "mine"} for i in (2, 60)], tmp_path / "mine.parquet")
    monkeypatch.setattr(versions, "commit", conflict)
    with pytest.raises(BusyError) as caught:
        flare.pack(mine, out, **options, resume=True)
    assert caught.value.message == "another process has added a row with the key '60'"
    packed = flare.pack(mine, out, **options, resume=True)
    assert (packed.version, packed.replaced, packed.resumed_rows) == (6, 2, 2)
    assert [one["id"] for one in content(out)] == [0, 1, *range(4, 10), 51, 50, 2, 60]
    assert list(flare.verify(str(out))) == []
    flare.prune(out, keep=1)
    urls = flare.inspect(out, urls=True).streams[0].urls
    assert {path.name for path in out.glob("fragment.*")} == {
        url.split("/")[-2] for url in urls
    } - {"out"}


def test_keys_of_another_number_type_are_compared_by_value(tmp_path):
    out = tmp_path / "floats"
    flare.pack(table([{"id": 7.0}, {"id": 1.5}], tmp_path / "a.parquet"), out, key="id")
    more = table([{"id": 7}, {"id": 8}], tmp_path / "b.parquet")
    with pytest.raises(FormatError) as caught:
        flare.pack(more, out, append=True, key="id")
    assert str(caught.value) == f"{more}[0]: key '7' is already in the dataset, in row 0"
    assert flare.pack(more, out, append=True, key="id", on_duplicate="first").rows == 1
    assert [one["id"] for one in content(out)] == [7.0, 1.5, 8.0]


def test_keys_of_rows_that_arrived_meanwhile_are_compared_at_the_commit(out, tmp_path, monkeypatch):
    """Two processes append a row with one key; the second one packs before the first one
    commits.
    """
    mine = table([{"id": 50, "text": "mine"}], tmp_path / "mine.parquet")
    theirs = table([{"id": 50, "text": "theirs"}, {"id": 51, "text": "x"}], tmp_path / "t.parquet")
    other = table([{"id": 60, "text": "y"}], tmp_path / "o.parquet")
    real = versions.commit

    def commit(at, change, base, targets=()):
        monkeypatch.setattr(versions, "commit", real)
        for source in (other, theirs):
            flare.pack(source, out, append=True, key="id")
        return real(at, change, base, targets)

    monkeypatch.setattr(versions, "commit", commit)
    with pytest.raises(BusyError) as caught:
        flare.pack(mine, out, append=True, key="id")
    assert caught.value.message == "another process has added a row with the key '50'"
    assert caught.value.hint == "Run the same command again."
    assert content(out)[10:] == [
        {"id": 60, "text": "y"},
        {"id": 50, "text": "theirs"},
        {"id": 51, "text": "x"},
    ]
    with pytest.raises(FormatError) as found:
        flare.pack(mine, out, append=True, key="id", resume=True)
    assert found.value.message == "key '50' is already in the dataset, in row 11"


@pytest.mark.parametrize("key", [None, "id"])
def test_a_column_of_a_dataset_that_grew_meanwhile_is_continued_with_the_new_rows(
    key, out, tmp_path, monkeypatch
):
    """Another process appends rows at the commit; the values of the first rows are not packed
    again.
    """
    count = 14 if key else 10
    scores = table([{"id": i, "score": i * i} for i in range(count)], tmp_path / "scores.parquet")
    more = table(rows(10, 4), tmp_path / "more.parquet")
    real = versions.commit
    options = {"add_column": "score", "key": key, "resume": True, "shard_rows": 3}

    def commit(at, change, base, targets=()):
        monkeypatch.setattr(versions, "commit", real)
        flare.pack(more, out, append=True)
        return real(at, change, base, targets)

    monkeypatch.setattr(versions, "commit", commit)
    with pytest.raises(BusyError) as caught:
        flare.pack(scores, out, **options)
    assert caught.value.message == "another process has changed the rows of the dataset"
    if key is None:
        with pytest.raises(FormatError) as short:
            flare.pack(scores, out, **options)
        assert short.value.message == "the source has 10 rows; the dataset has 14"
        return
    packed = flare.pack(scores, out, **options)
    assert (packed.version, packed.rows, packed.resumed_rows) == (3, 14, 10)
    assert content(out) == [{**one, "score": one["id"] ** 2} for one in rows(0, 14)]
    assert list(flare.verify(str(out))) == []
    assert len(list(out.glob("fragment.*"))) == 2


def test_a_column_is_packed_again_if_rows_were_removed_meanwhile(out, tmp_path, monkeypatch):
    scores = table([{"id": i, "score": i * i} for i in range(10)], tmp_path / "scores.parquet")
    real = versions.commit
    options = {"add_column": "score", "key": "id", "resume": True, "shard_rows": 3}

    def commit(at, change, base, targets=()):
        monkeypatch.setattr(versions, "commit", real)
        flare.drop(out, where="id = 1")
        return real(at, change, base, targets)

    monkeypatch.setattr(versions, "commit", commit)
    with pytest.raises(BusyError):
        flare.pack(scores, out, **options)
    packed = flare.pack(scores, out, **options)
    assert (packed.version, packed.rows, packed.resumed_rows) == (3, 9, 0)
    assert content(out) == [
        {**one, "score": one["id"] ** 2} for one in rows(0, 10) if one["id"] != 1
    ]
    assert list(flare.verify(str(out))) == []


@pytest.mark.parametrize("replaces", [False, True])
@pytest.mark.parametrize("key", [None, "id"])
def test_a_resumed_column_that_a_version_contains_is_not_added_again(
    key, replaces, out, tmp_path, capsys
):
    scores = table([{"id": i, "score": i * i} for i in range(10)], tmp_path / "scores.parquet")
    options = {"add_column": "score", "key": key}
    assert flare.pack(scores, out, **options).version == 2
    flare.pack(
        table([{"id": 10, "text": "", "score": 0}], tmp_path / "m.parquet"), out, append=True
    )
    before = files_of(out)
    again = {**options, "resume": True, "replace": replaces}
    done = flare.pack(scores, out, **again)
    assert (done.version, done.rows, done.resumed_rows) == (2, 10, 10)
    assert flare.pack(scores, out, dry_run=True, **again).version == 2
    arguments = [scores, str(out), "--add-column", "score", "--resume"]
    assert main(["pack", *arguments, *(["--key", key] if key else [])]) == 0
    assert capsys.readouterr().err.startswith("version 2 already contains this column\n")
    assert files_of(out) == before
    flare.prune(out, keep=1)  # the column in the newest version is compared
    assert flare.pack(scores, out, **again).version == 3
    other = table([{"id": i, "score": -i} for i in range(11)], tmp_path / "other.parquet")
    if replaces:
        assert flare.pack(other, out, **again).version == 4
        return
    with pytest.raises(UsageError) as caught:
        flare.pack(other, out, **again)
    assert caught.value.message == "the dataset already has a column 'score'"


def test_a_column_is_added_again_without_resume(out, tmp_path):
    scores = table([{"score": i} for i in range(10)], tmp_path / "scores.parquet")
    flare.pack(scores, out, add_column="score")
    assert flare.pack(scores, out, add_column="score", replace=True).version == 3


def test_a_column_added_by_key_comes_from_the_selected_rows(out, tmp_path):
    scores = [{"id": i % 10, "score": i, "day": i // 10} for i in range(20)]
    source = table(scores, tmp_path / "c.parquet")
    flare.pack(source, out, add_column="score", key="id", where="day = 1")
    assert [one["score"] for one in content(out)] == list(range(10, 20))
    flare.pack(source, out, add_column="score", key="id", where="day = 0", replace=True)
    assert [one["score"] for one in content(out)] == list(range(10))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {"shuffle": 3},
            "--add-column and --shuffle cannot be combined, because the values need the order of "
            "the dataset's rows",
        ),
        (
            {"columns": ["id"]},
            "--add-column and --columns cannot be combined, because --add-column adds one column",
        ),
        (
            {"media_info": True},
            "--add-column and --media-info cannot be combined, because --add-column adds one column",
        ),
        (
            {"folder_column": "label"},
            "--folder-column label cannot be combined with --add-column score, because --add-column "
            "adds one column",
        ),
    ],
    ids=lambda value: next(iter(value)) if isinstance(value, dict) else "",
)
@pytest.mark.parametrize("key", [None, "id"])
def test_an_added_column_excludes_options_that_reorder_rows_or_add_columns(
    options, message, key, out, tmp_path
):
    source = table([{"id": i, "score": i} for i in range(10)], tmp_path / "c.parquet")
    with pytest.raises(UsageError) as caught:
        flare.pack(source, out, add_column="score", key=key, **options)
    assert str(caught.value) == message
    assert content(out) == rows(0, 10)


def test_options_that_describe_the_source_apply_to_a_column_that_is_added_by_key(out, tmp_path):
    scores = [{"id": i, "score": i * i} for i in range(20)]
    data, file = tmp_path / "data", tmp_path / "scores.txt"
    flare.pack(table(scores[::-1], tmp_path / "scores.parquet"), data)
    flare.playlist([f"one={data}"], out=tmp_path / "streams.yaml")
    options = {"add_column": "score", "key": "id"}
    flare.pack(tmp_path / "streams.yaml", out, rows="10:", streams=["one"], **options)
    assert [one["score"] for one in content(out)] == [i * i for i in range(10)]
    file.write_text("id;score\n" + "".join(f"{i};{i + 1}\n" for i in reversed(range(10))))
    flare.pack(file, out, input="csv", csv=["delimiter=;"], replace=True, **options)
    assert [one["score"] for one in content(out)] == list(range(1, 11))


@pytest.mark.parametrize("key", [None, "id"])
def test_a_column_is_added_by_key_to_a_webdataset(key, tmp_path):
    first, out = [{"id": f"a.{i}", "text": "b"} for i in range(5)], tmp_path / "out"
    flare.pack(table(first, tmp_path / "first.parquet"), out, format="webdataset", key=key)
    scores = [{"id": f"a.{i}", "score": i} for i in (3, 1, 4, 0, 2)]
    flare.pack(table(scores, tmp_path / "scores.parquet"), out, add_column="score", key="id")
    assert [one["score"] for one in content(out)] == [0, 1, 2, 3, 4]
    assert list(flare.verify(str(out))) == []


def test_replace_needs_add_column(out, tmp_path):
    source = table(rows(0, 1), tmp_path / "a.parquet")
    with pytest.raises(UsageError) as caught:
        flare.pack(source, tmp_path / "new", replace=True)
    assert str(caught.value) == "--replace needs --add-column"
    assert caught.value.hint == "To replace a whole dataset, use --overwrite."


def test_a_column_that_was_packed_is_not_replaced_even_if_it_is_the_only_one(tmp_path):
    source, folder = table([{"x": 1}, {"x": 2}], tmp_path / "a.parquet"), tmp_path / "only"
    flare.pack(source, folder)
    with pytest.raises(UsageError) as caught:
        flare.pack(source, folder, add_column="x", replace=True)
    assert (
        caught.value.message == "column 'x' cannot be replaced, because --add-column did not add it"
    )


def test_a_column_is_added_by_key(out, tmp_path):
    scores = [{"id": i, "score": i * i} for i in range(10)]
    random.Random(1).shuffle(scores)
    source = table(scores, tmp_path / "c.parquet")
    flare.pack(source, out, add_column="score", key="id")
    assert content(out) == [{**one, "score": one["id"] ** 2} for one in rows(0, 10)]
    with pytest.raises(UsageError) as caught:
        flare.pack(source, out, add_column="score", key="id")
    assert caught.value.hint == "Use --replace to replace the column."
    short = table(scores[:9], tmp_path / "short.parquet")
    lost = scores[9]["id"]
    with pytest.raises(FormatError) as caught:
        flare.pack(short, out, add_column="score", key="id", replace=True)
    assert str(caught.value) == (
        f"{short}: the source has no row with the key '{lost}', "
        f"which is the key of row {lost} of the dataset"
    )


@pytest.mark.parametrize("suffix", [".parquet", ".csv"])
@pytest.mark.parametrize("dry_run", [True, False])
def test_a_column_with_another_number_of_rows_is_refused(dry_run, suffix, out, tmp_path):
    before, source = content(out), str(tmp_path / f"c{suffix}")
    if suffix == ".csv":
        (tmp_path / "c.csv").write_text("score\n" + "".join(f"{i}\n" for i in range(9)))
    else:
        table([{"score": i} for i in range(9)], source)
    with pytest.raises(FormatError) as caught:
        flare.pack(source, out, add_column="score", dry_run=dry_run)
    assert str(caught.value) == f"{source}: the source has 9 rows; the dataset has 10"
    assert content(out) == before
    if suffix == ".parquet":  # the number of rows is known before the pack
        assert list(out.glob("fragment.*")) == []


@pytest.mark.parametrize("has_score", [True, False])
@pytest.mark.parametrize("streams", [1, 2])
def test_a_dry_run_of_an_append_returns_the_columns_and_bytes_of_the_append(
    streams, has_score, tmp_path
):
    first = [{"id": i, "text": f"text {i}", "score": i / 7} for i in range(5)]
    own = [{name: one[name] for name in ("id", "text")} for one in first]
    out = tmp_path / "out"
    flare.pack(table(first if streams == 1 else own, tmp_path / "first.parquet"), out)
    if streams == 2:
        flare.pack(table(first, tmp_path / "scores.parquet"), out, add_column="score")
    more = table(first if has_score else own, tmp_path / "more.parquet")
    options = {} if has_score else {"allow_missing": True, "null": ["score=1"]}
    before = set(out.glob("fragment.*/*.mds"))
    planned = flare.append(more, out, dry_run=True, **options)
    packed = flare.append(more, out, **options)
    assert planned == replace(packed, version=None, dry_run=True)
    assert (planned.shards, [one.name for one in planned.columns]) == (
        streams,
        ["id", "text", "score"] if streams == 2 else ["id", "score", "text"],
    )
    new = set(out.glob("fragment.*/*.mds")) - before
    assert planned.bytes == sum(path.stat().st_size for path in new)


@pytest.mark.parametrize(
    ("samples", "message"),
    [
        ([{"id": 1}], "column 'text' of the dataset is missing in the source"),
        ([{"id": 1, "text": "a", "x": 1}], "column 'x' is not in the dataset"),
        ([{"id": "a", "text": "a"}], "column 'id' has the type string; the dataset has int64"),
        ([{"id": 1.5, "text": "a"}], "column 'id' has the type double; the dataset has int64"),
    ],
)
def test_rows_with_other_columns_are_refused(out, tmp_path, samples, message):
    source = table(samples, tmp_path / "more.parquet")
    before = files_of(out)
    with pytest.raises(FormatError) as caught:
        flare.pack(source, out, append=True)
    assert str(caught.value) == f"{source}: {message}"
    assert files_of(out) == before


def test_a_narrower_type_is_accepted(out, tmp_path):
    narrow = pa.table({"id": pa.array([10, 11], pa.int16()), "text": ["text 10", "text 11"]})
    pq.write_table(narrow, tmp_path / "more.parquet")
    flare.pack(str(tmp_path / "more.parquet"), out, append=True)
    assert content(out) == rows(0, 12)


ITEMS = {
    "x": lambda value: value,
    "list": lambda value: [value],
    "struct": lambda value: {"a": value},
}


@pytest.mark.parametrize("nested", ITEMS)
@pytest.mark.parametrize("format", ["mds", "json", "webdataset", "tfrecord", "parquet"])
def test_an_integer_is_appended_to_a_float_column_only_if_the_float_is_exact(
    tmp_path, format, nested
):
    item, out = ITEMS[nested], tmp_path / "out"
    flare.pack(table([{"x": item(0.5)}], tmp_path / "first.parquet"), out, format=format)
    flare.pack(table([{"x": item(2**53)}], tmp_path / "exact.parquet"), out, append=True)
    before = files_of(out)
    more = table([{"x": item(1)}, {"x": item(2**53 + 1)}], tmp_path / "more.parquet")
    for source in (more, flare.pack(more, tmp_path / "more").playlist):
        with pytest.raises(FormatError, match="x is not a valid .*double") as caught:
            flare.pack(source, out, append=True)
        assert caught.value.row == 1
        flare.prune(out, keep=9)
        assert files_of(out) == before
    flare.pack(more, out, append=True, on_error="skip")
    assert plain(content(out)) == [{"x": item(value)} for value in (0.5, 2.0**53, 1.0)]


def test_an_integer_from_a_query_is_appended_to_a_float_column_only_if_the_float_is_exact(tmp_path):
    source, out = table([{"x": 0.5}], tmp_path / "first.parquet"), tmp_path / "out"
    flare.pack(source, out)
    query = "SELECT ({})::BIGINT AS x FROM dataframe"
    flare.pack(source, out, append=True, where=query.format(2**53))
    with pytest.raises(FormatError, match="x is not a valid double"):
        flare.pack(source, out, append=True, where=query.format(2**53 + 1))
    assert content(out) == [{"x": 0.5}, {"x": 2.0**53}]


def test_integers_that_a_dataset_stores_as_text_are_appended_as_integers(tmp_path):
    source = table([{"x": 1}], tmp_path / "first.parquet")
    for format in ("webdataset", "mds"):
        flare.pack(source, tmp_path / format, format=format)
    for format in ("webdataset", "mds"):
        flare.pack(tmp_path / "webdataset", tmp_path / format, append=True, columns="x")
    assert plain(content(tmp_path / "webdataset")) == [{"x": 1}] * 2
    assert content(tmp_path / "mds") == [{"x": 1}] * 3


@pytest.mark.parametrize("format", ["mds", "parquet"])
def test_a_column_of_nulls_is_appended_to_a_nested_column(tmp_path, format):
    samples = [{"k": "a", "x": {"a": 1}, "l": [{"a": 1}]}, {"k": "b", "x": None, "l": [None]}]
    out = tmp_path / "out"
    flare.pack(table(samples[:1], tmp_path / "first.parquet"), out, format=format)
    flare.pack(table(samples[1:], tmp_path / "more.parquet"), out, append=True)
    assert content(out) == samples


@pytest.mark.parametrize("format", ["mds", "granular", "webdataset", "tfrecord", "parquet"])
def test_a_dataset_whose_rows_were_all_dropped_keeps_its_types(tmp_path, format):
    columns = {
        "id": pa.array([1], pa.int64()),
        "t": pa.array([1], pa.timestamp("ms")),
        "b": pa.array([True]),
        "a": pa.array([1], pa.int8()),
    }
    source, out = str(tmp_path / "first.parquet"), tmp_path / "out"
    pq.write_table(pa.table(columns), source)
    flare.pack(source, out, format=format)
    before = flare.open(out).schema
    flare.drop(out, rows=":")
    assert (len(flare.open(out)), flare.open(out).schema) == (0, before)
    wide = table([{"id": 1, "t": columns["t"][0].as_py(), "b": True, "a": 1000}], tmp_path / "w")
    with pytest.raises(FormatError):
        flare.pack(wide, out, append=True, input="parquet")
    flare.pack(source, out, append=True)
    assert flare.open(out).select(list(columns)).to_arrow().equals(pa.table(columns))


def test_a_resumed_append_of_committed_rows_adds_nothing(out, tmp_path):
    more = table(rows(10, 5), tmp_path / "more.parquet")
    flare.pack(more, out, append=True)
    flare.pack(table(rows(15, 2), tmp_path / "other.parquet"), out, append=True)
    before = files_of(out)
    packed = flare.pack(more, out, append=True, resume=True)
    assert (packed.version, packed.rows) == (2, 5)
    assert files_of(out) == before
    assert flare.pack(more, out, append=True).version == 4
    assert content(out) == rows(0, 17) + rows(10, 5)


def test_a_resumed_append_of_rows_whose_version_was_pruned_adds_nothing(out, tmp_path):
    sources = [table(rows(10 + i, 1), tmp_path / f"{i}.parquet") for i in range(3)]
    for source in sources:
        flare.pack(source, out, append=True)
    flare.drop(out, where="id = 12")
    flare.prune(out, keep=1)
    before = files_of(out)
    for source in sources[:2]:
        packed = flare.pack(source, out, append=True, resume=True)
        assert (packed.version, packed.rows, packed.resumed_rows) == (5, 1, 1)
    assert files_of(out) == before
    assert flare.pack(sources[2], out, append=True, resume=True).version == 6
    assert content(out) == rows(0, 13)


def test_an_open_dataset_stays_at_its_version(out, tmp_path):
    data = flare.open(str(out))
    assert (data.version, data.pinned) == (None, "")
    flare.pack(table(rows(10, 5), tmp_path / "more.parquet"), out, append=True)
    now = flare.open(str(out))
    assert (now.version, now.pinned) == (2, f"{out}/playlist.000002.yaml")
    flare.drop(out, where="id < 5")
    assert len(data) == 10 and len(now) == 15 and len(flare.open(now.pinned)) == 15
    assert data[9] == {"id": 9, "text": "text 9"}


def test_a_reader_sees_one_of_two_versions_while_a_commit_replaces_the_list(
    out, tmp_path, monkeypatch
):
    """Another process replaces `playlist.yaml` after every call that reads a size."""
    flare.pack(table(rows(10, 90), tmp_path / "more.parquet"), out, append=True, shard_rows=3)
    lists = itertools.cycle((out / f"playlist.00000{i}.yaml").read_bytes() for i in (1, 2))
    real = LocalStore.size

    def size(self, path):
        found = real(self, path)
        (tmp_path / "new").write_bytes(next(lists))
        os.replace(tmp_path / "new", out / "playlist.yaml")
        return found

    monkeypatch.setattr(LocalStore, "size", size)
    assert {len(flare.open(str(out))) for _ in range(4)} <= {10, 100}


def ids_of(loader):
    return [number for batch in loader for number in batch["id"].tolist()]


def test_ranks_that_open_around_a_commit_read_one_version_of_the_first_rank(out, tmp_path):
    """Ranks 0 and 1 open the dataset before a commit, and ranks 2 and 3 after it.

    Each rank is a process that loads the state of rank 0. A rank with another version ends with an
    error. The other ranks read their rows.
    """
    opened, committed = os.pipe(), os.pipe()

    def run(rank, source, waits):
        os.close(committed[1])
        if waits:
            os.read(committed[0], 1)  # returns when the parent closes the pipe
        loader = flare.Loader(flare.open(str(source)), batch=2, rank=rank, ranks=4)
        if rank == 0:
            (tmp_path / "state.json").write_text(json.dumps(loader.save()))
        os.write(opened[1], b"x")
        os.read(committed[0], 1)
        try:
            loader.load(json.loads((tmp_path / "state.json").read_text()))
        except UsageError as error:
            (tmp_path / f"{rank}").write_text(f"{error}\n{error.hint}")
        else:
            (tmp_path / f"{rank}").write_text(json.dumps(ids_of(loader)))

    def start(rank, source, waits):
        pid = os.fork()
        if pid:
            return pid
        signal.alarm(60)  # ends a process that waits for another rank
        try:
            run(rank, source, waits)
        finally:
            os._exit(int(not (tmp_path / f"{rank}").exists()))

    pids = [start(rank, out, rank >= 2) for rank in range(4)]
    os.close(opened[1])
    assert os.read(opened[0], 1) + os.read(opened[0], 1) == b"xx"
    flare.pack(table(rows(10, 6), tmp_path / "more.parquet"), out, append=True)
    os.close(committed[1])
    assert [os.waitpid(pid, 0)[1] for pid in pids] == [0] * 4
    early, late = (
        [(tmp_path / f"{rank}").read_text() for rank in pair] for pair in ((0, 1), (2, 3))
    )
    order = ids_of(flare.Loader(flare.open(f"{out}/playlist.000001.yaml"), batch=2))
    assert [json.loads(text) for text in early] == [order[0::4], order[1::4]]
    assert late == 2 * [
        "the position was saved with data of 10 rows; this data has 16 rows\n"
        f"Open {out}/playlist.000001.yaml, the version with which the position was saved."
    ]
    os.close(opened[0])
    os.close(committed[0])
    pinned = flare.open(str(out)).pinned
    flare.drop(out, where="id < 3")
    for address in (out / "playlist.000001.yaml", pinned):
        same = [flare.open(str(address)) for _ in range(4)]
        seen = [ids_of(flare.Loader(data, 2, rank=i, ranks=4)) for i, data in enumerate(same)]
        assert sorted(itertools.chain(*seen)) == list(range(len(same[0])))
        assert len({data.checksum for data in same}) == 1


@pytest.mark.parametrize("order", ["sequential", "shuffle", "windows"])
def test_a_state_is_valid_for_later_versions_only_if_its_steps_are_unchanged(out, tmp_path, order):
    loader = flare.Loader(flare.open(str(out)), batch=3, order=order)
    expected = ids_of(flare.Loader(flare.open(str(out)), batch=3, order=order))
    before = next(iter(loader))["id"].tolist()
    state = loader.save()

    def resumed(address):
        again = flare.Loader(flare.open(str(address)), batch=3, order=order)
        again.load(state)
        return before + ids_of(again)

    flare.pack(table(rows(10, 4), tmp_path / "more.parquet"), out, append=True)
    if order == "sequential":
        assert resumed(out) == list(range(14))
    same = table(rows(3, 1), tmp_path / "same.parquet")
    changes = [
        lambda: None,
        lambda: flare.compact(out),
        lambda: flare.pack(same, out, append=True, key="id", on_duplicate="replace"),
        lambda: flare.drop(out, where="id = 0"),
    ]
    for number, change in enumerate(changes):
        change()
        if number or order != "sequential":
            message = f"of 10 rows|whose checksum is '{state['checksum']}'"
            expects = pytest.raises(
                UsageError, match=f"^the position was saved with data ({message})"
            )
            with expects as caught:
                resumed(out)
            assert caught.value.hint == (
                f"Open {out}/playlist.000001.yaml, the version with which the position was saved."
            )
        assert resumed(out / "playlist.000001.yaml") == expected


@pytest.mark.parametrize("order", ["sequential", "shuffle", "windows"])
def test_a_state_remains_valid_after_compactions_if_its_order_depends_only_on_rows(
    out, tmp_path, order
):
    """Of the second stream, another selection, and after two compactions too."""
    more = table([{"label": i * i} for i in range(10)], tmp_path / "label.parquet")
    flare.pack(more, out, add_column="label", shard_rows=3)

    def loader(address, streams=()):
        data = flare.open(str(address), streams=streams)
        return flare.Loader(data, batch=3, order=order, seed=5)

    def resumed(state, address, streams=()):
        again = loader(address, streams)
        again.load(state)
        return again.data, list(again)

    saved = []
    for streams in ((), ("label",)):
        first = loader(out, streams)
        batches = iter(first)
        next(batches)
        state = first.save()
        saved.append((state, streams, [batch["label"].tolist() for batch in batches]))
    for shard_size, version in (("300B", 3), ("1MB", 4)):
        assert flare.compact(out, shard_size=shard_size).version == version
        for state, streams, expected in saved:
            if order == "windows":
                with pytest.raises(UsageError) as caught:
                    resumed(state, out, streams)
                assert caught.value.hint == (
                    f"Open {out}/playlist.000002.yaml, "
                    "the version with which the position was saved."
                )
                continue
            data, rest = resumed(state, out, streams)
            assert data.checksum != state["checksum"]
            assert [batch["label"].tolist() for batch in rest] == expected
    flare.pack(more, out, add_column="label", replace=True)
    for state, streams, _ in saved:
        with pytest.raises(UsageError) as caught:
            resumed(state, out, streams)
        assert caught.value.hint == (
            f"Open {out}/playlist.000002.yaml, the version with which the position was saved."
        )
        assert str(caught.value).startswith(
            f"the position was saved with data whose checksum is '{state['checksum']}'; "
        )


@pytest.mark.parametrize("order", ["sequential", "shuffle", "windows"])
def test_a_state_of_a_mix_remains_valid_after_compactions_of_its_datasets(out, tmp_path, order):
    other = tmp_path / "other"
    flare.pack(table(rows(100, 7), tmp_path / "other.parquet"), other, shard_rows=2)

    def loader():
        even = flare.open(str(out)).where("id % 2 = 0")
        mixed = flare.mix({even: 0.6, flare.open(str(other)): 0.4})
        return flare.Loader(mixed, batch=3, order=order, seed=5)

    first = loader()
    batches = iter(first)
    next(batches)
    state = first.save()
    expected = [number for batch in batches for number in batch["id"].tolist()]
    for folder, shard_size in ((out, "300B"), (other, "1MB"), (out, "1MB")):
        assert flare.compact(folder, shard_size=shard_size).version
        again = loader()
        assert again.data.checksum != state["checksum"]
        if order == "windows":
            with pytest.raises(UsageError, match="^the position was saved with data whose"):
                again.load(state)
            continue
        again.load(state)
        assert ids_of(again) == expected
    flare.drop(other, where="id = 100")
    flare.pack(table(rows(100, 1), tmp_path / "same.parquet"), other, append=True)
    with pytest.raises(UsageError, match="^the position was saved with data whose"):
        loader().load(state)


def test_a_sequential_state_is_valid_after_an_append_with_other_checksums(out, tmp_path):
    loader = flare.Loader(flare.open(str(out)), batch=3, order="sequential")
    next(iter(loader))
    state = loader.save()
    for first, hash in ((10, "sha256"), (12, "md5"), (14, None)):
        more = table(rows(first, 2), tmp_path / f"{first}.parquet")
        flare.pack(more, out, append=True, hash=[hash] if hash else [])
        again = flare.Loader(flare.open(str(out)), batch=3)
        again.load(state)
        assert ids_of(again) == list(range(3, first + 2))


def test_a_state_after_the_end_of_the_current_version_is_refused_with_the_earlier_version(out):
    loader = flare.Loader(flare.open(str(out)), batch=9)
    next(iter(loader))
    state = loader.save()
    flare.drop(out, where="id < 5")
    with pytest.raises(UsageError) as caught:
        flare.Loader(flare.open(str(out)), batch=9).load(state)
    assert (str(caught.value), caught.value.hint) == (
        "the position was saved with data of 10 rows; this data has 5 rows",
        f"Open {out}/playlist.000001.yaml, the version with which the position was saved.",
    )


def test_the_hint_names_the_version_that_accepts_the_state_after_a_column_was_added_or_dropped(
    out, tmp_path
):
    def state(**streams):
        loader = flare.Loader(flare.open(str(out), **streams), batch=3, seed=5)
        next(iter(loader))
        return loader.save()

    def assert_hint(number, state, **streams):
        address = out / f"playlist.{number:06d}.yaml"
        with pytest.raises(UsageError) as caught:
            flare.Loader(flare.open(str(out), **streams), batch=3).load(state)
        assert caught.value.hint == (
            f"Open {address}, the version with which the position was saved."
        )
        flare.Loader(flare.open(str(address), **streams), batch=3).load(state)

    before = state()
    column = table([{"label": i * i} for i in range(10)], tmp_path / "label.parquet")
    flare.pack(column, out, add_column="label")
    (first,) = (one.name for one in flare.open(f"{out}/playlist.000001.yaml").playlists[0].streams)
    joined, selected = state(), state(streams=[first])
    assert_hint(1, before)
    flare.drop(out, where="id = 5")
    assert_hint(1, before)
    assert_hint(2, joined)
    assert_hint(2, selected, streams=[first])
    flare.drop(out, drop_column="label")
    assert_hint(1, before)
    assert_hint(2, joined)


def test_a_pin_is_the_pinned_address_of_its_readers_and_a_hint_after_a_prune(out, tmp_path):
    flare.log(out, pin="first")
    flare.pack(table(rows(10, 6), tmp_path / "more.parquet"), out, append=True)
    flare.log(out, pin="second")
    loader = flare.Loader(flare.open(str(out)), batch=2)
    next(iter(loader))
    state = loader.save()
    flare.drop(out, where="id = 1")
    flare.prune(out, keep=1)
    for name, version, count in (("first", None, 10), ("second", 2, 16), ("000003", 3, 15)):
        address = f"{out}/playlist.{name}.yaml"
        data = flare.open(address)
        assert (data.version, data.pinned, len(flare.open(data.pinned))) == (
            version,
            address,
            count,
        )
        again = flare.Loader(data, batch=2)
        if name == "second":
            again.load(state)
            continue
        with pytest.raises(UsageError) as caught:
            again.load(state)
        assert caught.value.hint == (
            f"Open {out}/playlist.second.yaml, the version with which the position was saved."
        )


def test_a_reader_of_a_pin_reads_its_rows_through_many_commits_and_a_prune(out, tmp_path):
    flare.log(out, pin="run")
    data = flare.open(str(out / "playlist.run.yaml"))
    loader = flare.Loader(data, batch=2, seed=4)
    batches = iter(loader)
    seen = next(batches)["id"].tolist()
    for i in range(100 if IS_FULL else 6):
        if i % 3 == 2:
            flare.drop(out, where=f"id = {i} or id = {8 + 2 * i}")
        else:
            flare.pack(table(rows(10 + 2 * i, 2), tmp_path / f"{i}.parquet"), out, append=True)
    flare.compact(out, below="1MB")
    flare.prune(out, keep=1)
    assert [one.pin for one in flare.log(out)] == ["run", None]
    seen += [number for batch in batches for number in batch["id"].tolist()]
    assert sorted(seen) == list(range(10))
    assert content(out / "playlist.run.yaml") == rows(0, 10)
    assert list(flare.verify(str(out / "playlist.run.yaml"))) == []
    assert list(flare.verify(str(out))) == []


def test_prune_keeps_pins_and_the_newest_version(out, tmp_path):
    flare.pack(table(rows(10, 5), tmp_path / "more.parquet"), out, append=True)
    flare.log(out, pin="run42")
    flare.drop(out, where="id < 5")
    flare.compact(out)
    planned = flare.prune(out, keep=1, dry_run=True)
    pruned = flare.prune(out, keep=1)
    assert (pruned.versions, pruned.files) == (planned.versions, planned.files) == ((1, 2, 3), 3)
    assert [(one.number, one.verb) for one in flare.log(out)] == [(2, "append"), (4, "compact")]
    assert content(out) == rows(5, 10)
    assert content(out / "playlist.run42.yaml") == rows(0, 15)
    for name in ("playlist.yaml", "playlist.run42.yaml"):
        assert list(flare.verify(str(out / name))) == []


def test_pruned_versions_with_pins_are_listed_and_restored(out, tmp_path, capsys):
    flare.log(out, pin="first")
    for number in range(2, 6):
        flare.pack(table(rows(5 * number, 5), tmp_path / f"{number}.parquet"), out, append=True)
        if number == 3:
            flare.log(out, pin="third")
            flare.log(out, pin="other")
    before = flare.log(out)
    assert flare.prune(out, keep=1).versions == (1, 2, 3, 4)
    assert flare.log(out) == tuple(before[number - 1] for number in (1, 3, 5))
    capsys.readouterr()
    assert main(["log", str(out)]) == 0
    assert capsys.readouterr().out == (
        "version\tchange\trows\tadded\tremoved\tpin\n"
        "1\tpack\t10\t10\t0\tfirst\n"
        "3\tappend\t20\t5\t0\tother, third\n"
        "5\tappend\t30\t5\t0\t\n"
    )
    for number, count in ((3, 20), (1, 10)):
        flare.log(out, restore=number)
        assert content(out) == rows(0, count)
        assert list(flare.verify(str(out))) == []
    with pytest.raises(UsageError) as caught:
        flare.log(out, restore=2)
    assert (caught.value.message, caught.value.hint) == (
        "no version 2",
        "Choose a version that `flare log` lists.",
    )


@pytest.mark.skipif(not IS_FULL, reason="FLARE_TEST_CHANGES is not set")
def test_an_append_to_a_million_listed_shards_takes_ten_seconds_and_one_gigabyte(tmp_path):
    """The format has no index; the index of a million MDS shards alone has 280 MB."""
    out, count = tmp_path / "out", 1_000_000
    flare.pack(table(rows(0, 10), tmp_path / "0.parquet"), out, format="parquet")
    more, at = table(rows(10, 10), tmp_path / "1.parquet"), locate(str(out / "playlist.yaml"))
    pid = os.fork()
    if not pid:
        (stream,) = playlists.read(at).streams
        urls = [stream.urls[0], *(f"{i // 1000:05}/{stream.urls[0]}" for i in range(1, count))]
        hashes = {name: [f"{i:032x}" for i in range(count)] for name in stream.hashes}
        counts = {"rows": np.full(count, 10), "sizes": np.repeat(stream.sizes, count)}
        playlists.write(at, Playlist((replace(stream, urls=urls, hashes=hashes, **counts),)))
        os._exit(0)
    os.waitpid(pid, 0)
    pid = os.fork()
    if not pid:
        os._exit(flare.pack(more, out, append=True).version != 2)
    _, status, usage = os.wait4(pid, 0)
    assert status == 0
    assert usage.ru_utime + usage.ru_stime < 10
    assert usage.ru_maxrss * 1024 < 1e9


def test_prune_counts_existing_versions_if_numbers_are_missing(out, tmp_path):
    for first in (10, 12, 14):
        flare.pack(table(rows(first, 2), tmp_path / f"{first}.parquet"), out, append=True)
    flare.drop(out, where="id = 15")
    for number in (2, 4):
        (out / f"playlist.00000{number}.yaml").unlink()
    assert [one.number for one in flare.log(out)] == [1, 3, 5]
    flare.drop(out, where="id = 14")
    assert flare.prune(out, keep=2).versions == (1, 3)
    assert [(one.number, one.rows) for one in flare.log(out)] == [(5, 15), (6, 14)]
    for name in ("playlist.yaml", "playlist.000005.yaml"):
        assert list(flare.verify(str(out / name))) == []


def killed_before_the_commit(folder, source):
    """Start an append in a child that ends before its commit."""
    pid = os.fork()
    if not pid:
        versions.commit = lambda *args: os._exit(9)
        flare.pack(source, folder, append=True)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9


def test_an_unfinished_fragment_is_continued_or_deleted_but_not_overwritten(out, tmp_path):
    more = table(rows(10, 5), tmp_path / "more.parquet")
    killed_before_the_commit(out, more)
    (fragment,) = out.glob("fragment.*")
    with pytest.raises(UnfinishedError) as caught:
        flare.pack(more, out, append=True)
    assert str(caught.value) == f"{fragment}: folder contains an unfinished pack"
    assert caught.value.hint == "Run the same command with --resume."
    journal = fragment / ".flare" / "journal"
    text = journal.read_text()
    version = f'"flare": "{flare.__version__}"'
    assert version in text
    journal.write_text(text.replace(version, '"flare": "0.0.1"'))
    with pytest.raises(UsageError) as different:
        flare.pack(more, out, append=True, resume=True)
    assert different.value.where == str(fragment)
    assert different.value.hint == "Delete this folder to start again."
    shutil.rmtree(fragment)
    assert flare.pack(more, out, append=True, resume=True).version == 2
    assert content(out) == rows(0, 15)


def test_prune_keeps_a_fragment_that_is_resumed_meanwhile(out, tmp_path, monkeypatch):
    more, real, pruned = table(rows(10, 5), tmp_path / "more.parquet"), versions.commit, []
    expected = shutil.copytree(out, tmp_path / "expected")
    flare.pack(more, expected, append=True)
    killed_before_the_commit(out, more)
    (fragment,) = (path.name for path in out.glob("fragment.*"))

    def commit(at, change, base, targets=()):
        pruned.append(flare.prune(out, keep=1))
        return real(at, change, base, targets)

    monkeypatch.setattr(versions, "commit", commit)
    flare.pack(more, out, append=True, resume=True)
    assert [one.busy for one in pruned] == [(fragment,)]
    (out / ".flare-commit").unlink()
    (expected / ".flare-commit").unlink()
    assert files_of(out) == files_of(expected)


def test_appended_parts_are_continued_after_another_commit(out, tmp_path, monkeypatch):
    more = table(rows(10, 5), tmp_path / "more.parquet")

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(versions, "commit", interrupted)
        flare.pack(more, out, append=True, part_rows=2)
    flare.pack(table(rows(20, 3), tmp_path / "other.parquet"), out, append=True)
    packed = flare.pack(more, out, append=True, part_rows=2, resume=True)
    assert (packed.version, packed.rows, packed.resumed_rows) == (3, 5, 5)
    assert content(out) == rows(0, 10) + rows(20, 3) + rows(10, 5)
    assert len(list(out.glob("fragment.*"))) == 2


@pytest.mark.parametrize("more", [{}, {"key": "id"}, {"key": "id", "on_duplicate": "replace"}])
def test_a_key_that_does_not_fit_the_type_of_the_dataset_is_an_error(out, tmp_path, more):
    flare.drop(out, where="id = 1", key="id", erase=True)
    source = table(rows(10, 1), tmp_path / "more.parquet")
    with pytest.raises(FormatError) as caught:
        flare.pack(source, out, append=True, where="SELECT text AS id, text FROM dataframe", **more)
    assert caught.value.column == "id"
    assert "cannot be compared with the keys of the dataset" in str(caught.value)


def test_a_fragment_that_prune_deleted_is_packed_again(out, tmp_path):
    more = table(rows(10, 5), tmp_path / "more.parquet")
    expected = shutil.copytree(out, tmp_path / "expected")
    flare.pack(more, expected, append=True)
    killed_before_the_commit(out, more)
    assert flare.prune(out, keep=1).busy == ()
    assert list(out.glob("fragment.*")) == []
    flare.pack(more, out, append=True, resume=True)
    assert files_of(out) == files_of(expected)


def test_a_crafted_number_or_link_of_a_list_is_refused_or_ignored(out, tmp_path):
    more = table(rows(10, 2), tmp_path / "more.parquet")
    flare.pack(more, out, append=True)
    listed = (out / "playlist.000001.yaml").read_bytes()
    for name in (10**18, "0000007", "-00007", "00008"):
        (out / f"playlist.{name}.yaml").write_bytes(listed)
    assert [one.number for one in flare.log(out)] == [1, 2]
    flare.pack(more, out, append=True)
    assert [one.number for one in flare.log(out)] == [1, 2, 3]
    (tmp_path / "secret.yaml").write_bytes(listed)
    (out / "playlist.000009.yaml").symlink_to(tmp_path / "secret.yaml")
    before = files_of(out)
    for change in (
        lambda: flare.pack(more, out, append=True),
        lambda: flare.drop(out, where="id = 1"),
        lambda: flare.prune(out, keep=1),
    ):
        with pytest.raises(UnsafeError) as caught:
            change()
        assert "playlist.000009.yaml: " in str(caught.value)
    assert files_of(out) == before
    (out / "playlist.000009.yaml").unlink()
    (out / "playlist.1000000000000.yaml").write_bytes(listed)
    with pytest.raises(FormatError) as caught:
        flare.drop(out, where="id = 1")
    assert str(caught.value) == f"{out}: more than 1000000000000 versions"


@pytest.mark.parametrize("name", ["../victim", "fragment.{0}/../../victim", "/{tmp}/victim"])
def test_a_list_that_names_a_file_outside_the_dataset_deletes_nothing_outside(out, tmp_path, name):
    victim = tmp_path / "victim"
    victim.write_text("kept")
    flare.compact(out, below="1MB")
    first = out / "playlist.000001.yaml"
    name = name.format("0" * 32, tmp=str(tmp_path)[1:])
    write_list(first, first.read_text().replace("- shard.00000.mds", f"- {name}"))
    flare.prune(out, keep=1, allow_local=True)
    assert victim.read_text() == "kept"
    assert content(out) == rows(0, 10)
    assert [one.number for one in flare.log(out)] == [2]


def test_prune_deletes_nothing_if_a_list_cannot_be_read(out, tmp_path):
    flare.pack(table(rows(10, 5), tmp_path / "more.parquet"), out, append=True)
    (out / "playlist.broken.yaml").write_text("- not a playlist\n")
    before = files_of(out)
    with pytest.raises(FormatError) as caught:
        flare.prune(out, keep=1)
    assert str(caught.value) == f"{out}/playlist.broken.yaml:1:1: expected a mapping of streams"
    assert files_of(out) == before


def test_a_drop_of_a_shard_that_was_replaced_meanwhile_is_refused(out):
    at, base = open_for_change(str(out), Guard())
    flare.drop(out, where="id = 1")
    groups = {0: [Group(0, 1, (np.array([0, 1]),))]}
    with pytest.raises(BusyError) as caught:
        rewrite(
            str(out),
            at,
            base,
            groups,
            "drop",
            [],
            shard_bytes=None,
            guard=Guard(),
            resume=False,
            jobs=1,
            progress=Progress(),
        )
    assert str(caught.value) == (
        f"{out}/playlist.000002.yaml: another process has changed the dataset"
    )
    assert caught.value.hint == "Run the same command again."
    assert content(out) == [one for one in rows(0, 10) if one["id"] != 1]


def test_a_drop_of_another_shard_is_applied_to_the_newest_version(out, tmp_path):
    at, base = open_for_change(str(out), Guard())
    flare.drop(out, where="id = 9")
    flare.pack(table(rows(10, 3), tmp_path / "more.parquet"), out, append=True)
    options = {"shard_bytes": None, "guard": Guard(), "resume": False, "jobs": 1}
    groups = {0: [Group(0, 1, (np.array([1, 2, 3]),))]}
    rewrite(str(out), at, base, groups, "drop", [], progress=Progress(), **options)
    assert content(out) == rows(1, 8) + rows(10, 3)


def append_many(forked_flare, folder, sources):
    """Start a process that appends tables one after another."""
    flare_command = shlex.join(forked_flare)
    lines = [f"{flare_command} pack {shlex.quote(one)} {folder} --append -q" for one in sources]
    return subprocess.Popen(["sh", "-c", " && ".join(lines)], stdout=subprocess.DEVNULL)


def test_many_writers_append_every_row_once(out, tmp_path, forked_flare):
    count, processes = WRITERS
    sources = [table(rows(10 + 3 * i, 3), tmp_path / f"{i}.parquet") for i in range(count)]
    children = [append_many(forked_flare, out, sources[i::processes]) for i in range(processes)]
    assert [child.wait() for child in children] == [0] * processes
    assert sorted(one["id"] for one in content(out)) == list(range(10 + 3 * count))
    assert [one.rows for one in flare.log(out)] == list(range(10, 11 + 3 * count, 3))
    assert list(flare.verify(str(out))) == []


def pack_more(folder, name, **options):
    return flare.pack(str(folder.parent / f"{name}.parquet"), folder, **options)


PAIRED = {
    "append": lambda folder: pack_more(folder, "more", append=True),
    "another append": lambda folder: pack_more(folder, "other", append=True),
    "append by key": lambda folder: pack_more(
        folder, "keys", append=True, key="id", on_duplicate="first"
    ),
    "add column": lambda folder: pack_more(folder, "column", add_column="score"),
    "drop in the first shard": lambda folder: flare.drop(folder, where="id = 1"),
    "another drop in the first shard": lambda folder: flare.drop(folder, where="id = 2"),
    "drop in another shard": lambda folder: flare.drop(folder, where="id = 9"),
    "drop column": lambda folder: flare.drop(folder, drop_column="text"),
    "compact": lambda folder: flare.compact(folder, below="1MB"),
    "restore": lambda folder: flare.log(folder, restore=1),
    "erase": lambda folder: flare.drop(folder, where="id = 3", erase=True),
    "prune": lambda folder: flare.prune(folder, keep=1),
    "pin": lambda folder: flare.log(folder, pin="run"),
}
INTERRUPTED = [name for name in PAIRED if name not in ("prune", "pin")]


def outcome(folder, *changes):
    """Make changes one after the other; return the rows, and the class of the last error."""
    error = None
    for change in changes:
        error = None
        try:
            PAIRED[change](folder)
        except FlareError as caught:
            error = type(caught)
    return content(folder), error


@pytest.mark.parametrize("first", INTERRUPTED)
def test_two_changes_at_once_equal_one_after_the_other(first, out, tmp_path, monkeypatch):
    """The second change is complete before the first one, which has read the dataset, commits."""
    table(rows(10, 5), tmp_path / "more.parquet")
    table(rows(20, 2), tmp_path / "other.parquet")
    table(rows(8, 6), tmp_path / "keys.parquet")
    table([{"score": i} for i in range(11)], tmp_path / "column.parquet")
    flare.pack(table(rows(100, 2), tmp_path / "two.parquet"), out, append=True)
    flare.drop(out, where="id = 100")
    real, number = versions.commit, INTERRUPTED.index(first)
    seconds = [name for i, name in enumerate(PAIRED) if IS_FULL or (i + 3 * number) % 8 == 7]
    for second in seconds:
        if (first, second) == ("erase", "pin"):  # see the next test
            continue
        folder, *serial = (shutil.copytree(out, tmp_path / f"{second} {i}") for i in range(4))
        done = []

        def commit(at, change, base, targets=(), second=second, folder=folder, done=done):
            monkeypatch.setattr(versions, "commit", real)
            done.append(outcome(folder, second)[1])
            return real(at, change, base, targets)

        monkeypatch.setattr(versions, "commit", commit)
        found, error = outcome(folder, first)
        monkeypatch.setattr(versions, "commit", real)
        expected, refusal = outcome(serial[0], second, first)
        names = f"{second}, {first}: {error}, {refusal}"
        if done == [BusyError]:  # another process is writing the fragment of the same change
            assert (found, error, first) == (*outcome(serial[1], first), second), names
        elif error is None:
            assert found in (expected, outcome(serial[1], first, second)[0]), names
        else:
            assert found == outcome(serial[2], second)[0], names
            assert issubclass(error, BusyError) or refusal is not None, names
            assert outcome(folder, first) == (expected, refusal), names
        assert done, names
        assert list(flare.verify(str(folder))) == [], names
        for copy in (folder, *serial):
            shutil.rmtree(copy)


SAME = {
    "append": lambda folder, **options: pack_more(folder, "more", append=True, **options),
    "append parts": lambda folder, **options: pack_more(
        folder, "more", append=True, part_rows=3, **options
    ),
    "add column": lambda folder, **options: pack_more(
        folder, "column", add_column="score", **options
    ),
    "add column by key": lambda folder, **options: pack_more(
        folder, "column", add_column="score", key="id", **options
    ),
    "drop": lambda folder, **options: flare.drop(folder, where="id % 4 = 1", **options),
    "compact": lambda folder, **options: flare.compact(folder, **options),
    "drop column": lambda folder, **options: flare.drop(folder, drop_column="note", **options),
}


def meanwhile(monkeypatch, step):
    """Call `step` after the next change has read the newest version."""

    def opened(*args):
        for module in modules:
            monkeypatch.setattr(f"flarecli.commands.{module}.open_for_change", open_for_change)
        result = open_for_change(*args)
        step()
        return result

    modules = ("drop_command", "packing.append", "packing.add_column")
    for module in modules:
        monkeypatch.setattr(f"flarecli.commands.{module}.open_for_change", opened)


def with_two_streams(folder):
    """Add the column `note` to a dataset of 10 rows, and write the tables for the changes."""
    notes = [{"note": f"note {i}"} for i in range(10)]
    flare.pack(table(notes, folder.parent / "notes.parquet"), folder, add_column="note")
    more = [{**one, "note": ""} for one in rows(10, 5)]
    table(more, folder.parent / "more.parquet")
    table([{"id": i, "score": i} for i in range(10)], folder.parent / "column.parquet")


@pytest.mark.parametrize("change", [name for name in SAME if name != "drop column"])
def test_a_resumed_change_that_another_process_commits_meanwhile_is_done(change, out, monkeypatch):
    with_two_streams(out)
    meanwhile(monkeypatch, lambda: SAME[change](out))
    result = SAME[change](out, resume=True)
    assert result is None or result.version == 3
    assert [one.number for one in flare.log(out)] == [1, 2, 3]
    assert list(flare.verify(str(out))) == []


@pytest.mark.parametrize("change", SAME)
def test_a_change_that_another_process_commits_meanwhile_is_refused(change, out, monkeypatch):
    with_two_streams(out)
    meanwhile(monkeypatch, lambda: SAME[change](out))
    with pytest.raises(BusyError) as caught:
        SAME[change](out)
    assert caught.value.message == "another process has changed the dataset"
    assert caught.value.hint == "Run the same command again."
    assert [one.number for one in flare.log(out)] == [1, 2, 3]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("other", [True, False])
def test_an_erasure_of_rows_that_another_process_drops_meanwhile_is_refused(
    other, resume, out, monkeypatch
):
    """The other process erases the same rows, or only drops them."""
    meanwhile(monkeypatch, lambda: flare.drop(out, where="id = 5", erase=other))
    with pytest.raises(BusyError) as caught:
        flare.drop(out, where="id = 5", erase=True, resume=resume)
    assert caught.value.message == "another process has changed the dataset"
    assert caught.value.hint == "Run the same command again."
    flare.drop(out, where="id = 5", erase=True, resume=resume)
    assert content(out) == [one for one in rows(0, 10) if one["id"] != 5]


@pytest.mark.parametrize("resume", [False, True])
@pytest.mark.parametrize("more", [{}, {"key": "id", "on_duplicate": "replace"}])
def test_an_append_to_a_dataset_whose_streams_are_changed_meanwhile_is_refused(
    more, resume, out, tmp_path, monkeypatch
):
    """The replaced stream `a` is listed after the stream `b`."""
    values = {
        name: table([{name: i} for i in range(10)], tmp_path / f"{name}.parquet") for name in "ab"
    }
    new = [{"id": i, "text": f"text {i}", "a": i, "b": -i} for i in range(10, 13)]
    source = table(new, tmp_path / "new.parquet")
    for name in "ab":
        flare.pack(values[name], out, add_column=name)
    before = content(out)
    meanwhile(monkeypatch, lambda: flare.pack(values["a"], out, add_column="a", replace=True))
    with pytest.raises(BusyError) as caught:
        flare.pack(source, out, append=True, **more)
    assert str(caught.value) == (
        f"{out}/playlist.000004.yaml: another process has changed the dataset"
    )
    assert caught.value.hint == "Run the same command again."
    assert flare.pack(source, out, append=True, resume=resume, **more).version == 5
    assert content(out) == before + new
    assert list(flare.verify(str(out))) == []

    def replace_column():
        flare.drop(out, drop_column="a")
        later = [{"c": i} for i in range(13)]
        flare.pack(table(later, tmp_path / "later.parquet"), out, add_column="c")

    meanwhile(monkeypatch, replace_column)
    with pytest.raises(BusyError):
        flare.pack(source, out, append=True, **more)
    with pytest.raises(FormatError) as found:
        flare.pack(source, out, append=True, **more)
    assert found.value.message == "column 'a' is not in the dataset"


def test_a_shard_that_is_erased_while_shards_are_joined_is_reported_as_a_change(out, monkeypatch):
    meanwhile(monkeypatch, lambda: flare.drop(out, where="id = 5", erase=True))
    with pytest.raises(BusyError) as caught:
        flare.compact(out)
    assert str(caught.value) == f"{out}/playlist.yaml: another process has changed the dataset"
    (out / "shard.00000.mds").unlink()
    with pytest.raises(MissingError):
        flare.compact(out)


def test_a_pin_that_is_created_during_an_erase_is_named(out, monkeypatch):
    real = versions.commit

    def commit(at, change, base, targets=()):
        monkeypatch.setattr(versions, "commit", real)
        flare.log(out, pin="run")
        return real(at, change, base, targets)

    monkeypatch.setattr(versions, "commit", commit)
    with pytest.raises(UsageError) as caught:
        flare.drop(out, where="id = 3", erase=True)
    assert str(caught.value) == f"{out}: the pin playlist.run.yaml lists files that would be erased"
    assert len(content(out)) == 9 and len(content(out / "playlist.run.yaml")) == 10
    flare.drop(out, where="id = 3", erase=True, break_pins=True)
    assert not any(b"text 3" in data for data in files_of(out).values())
    assert len(content(out)) == 9 and list(flare.verify(str(out))) == []


def test_erased_rows_are_in_no_earlier_copy_of_a_shard(out, tmp_path):
    secret = "planted secret 8317"
    samples = [*rows(10, 2), {"id": 12, "text": secret}]
    flare.pack(table(samples, tmp_path / "s.parquet"), out, append=True)
    flare.drop(out, where="id = 10")
    flare.compact(out)
    flare.log(out, restore=3)
    flare.pack(table(rows(20, 2), tmp_path / "more.parquet"), out, append=True)
    flare.drop(out, where="id = 12", erase=True)
    assert not any(secret.encode() in data for data in files_of(out).values())
    assert content(out) == [*rows(0, 10), *rows(11, 1), *rows(20, 2)]
    assert [one.number for one in flare.log(out)] == [1, 7]
    for name in sorted(path.name for path in out.glob("playlist*.yaml")):
        assert list(flare.verify(str(out / name))) == []


def test_a_folder_without_a_dataset_is_an_error_with_the_command_that_creates_one(tmp_path):
    (tmp_path / "empty").mkdir()
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "shard.00000.mds").write_bytes(b"")
    create = "Run `flare pack SOURCE FOLDER` to create a dataset."
    describe = (
        "Run `flare playlist FOLDER -o FOLDER/playlist.yaml` for a dataset without a playlist."
    )
    source = table(rows(0, 2), tmp_path / "rows.parquet")
    for name, text, hint in (
        ("missing", "no dataset in this folder", create),
        ("empty", "no dataset in this folder", create),
        ("other", "no dataset with a playlist in this folder", describe),
    ):
        for change in (
            lambda folder: flare.log(folder),
            lambda folder: flare.pack(source, folder, append=True),
        ):
            with pytest.raises(UsageError) as caught:
                change(tmp_path / name)
            assert (str(caught.value), caught.value.hint) == (f"{tmp_path / name}: {text}", hint)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["empty", "other", "rows.parquet"]


def test_an_unknown_version_is_an_error_with_the_existing_versions(out, tmp_path):
    def hint():
        with pytest.raises(UsageError) as caught:
            flare.log(out, restore=9)
        assert str(caught.value) == f"{out}: no version 9"
        return caught.value.hint

    assert hint() == "The only version is 1."
    flare.pack(table(rows(10, 2), tmp_path / "more.parquet"), out, append=True)
    assert hint() == "Choose one of the versions 1 to 2."
    flare.prune(out, keep=1)
    assert hint() == "The only version is 2."


def test_an_erasure_that_another_change_followed_is_completed(out, tmp_path, monkeypatch):
    more = table(rows(10, 2), tmp_path / "more.parquet")

    def interrupted(*args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr("flarecli.write.removal.erase", interrupted)
        flare.drop(out, where="id = 3", erase=True)
    flare.pack(more, out, append=True)
    assert (out / "shard.00000.mds").exists()
    assert flare.drop(out, where="id = 3", erase=True).version is None
    assert not any(b"text 3" in data for data in files_of(out).values())
    assert [one.number for one in flare.log(out)] == [2, 3]
    assert list(flare.verify(str(out))) == []


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('"../outside"', "the name '../outside' points outside the folder"),
        ('"/etc/x"', "the name '/etc/x' is not relative"),
        ('"a//b"', "the name 'a//b' has an empty part"),
        (
            '"playlist.000002.yaml"',
            "the list contains 'playlist.000002.yaml', which must not be deleted",
        ),
        ('"index.json"', "the list contains 'index.json', which must not be deleted"),
        ("5", "expected a file name in quotes on each line"),
    ],
)
def test_a_crafted_list_of_files_to_remove_removes_nothing(out, tmp_path, line, message):
    (tmp_path / "outside").write_text("kept")
    flare.pack(table(rows(10, 2), tmp_path / "more.parquet"), out, append=True)
    (out / ".flare-removal").write_text(f'"shard.00000.mds"\n{line}\n')
    before = files_of(tmp_path)
    with pytest.raises(FlareError) as caught:
        flare.prune(out, keep=1, allow_local=True)
    assert str(caught.value) == f"{out}/.flare-removal: {message}"
    before["out/.flare-commit"] = b""
    assert files_of(tmp_path) == before


def test_prune_deletes_nothing_behind_symbolic_links(out, tmp_path):
    victim = tmp_path / "victim"
    victim.mkdir()
    (victim / "shard.00000.mds").write_text("kept")
    flare.pack(table(rows(10, 2), tmp_path / "more.parquet"), out, append=True)
    link = out / f"fragment.{'0' * 32}"
    link.symlink_to(victim)
    with pytest.raises(UnsafeError) as caught:
        flare.prune(out, keep=1, allow_local=True)
    assert str(caught.value) == (f"{link}: is a symbolic link, so the files in it are not deleted")
    assert caught.value.hint == "Delete the link."
    assert (victim / "shard.00000.mds").read_text() == "kept"
    assert list(flare.verify(str(out))) == []


@pytest.mark.parametrize(
    "change",
    [
        lambda folder: flare.pack(str(folder.parent / "more.parquet"), folder, append=True),
        CHANGES["drop"],
        CHANGES["compact"],
        CHANGES["add column"],
        CHANGES["replace"],
    ],
    ids=["append", "drop", "compact", "add column", "replace"],
)
def test_a_change_writes_nothing_behind_a_symbolic_link(change, out, tmp_path):
    table(rows(10, 5), tmp_path / "more.parquet")
    table([{"score": i} for i in range(10)], tmp_path / "column.parquet")
    table([{"id": 5, "text": "again"}], tmp_path / "again.parquet")
    copy, victim = shutil.copytree(out, tmp_path / "copy"), tmp_path / "victim"
    change(copy)
    victim.mkdir()
    link = out / next(copy.glob("fragment.*")).name
    link.symlink_to(victim)
    with pytest.raises(UnsafeError) as caught:
        change(out)
    assert str(caught.value) == f"{link}: is a symbolic link, so no rows are written to it"
    assert list(victim.iterdir()) == []


def with_header(path, header):
    """Replace the header `version` of a list."""
    lines = path.read_text().splitlines()
    start = next(i for i, line in enumerate(lines) if line == "    version:")
    stop = next(i for i in range(start + 1, len(lines)) if not lines[i].startswith("      "))
    write_list(path, "\n".join([*lines[:start], f"    version: {header}", *lines[stop:], ""]))


@pytest.mark.parametrize(
    "header",
    [
        "3",
        '{number: "2", verb: 7, fragments: [1], added: x, removed: [], erases: 5, source: 3}',
        "{number: 1000000000000000000, fragments: [../x], erases: [../../x, /etc/x, index.json]}",
    ],
)
def test_a_crafted_header_of_a_version_does_no_harm(out, tmp_path, header):
    more = table(rows(10, 2), tmp_path / "more.parquet")
    flare.pack(more, out, append=True)
    for name in ("playlist.yaml", "playlist.000002.yaml"):
        with_header(out / name, header)
    found = flare.log(out)
    assert [(one.number, one.rows, one.removed) for one in found] == [(1, 10, 0), (2, 12, 0)]
    assert flare.drop(out, where="id = 99", erase=True).version is None
    assert flare.pack(more, out, append=True, resume=True).version == 3
    assert flare.drop(out, where="id = 1").version == 4
    flare.prune(out, keep=1)
    assert content(out) == [*rows(0, 1), *rows(2, 8), *rows(10, 2), *rows(10, 2)]
    assert list(flare.verify(str(out))) == []


def test_a_list_cannot_expire_another_list_or_a_file_under_another_name(out, tmp_path):
    flare.log(out, pin="run42")
    flare.compact(out)
    pin = out / "playlist.run42.yaml"
    write_list(pin, pin.read_text().replace("- shard.00000.mds", "- x/../shard.00000.mds"))
    first = out / "playlist.000001.yaml"
    write_list(first, first.read_text().replace("- shard.00002.mds", "- playlist.run42.yaml"))
    flare.prune(out, keep=1)
    assert pin.exists()
    assert len(list(out.glob("shard.*"))) == 3


def test_a_missing_fragment_is_reported_with_all_its_files(out, tmp_path):
    flare.pack(table(rows(10, 2), tmp_path / "more.parquet"), out, append=True)
    (fragment,) = out.glob("fragment.*")
    names = sorted(path.name for path in fragment.iterdir())
    shutil.rmtree(fragment)
    assert sorted(one.address for one in flare.verify(out)) == [
        f"{fragment}/{name}" for name in names if name != "failed.jsonl"
    ]


def test_an_append_whose_version_lost_its_files_is_repeated(out, tmp_path):
    """The process that created the version was killed after another one had deleted its files."""
    more = table(rows(10, 2), tmp_path / "more.parquet")
    flare.pack(more, out, append=True)
    (fragment,) = out.glob("fragment.*")
    shutil.rmtree(fragment)
    shutil.copy(out / "playlist.000001.yaml", out / "playlist.yaml")
    with pytest.raises(MissingError) as caught:
        flare.pack(more, out, append=True, resume=True)
    assert caught.value.hint == f"Run `flare log {out} --restore 1`."
    flare.log(out, restore=1)
    assert flare.pack(more, out, append=True, resume=True).version == 4
    assert content(out) == rows(0, 12)
    assert list(flare.verify(str(out))) == []


def test_only_a_restore_replaces_an_unpublished_version_with_missing_files(out, tmp_path):
    """The process that created the version was killed after another one had deleted its files."""
    flare.compact(out)
    (fragment,) = out.glob("fragment.*")
    shutil.rmtree(fragment)
    shutil.copy(out / "playlist.000001.yaml", out / "playlist.yaml")
    shard = f"{fragment.name}/shard.00000.mds"
    more = table(rows(10, 1), tmp_path / "more.parquet")
    for change in (
        lambda: flare.pack(more, out, append=True),
        lambda: flare.drop(out, rows="0"),
        lambda: flare.prune(out, keep=1),
        lambda: flare.log(out, pin="pinned"),
    ):
        with pytest.raises(MissingError) as error:
            change()
        assert error.value.address == f"{out}/{shard}"
        assert error.value.hint == f"Run `flare log {out} --restore 1`."
    restored = flare.log(out, restore=1)
    assert [(one.number, one.verb, one.rows) for one in restored[1:]] == [
        (2, "compact", 10),
        (3, "restore", 10),
    ]
    assert flare.prune(out, keep=1).versions == (1, 2)
    assert list(flare.verify(str(out))) == []


def test_a_dry_run_and_a_log_write_nothing_after_a_kill(out, tmp_path):
    flare.pack(table(rows(10, 2), tmp_path / "more.parquet"), out, append=True)
    shutil.copy(out / "playlist.000001.yaml", out / "playlist.yaml")  # as after a kill
    (out / ".flare-commit").unlink()
    before = files_of(out)
    flare.log(out)
    flare.drop(out, where="id = 1", dry_run=True)
    flare.drop(out, where="id = 1", dry_run=True, erase=True)
    flare.compact(out, dry_run=True)
    flare.prune(out, keep=1, dry_run=True)
    flare.pack(str(tmp_path / "more.parquet"), out, append=True, dry_run=True)
    assert files_of(out) == before


def test_the_lists_of_parts_may_contain_shards_that_a_change_replaced(tmp_path):
    out = tmp_path / "out"
    flare.pack(table(rows(0, 20), tmp_path / "0.parquet"), out, part_rows=7)
    flare.drop(out, where="id = 8")
    assert list(flare.verify(str(out))) == []
    flare.compact(out)
    flare.prune(out, keep=1)
    assert list(flare.verify(str(out))) == []
    assert content(out) == rows(0, 8) + rows(9, 11)


def test_a_playlist_instead_of_its_folder_is_refused_by_a_change(out):
    with pytest.raises(UsageError) as caught:
        flare.drop(out / "playlist.yaml", where="id = 1")
    assert str(caught.value) == (
        f"{out}/playlist.yaml: expected the folder of a dataset, got a file"
    )
    assert caught.value.hint == "Specify the folder that contains playlist.yaml."


@pytest.mark.parametrize("format", ["granular", "mds", "parquet", "webdataset"])
def test_an_added_column_has_the_format_of_the_dataset_so_rows_can_be_appended(format, tmp_path):
    out = tmp_path / "out"
    flare.pack(table(rows(0, 10), tmp_path / "first.parquet"), out, format=format, shard_rows=4)
    scores = [{"score": i} for i in range(10)]
    flare.pack(table(scores, tmp_path / "scores.parquet"), out, add_column="score")
    more = [{**one, "score": one["id"]} for one in rows(10, 3)]
    flare.pack(table(more, tmp_path / "more.parquet"), out, append=True)
    assert plain(content(out)) == [{**one, "score": one["id"]} for one in rows(0, 13)]
    assert {stream.format for stream in flare.inspect(out).streams} == {format}


def test_all_tars_of_a_dataset_have_different_names(tmp_path):
    out = tmp_path / "out"
    flare.pack(table(rows(0, 10), tmp_path / "first.parquet"), out, format="webdataset")
    for first in (10, 20):
        flare.pack(table(rows(first, 10), tmp_path / f"{first}.parquet"), out, append=True)
    flare.compact(out)
    names = [path.name for path in out.rglob("*.tar")]
    assert len(names) == len(set(names)) == 4


def test_an_append_of_existing_keys_only_creates_no_version(out, tmp_path, capsys):
    source = table(rows(3, 4), tmp_path / "more.parquet")
    options = ["--append", "--key", "id", "--on-duplicate", "first"]
    before = files_of(out)
    assert main(["pack", source, str(out), *options, "-q"]) == 0
    assert main(["pack", source, str(out), *options, "--json", "--resume"]) == 0
    printed = capsys.readouterr()
    packed = json.loads(printed.out.splitlines()[1])
    assert (packed["rows"], packed["duplicates"], packed["version"]) == (0, 4, None)
    assert main(["pack", source, str(out), *options]) == 0
    printed = capsys.readouterr()
    assert printed.out == f"{out}/playlist.yaml\n"
    assert printed.err.splitlines()[:2] == [
        "skipped 4 rows with the key of an earlier row",
        "no row has a new key; no version was created",
    ]
    assert files_of(out) == before


def test_an_append_of_existing_keys_to_several_streams_creates_no_version(out, tmp_path):
    scores = [{"score": i} for i in range(10)]
    flare.pack(table(scores, tmp_path / "scores.parquet"), out, add_column="score")
    samples = [{**one, "score": one["id"]} for one in rows(8, 4)]
    first = table(samples[:2], tmp_path / "first.parquet")
    packed = flare.pack(first, out, append=True, key="id", on_duplicate="first")
    assert (packed.version, packed.duplicates) == (None, 2)
    packed = flare.pack(
        table(samples, tmp_path / "more.parquet"),
        out,
        append=True,
        key="id",
        on_duplicate="first",
    )
    assert packed.version == 3
    assert content(out)[8:] == samples


@pytest.mark.parametrize("format", FORMATS)
def test_parts_are_appended_to_every_format(format, tmp_path):
    out, more = tmp_path / "out", table(stored(rows(7, 8), format), tmp_path / "1.parquet")
    columns = ["text"] if format == "ffrecord" else None
    flare.pack(
        table(stored(rows(0, 7), format), tmp_path / "0.parquet"),
        out,
        format=format,
        columns=columns,
        part_rows=4,
    )
    packed = flare.pack(more, out, append=True, part_rows=3)
    assert (packed.version, packed.rows, packed.shards) == (2, 8, 3)
    assert plain(content(out)) == stored(rows(0, 15), format)
    flare.drop(out, rows="1,9")
    flare.compact(out)
    expected = [one for i, one in enumerate(rows(0, 15)) if i not in (1, 9)]
    assert plain(content(out)) == stored(expected, format)
    for one in flare.log(out):
        assert list(flare.verify(str(out / f"playlist.{one.number:06d}.yaml"))) == []
    flare.prune(out, keep=1)
    assert plain(content(out)) == stored(expected, format)
    assert list(flare.verify(str(out))) == []


def test_all_tars_of_appended_parts_have_different_names(tmp_path):
    out = tmp_path / "out"
    flare.pack(table(rows(0, 4), tmp_path / "0.parquet"), out, format="webdataset")
    for first in (4, 10):
        source = table(rows(first, 6), tmp_path / f"{first}.parquet")
        flare.pack(source, out, append=True, part_rows=2)
    urls = flare.inspect(out, urls=True).streams[0].urls
    assert len({url.rpartition("/")[2] for url in urls}) == len(urls) == 7


def test_keys_of_appended_parts_are_compared_with_the_dataset(out, tmp_path):
    more = table(rows(8, 6), tmp_path / "more.parquet")
    with pytest.raises(FormatError) as caught:
        flare.pack(more, out, append=True, key="id", part_rows=2)
    assert str(caught.value) == f"{more}[0]: key '8' is already in the dataset, in row 8"
    with pytest.raises(UsageError) as usage:
        flare.pack(more, out, append=True, key="id", part_rows=2, on_duplicate="first")
    assert str(usage.value) == "`--on-duplicate first` needs the keys of all parts"
    packed = flare.pack(more, out, append=True, key="id", part_rows=2, on_duplicate="replace")
    assert (packed.rows, packed.replaced, packed.version) == (6, 2, 2)
    assert content(out) == rows(0, 14)
    assert flare.pack(table(rows(20, 5), tmp_path / "x.parquet"), out, append=True, key="id").rows


def test_parts_are_appended_to_several_streams(out, tmp_path):
    scores = table([{"score": i} for i in range(10)], tmp_path / "scores.parquet")
    flare.pack(scores, out, add_column="score")
    more = [{**one, "score": one["id"]} for one in rows(10, 7)]
    source = table(more, tmp_path / "more.parquet")
    before = files_of(out)
    shown = flare.pack(source, out, append=True, part_rows=3, dry_run=True)
    assert (shown.rows, files_of(out)) == (7, before)
    flare.pack(source, out, append=True, part_rows=3)
    assert content(out) == [{**one, "score": one["id"]} for one in rows(0, 17)]
    assert list(flare.verify(str(out))) == []


def test_failed_rows_of_appended_parts_are_listed(out, tmp_path):
    lines = [f"{i},{'x' * 3000 if i in (11, 14) else 'fine'}" for i in range(10, 16)]
    (tmp_path / "a.csv").write_text("\n".join(["id,text", *lines]) + "\n")
    options = {"on_error": "skip", "max_object": 2000, "part_rows": 3, "key": "id"}
    packed = flare.pack(str(tmp_path / "a.csv"), out, append=True, **options)
    assert (packed.rows, packed.failed, dict(packed.reasons)) == (4, 2, {"large": 2})
    (failed,) = out.glob("fragment.*/failed.jsonl")
    assert [json.loads(line)["key"] for line in failed.read_text().splitlines()] == ["11", "14"]
    assert [one["id"] for one in content(out)] == [*range(11), 12, 13, 15]
    assert list(flare.verify(str(out))) == []


@pytest.mark.parametrize("format", ["parquet", "webdataset", "tfrecord"])
def test_a_missing_column_is_null_if_the_user_allows_it(format, tmp_path):
    out, source = tmp_path / "out", table([{"id": 10}, {"id": 11}], tmp_path / "ids.parquet")
    flare.pack(table(rows(0, 3), tmp_path / "0.parquet"), out, format=format)
    with pytest.raises(FormatError) as caught:
        flare.pack(source, out, append=True)
    assert str(caught.value) == f"{source}: column 'text' of the dataset is missing in the source"
    assert caught.value.hint == "Use --allow-missing to store nulls in this column."
    flare.pack(source, out, append=True, allow_missing=True)
    nulls = [{"id": 10, "text": None}, {"id": 11, "text": None}]
    assert plain(content(out)) == rows(0, 3) + nulls
    assert list(flare.verify(str(out))) == []


def test_a_missing_column_is_filled_if_the_format_stores_no_nulls(out, tmp_path):
    source = table([{"id": 10}], tmp_path / "ids.parquet")
    with pytest.raises(FormatError) as caught:
        flare.pack(source, out, append=True, allow_missing=True)
    assert str(caught.value) == f"{source}: column 'text' of the dataset is missing in the source"
    assert caught.value.hint == (
        "Use --allow-missing and --null text=VALUE; mds cannot store nulls."
    )
    flare.pack(source, out, append=True, allow_missing=True, null=["text=none"])
    assert content(out) == [*rows(0, 10), {"id": 10, "text": "none"}]


def test_a_stream_of_another_format_is_appended_to(tmp_path):
    out = tmp_path / "out"
    flare.pack(table(rows(0, 3), tmp_path / "0.parquet"), out, format="webdataset")
    x = table([{"x": i} for i in range(3)], tmp_path / "x.parquet")
    flare.pack(x, out, add_column="x", format="json")
    samples = [{**one, "x": one["id"]} for one in rows(0, 5)]
    flare.pack(table(samples[3:], tmp_path / "1.parquet"), out, append=True)
    assert plain(content(out)) == samples
    assert list(flare.verify(str(out))) == []


def test_a_missing_stream_is_filled_or_null(tmp_path):
    out, more = tmp_path / "out", table(rows(3, 2), tmp_path / "1.parquet")
    flare.pack(table(rows(0, 3), tmp_path / "0.parquet"), out, format="parquet")
    x = table([{"x": i, "y": i} for i in range(3)], tmp_path / "x.parquet")
    flare.pack(x, out, add_column="x", format="json")
    flare.pack(x, out, add_column="y")
    with pytest.raises(FormatError) as caught:
        flare.pack(more, out, append=True, allow_missing=True)
    assert caught.value.hint == "Use --allow-missing and --null x=VALUE; json cannot store nulls."
    flare.pack(more, out, append=True, allow_missing=True, null=["x=7"])
    assert content(out) == [
        *({**one, "x": one["id"], "y": one["id"]} for one in rows(0, 3)),
        *({**one, "x": 7, "y": None} for one in rows(3, 2)),
    ]
    assert list(flare.verify(str(out))) == []


def test_links_without_fetch_are_refused_with_a_hint(tmp_path):
    (tmp_path / "a.txt").write_text("a")
    source = table([{"id": 1, "file": "a.txt"}], tmp_path / "links.parquet")
    flare.pack(source, tmp_path / "out", fetch="file", allow_local=True)
    with pytest.raises(FormatError) as caught:
        flare.pack(source, tmp_path / "out", append=True)
    assert (
        caught.value.hint == "If the column contains links, download the files with --fetch file."
    )


def test_a_dropped_column_is_named_in_the_result(out, capsys):
    assert main(["drop", str(out), "--drop-column", "text", "--dry-run"]) == 0
    assert main(["drop", str(out), "--drop-column", "text"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "would remove column 'text', and rewrite 3 shards, 799 B",
        "removed column 'text', rewrote 3 shards, 799 B: version 2",
    ]


def test_prune_and_erase_run_while_other_processes_append(out, tmp_path, forked_flare):
    sources = [table(rows(10 + 3 * i, 3), tmp_path / f"{i}.parquet") for i in range(12)]
    children = [append_many(forked_flare, out, sources[i::2]) for i in range(2)]
    flare.drop(out, where="id = 1", erase=True)
    while children[0].poll() is None:
        flare.prune(out, keep=1)
    assert [child.wait() for child in children] == [0, 0]
    flare.prune(out, keep=1)
    assert sorted(one["id"] for one in content(out)) == [0, *range(2, 46)]
    assert list(flare.verify(str(out))) == []
    assert len(list(out.glob("fragment.*"))) == 13


@pytest.mark.parametrize("compress", [None, "zstd"])
def test_an_added_column_has_the_separator_and_the_compression_of_the_dataset(compress, tmp_path):
    out, first = tmp_path / "out", table(rows(0, 4), tmp_path / "first.parquet")
    flare.pack(first, out, format="xsv", separator="|", newline="\r\n", compress=compress)
    scores = table([{"score": i} for i in range(4)], tmp_path / "scores.parquet")
    flare.pack(scores, out, add_column="score")
    flare.pack(scores, out, add_column="score", replace=True, separator="|")
    assert content(out) == [{**one, "score": one["id"]} for one in rows(0, 4)]
    streams = playlists.read(locate(str(out / "playlist.yaml"))).streams
    assert [one.headers.get("compression") for one in streams] == [compress] * 2
    if compress is None:
        assert (out / streams[1].urls[0]).read_bytes() == b"score\r\n0\r\n1\r\n2\r\n3\r\n"
    for options in ({"append": True}, {"add_column": "score", "replace": True}):
        with pytest.raises(UsageError) as caught:
            flare.pack(scores, out, separator=";", **options)
        assert (
            caught.value.message == "--separator ';' differs from the separator of the dataset, '|'"
        )


def test_a_change_of_a_format_without_separators_refuses_a_separator(out, tmp_path):
    more = table(rows(10, 2), tmp_path / "more.parquet")
    with pytest.raises(UsageError) as caught:
        flare.pack(more, out, append=True, separator=";")
    assert caught.value.message == "--separator: mds shards have no separator"
    assert [one.number for one in flare.log(out)] == [1]


def test_streams_with_other_separators_are_appended_to(tmp_path):
    out, first = tmp_path / "out", table(rows(0, 4), tmp_path / "first.parquet")
    flare.pack(first, out, format="csv")
    for name, options in (("a", {"format": "xsv", "separator": ";"}), ("b", {"format": "json"})):
        scores = table([{name: i} for i in range(4)], tmp_path / f"{name}.parquet")
        flare.pack(scores, out, add_column=name, **options)
    more = [{**one, "a": one["id"], "b": one["id"]} for one in rows(4, 2)]
    flare.pack(table(more, tmp_path / "more.parquet"), out, append=True)
    assert content(out) == [{**one, "a": one["id"], "b": one["id"]} for one in rows(0, 6)]


@pytest.mark.parametrize(
    ("old", "new", "stored_keys"),
    [
        (range(3), range(2, 4), ["0", "1", "2", "3"]),
        (["a.b", "c"], ["a.b", "d.e"], ["a_b", "c", "d_e"]),
    ],
)
def test_keys_of_webdataset_are_compared_as_they_are_stored(old, new, stored_keys, tmp_path):
    out = tmp_path / "out"
    old, new = ([{"id": i, "text": f"text {i}"} for i in ids] for ids in (old, new))
    flare.pack(table(old, tmp_path / "old.parquet"), out, format="webdataset", key="id")
    more, again = table(new, tmp_path / "new.parquet"), new[0]["id"]
    with pytest.raises(FormatError, match="is already in the dataset") as caught:
        flare.pack(more, out, append=True, key="id")
    assert caught.value.message.startswith(f"key {str(again)!r} is already")
    packed = flare.pack(more, out, append=True, key="id", on_duplicate="first")
    assert (packed.rows, packed.duplicates) == (1, 1)
    assert [one["__key__"] for one in content(out)] == stored_keys
    packed = flare.pack(more, out, append=True, key="id", on_duplicate="replace")
    assert (packed.rows, packed.replaced) == (2, 2)
    assert sorted(one["__key__"] for one in content(out)) == stored_keys


def test_keys_that_cannot_be_stored_are_not_duplicates_of_each_other(tmp_path):
    out = tmp_path / "out"
    first = table([{"id": "a", "text": "x"}], tmp_path / "first.parquet")
    flare.pack(first, out, format="webdataset", key="id")
    wrong = [{"id": one, "text": "x"} for one in (b"\xff", b"\xfe", b"b")]
    more = table(wrong, tmp_path / "more.parquet")
    packed = flare.pack(more, out, append=True, key="id", on_error="skip")
    assert (packed.rows, packed.failed) == (1, 2)


@pytest.mark.parametrize(
    ("old_key", "new_key", "message", "hint"),
    [
        (
            None,
            "id",
            "column '__key__' is not in the dataset",
            "The keys of the dataset were generated, so omit --key.",
        ),
        (
            "id",
            None,
            "column '__key__' of the dataset is missing in the source",
            "Specify the column that contains the keys with --key.",
        ),
    ],
)
def test_a_webdataset_with_other_keys_is_an_error_that_names_the_option(
    old_key, new_key, message, hint, tmp_path
):
    out, first = tmp_path / "out", table(rows(0, 3), tmp_path / "first.parquet")
    flare.pack(first, out, format="webdataset", key=old_key)
    with pytest.raises(FormatError) as caught:
        flare.pack(first, out, append=True, key=new_key)
    assert (caught.value.message, caught.value.hint) == (message, hint)


def test_new_shards_have_the_checksums_of_the_dataset(tmp_path):
    out, more = tmp_path / "out", table(rows(10, 4), tmp_path / "more.parquet")
    flare.pack(table(rows(0, 10), tmp_path / "a.parquet"), out, shard_rows=5, hash=["sha256"])
    flare.pack(more, out, append=True)
    flare.drop(out, rows="0")
    flare.pack(table([{"n": i} for i in range(13)], tmp_path / "n.parquet"), out, add_column="n")
    for stream in playlists.read(locate(str(out / "playlist.yaml"))).streams:
        files = [(out / url).read_bytes() for url in stream.urls]
        assert stream.hashes["sha256"] == [hashlib.sha256(one).hexdigest() for one in files]
    assert list(flare.verify(str(out))) == []


def test_an_erasure_does_not_take_an_unfinished_drop_of_the_same_rows_for_its_own(out, monkeypatch):
    """The other drop is killed after its commit, which did not erase the rows."""
    at, base = open_for_change(str(out), Guard())
    real = versions.commit

    def commit(*args):
        real(*args)
        os._exit(9)

    pid = os.fork()
    if pid == 0:
        versions.commit = commit
        flare.drop(out, rows="0:2")
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 9
    monkeypatch.setattr(drop_command, "open_for_change", lambda *_: (at, base))
    with pytest.raises(BusyError, match="another process has changed the dataset"):
        flare.drop(out, rows="0:2", erase=True, resume=True)
    assert [one.verb for one in flare.log(out)] == ["pack", "drop"]


@pytest.mark.parametrize("replace", [False, True])
def test_a_column_that_another_process_added_meanwhile_is_not_replaced(
    replace, out, tmp_path, monkeypatch
):
    count = len(flare.open(out))
    one, two = (
        table([{"score": i * sign} for i in range(count)], tmp_path / f"{sign}.parquet")
        for sign in (1, -1)
    )
    if replace:
        flare.pack(one, out, add_column="score")
    real = versions.commit

    def commit(*args):
        monkeypatch.setattr(versions, "commit", real)
        flare.pack(one, out, add_column="score", replace=replace)
        return real(*args)

    monkeypatch.setattr(versions, "commit", commit)
    with pytest.raises(BusyError, match="another process has changed the dataset"):
        flare.pack(two, out, add_column="score", replace=replace)
    assert [row["score"] for row in content(out)] == list(range(count))
