"""Changes of a dataset whose lists are damaged or lost: refused before any file changes."""

import shutil

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli as flare
from flarecli import playlists
from flarecli.commands.verifying.listings import find_unlisted_files
from flarecli.errors import FormatError, IntegrityError, MissingError
from flarecli.storage import locate
from tests.outputs import files_of

WRONG = "the last line is not the checksum of the lines above"
COPY = "Copy playlist.yaml to playlist.000003.yaml."


def replace_hint(path):
    return (
        "Replace it with an undamaged copy, or delete it if it is not needed."
        f" If you edited it, run `flare playlist {path} -o {path}`."
    )


def table(path, first, count):
    numbers = range(first, first + count)
    pq.write_table(pa.table({"id": numbers, "text": [f"text {i}" for i in numbers]}), path)
    return str(path)


@pytest.fixture
def out(tmp_path):
    """A dataset with three versions of 4, 6 and 8 rows."""
    out = tmp_path / "out"
    flare.pack(table(tmp_path / "0.parquet", 0, 4), out)
    for first in (4, 6):
        flare.pack(table(tmp_path / f"{first}.parquet", first, 2), out, append=True)
    return out


def commands(out, tmp_path):
    """Return all commands that change a dataset or show its history, as functions."""
    table(tmp_path / "more.parquet", 8, 2)
    (tmp_path / "extra.csv").write_text("id,extra\n" + "".join(f"{i},{i}\n" for i in range(8)))
    return {
        "append": lambda: flare.pack(tmp_path / "more.parquet", out, append=True),
        "add_column": lambda: flare.pack(tmp_path / "extra.csv", out, add_column="extra", key="id"),
        "drop": lambda: flare.drop(out, rows="0:1"),
        "erase": lambda: flare.drop(out, where="id = 5", erase=True),
        "drop_column": lambda: flare.drop(out, drop_column="text"),
        "compact": lambda: flare.compact(out),
        "restore": lambda: flare.log(out, restore=1),
        "pin": lambda: flare.log(out, pin="kept"),
        "log": lambda: flare.log(out),
        "prune": lambda: flare.prune(out, keep=1),
        "prune -n": lambda: flare.prune(out, keep=1, dry_run=True),
    }


def flip(path, position, bit=0):
    data = bytearray(path.read_bytes())
    data[position] ^= 1 << bit
    path.write_bytes(bytes(data))


def damage(path):
    """Change the number of removed rows in the list of a version."""
    flip(path, path.read_bytes().index(b"removed: ") + 9)


def refused(run, out):
    """Return the error of a command, which must not change any file."""
    before = files_of(out)
    with pytest.raises((FormatError, MissingError)) as caught:
        run()
    after = files_of(out)
    after.pop(".flare-commit", None)  # an empty lock file
    before.pop(".flare-commit", None)
    assert after == before
    return caught.value


def test_no_command_changes_a_dataset_whose_newest_list_is_damaged(out, tmp_path):
    newest = out / "playlist.000003.yaml"
    data = newest.read_bytes()
    damage(newest)
    for name, run in commands(out, tmp_path).items():
        error = refused(run, out)
        assert isinstance(error, IntegrityError), name
        assert (str(error), error.hint) == (f"{newest}: {WRONG}", COPY), name
    shutil.copyfile(out / "playlist.yaml", newest)
    assert newest.read_bytes() == data
    assert flare.drop(out, rows="0:1").version == 4


def test_no_command_changes_a_dataset_whose_newest_list_is_lost(out, tmp_path):
    newest = out / "playlist.000003.yaml"
    newest.unlink()
    for others_lost in (False, True):
        if others_lost:
            for path in out.glob("playlist.0*.yaml"):
                path.unlink()
        for name, run in commands(out, tmp_path).items():
            error = refused(run, out)
            assert isinstance(error, MissingError), name
            assert str(error) == f"{newest}: the file is missing, but playlist.yaml is version 3"
            assert error.hint == COPY
    shutil.copyfile(out / "playlist.yaml", newest)
    flare.pack(tmp_path / "more.parquet", out, append=True)
    assert flare.open(str(out)).to_arrow()["id"].to_pylist() == [*range(10)]


def test_a_prune_deletes_nothing_if_any_bit_of_a_kept_list_is_damaged(out):
    flare.log(out, pin="kept")
    flare.drop(out, where="id >= 4")
    pin = out / "playlist.kept.yaml"
    data = pin.read_bytes()
    for position in range(0, len(data), 29):
        for bit in (0, position % 8):
            flip(pin, position, bit)
            error = refused(lambda: flare.prune(out, keep=1), out)
            assert str(error).startswith(str(pin)), position
            pin.write_bytes(data)
    flare.prune(out, keep=1)
    assert list(flare.verify(str(pin))) == []
    assert flare.open(str(pin)).to_arrow()["id"].to_pylist() == [*range(8)]


def test_a_version_with_a_damaged_list_cannot_be_restored(out):
    first = out / "playlist.000001.yaml"
    position = first.read_bytes().index(b"rows: [4]") + 7
    flip(first, position)
    for options in ({"restore": 1}, {"restore": 2}, {"pin": "kept"}):
        error = refused(lambda options=options: flare.log(out, **options), out)
        assert (str(error), error.hint) == (f"{first}: {WRONG}", replace_hint(first))
    flip(first, position)
    assert [one.added for one in flare.log(out, restore=2)] == [4, 2, 2, 0]


@pytest.mark.parametrize("kind", ["number", "text", "cut"])
def test_the_next_change_replaces_a_damaged_current_list(out, tmp_path, kind):
    current = out / "playlist.yaml"
    data = current.read_bytes()
    damaged = {
        "number": data.replace(b"number: 3", b"number: 9"),
        "text": data.replace(b"content:", b"content["),
        "cut": data[: len(data) // 2],
    }[kind]
    assert damaged != data
    current.write_bytes(damaged)
    runs = commands(out, tmp_path)
    unchanged = files_of(out)
    assert runs["prune -n"]().versions == (1, 2)
    assert [one.rows for one in runs["log"]()] == [4, 6, 8]
    assert files_of(out) == unchanged
    assert runs["append"]().version == 4
    assert current.read_bytes() == (out / "playlist.000004.yaml").read_bytes()
    assert flare.open(str(out)).to_arrow()["id"].to_pylist() == [*range(10)]
    assert list(flare.verify(str(out))) == []


def test_a_list_edited_before_the_first_change_needs_a_new_checksum(tmp_path):
    out, current = tmp_path / "out", tmp_path / "out/playlist.yaml"
    flare.pack(table(tmp_path / "0.parquet", 0, 4), out)
    current.write_text(current.read_text().replace("data:", "train:", 1))
    more = table(tmp_path / "more.parquet", 4, 2)
    error = refused(lambda: flare.pack(more, out, append=True), out)
    command = f"flare playlist {current} -o {current}"
    hint = f"Replace it with an undamaged copy. If you edited it, run `{command}`."
    assert (str(error), error.hint) == (f"{current}: {WRONG}", hint)
    flare.playlist(str(current), out=str(current))
    assert flare.pack(more, out, append=True).version == 2
    assert flare.open(str(out)).playlists[0].streams[0].name == "train"


def found(out):
    return [(one.address, one.kind, one.message, one.hint) for one in flare.verify(str(out))]


def test_verify_names_damaged_and_lost_lists_of_versions(out):
    flare.log(out, pin="kept")
    pin, newest = out / "playlist.kept.yaml", out / "playlist.000003.yaml"
    damage(pin)
    damaged = (str(pin), "checksum", WRONG, replace_hint(pin))
    assert found(out) == [damaged]
    damage(newest)
    assert found(out) == [(str(newest), "checksum", WRONG, COPY), damaged]
    newest.unlink()
    lost = "the file is missing, but playlist.yaml is version 3"
    assert found(out) == [damaged, (str(newest), "missing", lost, COPY)]
    # a version is checked alone, and its shards are not called unlisted
    assert found(out / "playlist.000001.yaml") == []


def test_verify_names_the_lists_if_the_current_and_the_newest_list_are_damaged(out):
    for name in ("playlist.yaml", "playlist.000003.yaml"):
        damage(out / name)
    current, newest = str(out / "playlist.yaml"), str(out / "playlist.000003.yaml")
    assert found(out) == [
        (current, "checksum", WRONG, "Fetch it again."),
        (newest, "checksum", WRONG, replace_hint(newest)),
    ]


def test_a_version_that_is_pruned_during_verify_is_not_called_missing(out, tmp_path):
    """Another process commits a version, and prunes the verified one."""
    playlist = playlists.read(locate(str(out / "playlist.yaml")))
    commands(out, tmp_path)["append"]()
    flare.prune(out, keep=1)
    assert not (out / "playlist.000003.yaml").exists()
    assert [one for _, one in find_unlisted_files(playlist, ()) if one is not None] == []


def test_verify_names_a_damaged_pin_of_an_unchanged_dataset(tmp_path):
    out = tmp_path / "out"
    flare.pack(table(tmp_path / "0.parquet", 0, 4), out)
    flare.log(out, pin="kept")
    pin = out / "playlist.kept.yaml"
    flip(pin, pin.read_bytes().index(b"rows: [4]") + 7)
    assert found(out) == [(str(pin), "checksum", WRONG, replace_hint(pin))]
