"""verify: parts, samples, --against, --state, duplicates, and joined streams."""

import json
import shutil

import pytest

from flarecli import commands, playlists
from flarecli.commands.verifying.listings import LISTS_DIFFER
from flarecli.commands.verifying.plans import Choice
from flarecli.errors import UsageError
from flarecli.model import Finding, Settings
from flarecli.storage import locate
from flarecli.write import Writer


def checked(address, **options):
    done = commands.verify(str(address), **options)
    return list(done), done


@pytest.mark.parametrize("count", [0, 1, 5, 100])
@pytest.mark.parametrize("sample", [None, 2, 0.5])
def test_each_shard_is_in_one_part_and_samples_are_within_the_part(count, sample):
    complete = [sorted(Choice((k, 7)).of(count)) for k in range(7)]
    assert sorted(i for part in complete for i in part) == list(range(count))
    for k in range(7):
        some = Choice((k, 7), sample).of(count)
        assert set(some) <= set(complete[k])
        assert len(some) == (
            len(complete[k])
            if sample is None
            else min(2, len(complete[k]))
            if sample == 2
            else (len(complete[k]) + 1) // 2
        )
        assert some == Choice((k, 7), sample).of(count)


def test_all_parts_together_have_the_findings_of_the_whole(out):
    for path in out.glob("*.mds"):
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    complete, _ = checked(out)
    parts = [checked(out, part=(k, 3)) for k in range(3)]
    assert sorted(one.where for result, _ in parts for one in result) == sorted(
        one.where for one in complete
    )
    assert [(done.shards, done.left) for _, done in parts] == [(2, 2), (1, 3), (1, 3)]


def test_a_sample_checks_its_number_of_shards_and_counts_the_others(plain):
    _, done = checked(plain, sample=0.5)
    assert (done.shards, done.left, done.findings) == (2, 2, 0)
    _, done = checked(plain, sample=100)
    assert (done.shards, done.left) == (4, 0)


def test_a_copied_playlist_agrees_and_a_changed_playlist_does_not(out, tmp_path):
    truth = tmp_path / "truth.yaml"
    shutil.copy(out / "playlist.yaml", truth)
    assert checked(out, against=str(truth))[0] == []
    (out / "shard.00003.mds").write_bytes(b"other")
    (out / "playlist.yaml").unlink()
    (out / "index.json").unlink()
    result, _ = checked(f"{out}/shard.00003.mds", against=str(truth))
    size = listed_size(truth)
    hint = (
        "The file was cut short; fetch it again, or pack it again with `flare pack … --overwrite`."
    )
    assert result[0] == Finding(
        f"{out}/shard.00003.mds",
        "size",
        f"file is 5 bytes, {truth} lists {size}",
        hint,
        start=5,
        stop=size,
    )
    rest = f"lists shard.00000.mds and 2 others, {out}/shard.00003.mds does not"
    assert result[1:] == [Finding(str(truth), "listing", rest, LISTS_DIFFER)]


def listed_size(path):
    (stream,) = playlists.read(locate(str(path))).streams
    return int(stream.sizes[3])


def test_a_shard_missing_in_one_of_two_lists_is_reported(out, tmp_path):
    small = tmp_path / "small"
    with Writer(str(small), columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    truth = str(small / "playlist.yaml")
    result, _ = checked(out, against=truth)
    missing = [one.message for one in result if one.message.startswith("does")]
    assert missing == [
        f"does not list {out}/shard.0000{i}.mds, {out}/playlist.yaml does" for i in range(1, 4)
    ]


def test_an_interrupted_check_continues_without_repeating_files(out, tmp_path):
    state = tmp_path / "state"
    data = bytearray((out / "shard.00000.mds").read_bytes())
    data[-1] ^= 1
    (out / "shard.00000.mds").write_bytes(data)
    complete, _ = checked(out)
    started = iter(commands.verify(str(out), state=str(state), jobs=1))
    assert next(started) == complete[0]
    started.close()
    assert len(state.read_text().splitlines()) >= 2
    with state.open("a") as file:
        file.write('{"key": "cut sh')
    saved = state.read_bytes()
    result, done = checked(out, state=str(state))
    assert (result, done.shards, done.rows) == (complete, 4, 35)
    state.write_bytes(saved)
    (out / "shard.00000.mds").unlink()  # reading it again would fail
    (out / "shard.00003.mds").unlink()
    result, done = checked(out, state=str(state))
    assert result[: len(complete)] == complete
    assert [one.where for one in result[len(complete) :]] == [f"{out}/shard.00003.mds"]
    assert done.shards == 4
    assert not state.exists()


def test_the_state_of_another_check_is_refused_and_unchanged(plain, tmp_path):
    state = tmp_path / "state"
    state.write_text("mine\n")
    with pytest.raises(UsageError) as caught:
        commands.verify(str(plain), state=str(state))
    assert (str(caught.value), caught.value.hint) == (
        f"{state}: not a state file of `flare verify`; nothing was written to it",
        "Specify a file that does not exist yet.",
    )
    assert state.read_text() == "mine\n"
    with pytest.raises(UsageError) as caught:
        commands.verify(str(plain), state=str(tmp_path / "other"), duplicates=True)
    assert str(caught.value) == "--duplicates and --state cannot be combined"


def test_equal_rows_are_reported_with_the_first_of_them(plain, tmp_path):
    out = tmp_path / "twice"
    with Writer(
        str(out), columns={"a": "str", "b": "str"}, settings=Settings(shard_rows=4)
    ) as writer:
        for a, b in [
            ("x", "y"),
            ("xy", ""),
            ("", "xy"),
            ("z", "z"),
            ("x", "y"),
            ("q", ""),
            ("x", "y"),
        ]:
            writer.write({"a": a, "b": b})
    result, _ = checked(out, duplicates=True)
    hint = "Pack again without one of the two rows."
    assert result == [
        Finding(
            f"{out}/shard.00001.mds",
            "duplicate",
            f"duplicate of row {out}/shard.00000.mds[0]",
            hint,
            row=i,
        )
        for i in (0, 2)
    ]
    assert checked(plain, duplicates=True)[0] == []


def test_joined_streams_need_the_same_number_of_rows(tmp_path):
    for name, column, rows in [
        ("images", "image", 5),
        ("labels", "label", 4),
        ("more", "label", 9),
    ]:
        with Writer(str(tmp_path / name), columns={column: "str"}) as writer:
            for i in range(rows):
                writer.write({column: str(i)})

    def listed(*names):
        path = tmp_path / "both.yaml"
        path.write_text(
            json.dumps(
                {
                    name: {
                        "headers": {"format": "mds", "columns": {column: "str"}},
                        "content": [f"{name}/shard.00000.mds"],
                    }
                    for name, column in names
                }
            )
        )
        return path

    path = listed(("images", "image"), ("labels", "label"))
    result, _ = checked(path)
    message = "stream 'labels' has 4 rows, stream 'images' has 5; joined streams need the same number of rows"
    assert [(one.where, one.kind, one.message) for one in result if one.kind == "streams"] == [
        (str(path), "streams", message)
    ]
    result, _ = checked(listed(("labels", "label"), ("more", "label")))
    assert [one for one in result if one.kind == "streams"] == []
