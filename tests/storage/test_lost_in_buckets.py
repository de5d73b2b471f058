"""Objects of a pack are moved or deleted in the bucket while it runs, or before it is resumed."""

import pytest

from flarecli.errors import BusyError, FlareError, MissingError
from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.write import Writer, bucket_target


def objects(address):
    at = locate(address)
    try:
        return {entry.name: (at / entry.name).read() for entry in at.list()}
    except FileNotFoundError:
        return {}


def opened(out, **options):
    return Writer(out, columns={"n": "int"}, settings=Settings(shard_rows=2), **options)


def write(writer, rows):
    for row in range(writer.rows, rows):
        writer.write({"n": row})
        writer._write_samples()


def pack(out, rows, **options):
    with opened(out, **options) as writer:
        write(writer, rows)
    return objects(out)


def move(out, to):
    """A bucket has no folders: each object is copied, then deleted."""
    for name, data in objects(out).items():
        (locate(to) / name).write([data])
        (locate(out) / name).delete()


@pytest.mark.parametrize("name", ["shard.00000.mds", ".flare/lock"])
def test_an_object_deleted_during_a_pack_ends_it_without_a_playlist(s3, name):
    out = f"{s3}/out"
    with pytest.raises(FlareError) as caught, opened(out) as writer:
        write(writer, 5)
        size = (locate(out) / name).size()
        (locate(out) / name).delete()
    lost = f"{out}/{name}: the file is missing, expected {size} bytes"
    assert str(caught.value) == {
        "shard.00000.mds": lost,
        ".flare/lock": f"{out}: the lock of this pack was deleted",
    }.get(name)
    assert caught.value.exit_code == 3
    assert "playlist.yaml" not in objects(out)
    assert pack(out, 5, resume=True) == pack(f"{s3}/whole", 5)


def test_a_pack_that_was_moved_ends_without_a_playlist_and_is_resumed_where_it_is(s3):
    with pytest.raises(FlareError) as caught, opened(f"{s3}/out") as writer:
        write(writer, 5)
        move(f"{s3}/out", f"{s3}/moved")
    assert caught.value.exit_code == 3
    assert "playlist.yaml" not in {**objects(f"{s3}/out"), **objects(f"{s3}/moved")}
    (locate(f"{s3}/moved/.flare") / "lock").delete()
    assert pack(f"{s3}/moved", 5, resume=True) == pack(f"{s3}/whole", 5)


def test_a_lock_taken_over_a_moment_ago_is_noticed_before_the_commit(s3):
    """Between two writes of the lock as well."""
    out = f"{s3}/out"
    with pytest.raises(BusyError) as caught, opened(out) as writer:
        write(writer, 5)
        (locate(out) / ".flare/lock").write([b'{"token": "another"}'])
    assert str(caught.value) == f"{out}: another pack has taken over"
    assert "playlist.yaml" not in objects(out)


def test_a_finished_dataset_that_lost_a_shard_is_not_resumed(s3):
    out = f"{s3}/out"
    pack(out, 5)
    size = (locate(out) / "shard.00001.mds").size()
    (locate(out) / "shard.00001.mds").delete()
    with pytest.raises(MissingError) as caught:
        pack(out, 5, resume=True)
    assert str(caught.value) == f"{out}/shard.00001.mds: the file is missing, expected {size} bytes"
    assert caught.value.hint == "Give --overwrite to pack it again."
    assert "shard.00001.mds" in pack(out, 5, overwrite=True)


def test_an_unfinished_pack_that_lost_a_shard_writes_it_again(s3):
    out = f"{s3}/out"
    writer = opened(out)
    write(writer, 7)
    writer.abandon()
    (locate(out) / "shard.00001.mds").delete()
    with opened(out, resume=True) as writer:
        assert writer.rows == 2
        write(writer, 7)
    assert objects(out) == pack(f"{s3}/whole", 7)


def test_a_new_dataset_that_lost_a_shard_does_not_replace_the_old_one(s3):
    """A kill came right before the new dataset took the place of the old one."""
    out = f"{s3}/out"
    old = pack(out, 3)
    writer = opened(out, overwrite=True)
    write(writer, 7)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(writer.target), "_replace", _killed)
        writer.close()
    writer.target.release()
    assert ".flare/new/playlist.yaml" in objects(out)
    (locate(out) / ".flare/new/shard.00002.mds").delete()
    unfinished = opened(out, overwrite=True, resume=True)
    assert not unfinished.is_done
    assert {name: objects(out).get(name) for name in old} == old
    write(unfinished, 7)
    unfinished.close()
    assert objects(out) == pack(f"{s3}/whole", 7)


def _killed(self):
    raise KeyboardInterrupt


def test_a_pack_that_begins_while_another_looks_at_the_bucket_is_named(s3, monkeypatch):
    """The other has shards there by then, and no playlist."""
    out, looked, others = f"{s3}/out", bucket_target._has_objects, []

    def looking(at):
        found = looked(at)
        monkeypatch.setattr(bucket_target, "_has_objects", looked)
        others.append(opened(out, resume=True))
        write(others[0], 5)
        return found

    monkeypatch.setattr(bucket_target, "_has_objects", looking)
    with pytest.raises(BusyError) as caught:
        opened(out, resume=True)
    assert str(caught.value).startswith(f"{out}: another pack is at work there (process ")
    others[0].close()
