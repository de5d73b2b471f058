"""A dataset in a bucket that is replaced: whenever a playlist lies there, all that it lists is whole, of the old one or of the new."""

import time

import pytest

from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.storage.anything import AnyStore
from flarecli.write import Failure, Writer


class Killed(BaseException):
    pass


def objects(address):
    at = locate(address)
    return {entry.name: (at / entry.name).read() for entry in at.list() if not entry.name.startswith(".flare/")}


def pack(address, rows, **options):
    with Writer(address, columns={"n": "int"}, settings=Settings(shard_rows=2), **options) as writer:
        for row in rows:
            if row % 5 == 4:
                writer.fail(Failure(row, f"k{row}", "n", "null", "n is null"))
            writer.write({"n": row})
    return objects(address)


def test_whenever_a_playlist_is_there_what_it_lists_is_whole(monkeypatch):
    bucket = f"memory://swap{time.monotonic_ns()}"
    new = pack(f"{bucket}/new", range(100, 109))
    real, kills = {name: getattr(AnyStore, name) for name in ("write", "delete")}, 0
    for step in range(200):
        out, left = f"{bucket}/{step}", [step]
        old = pack(out, range(7))

        def dying(name, left=left):
            def call(self, path, *more, **named):
                if not path.endswith("/lock"):
                    left[0] -= 1
                    if left[0] < 0:
                        raise Killed
                return real[name](self, path, *more, **named)

            return call

        with monkeypatch.context() as patch:
            for name in real:
                patch.setattr(AnyStore, name, dying(name))
            try:
                pack(out, range(100, 109), overwrite=True)
                break
            except Killed:
                kills += 1
        found = objects(out)
        assert "playlist.yaml" not in found or found in (old, new), step
    assert kills > 20
    assert objects(out) == new


@pytest.mark.parametrize("overwrite", [False, True])
def test_what_came_to_lie_in_a_folder_of_a_bucket_meanwhile_stays(overwrite):
    out = f"memory://mine{time.monotonic_ns()}/out"
    if overwrite:
        pack(out, range(3))
    with pytest.raises(RuntimeError), Writer(out, columns={"n": "int"}, overwrite=overwrite):
        (locate(out) / "photos.tar").write([b"mine"])
        raise RuntimeError
    assert objects(out)["photos.tar"] == b"mine"
