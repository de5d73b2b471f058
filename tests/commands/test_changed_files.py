"""Changes of datasets that were packed from files: the names of tar members and the extensions."""

import io
import json
import tarfile
from dataclasses import replace

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli as flare
from flarecli import playlists
from flarecli.__main__ import main
from flarecli.commands.rewrite import check_opens
from flarecli.errors import IntegrityError
from flarecli.storage import locate
from flarecli.write import Writer

JPEG, PNG = b"\xff\xd8\xff\xe0 photo %d", b"\x89PNG\r\n\x1a\n picture %d"
SOURCES = ["images", "mixed", "fetch", "tars", "table"]


def make_files(folder, numbers, kind):
    """Write the files of some rows: one image per row, or files with several extensions."""
    for i in numbers:
        to = folder / ("cat" if i < 3 else "dog")
        to.mkdir(parents=True, exist_ok=True)
        if kind == "images":
            (to / f"{i}.png").write_bytes(PNG % i)
        else:
            (to / f"{i}.{'jpg' if i % 2 else 'jpeg'}").write_bytes(JPEG % i)
            (to / f"{i}.txt").write_text(f"text {i}")
            (to / f"{i}.json").write_text(json.dumps({"n": i}))
    return folder


def make_source(source, numbers, at):
    """Create a source with some rows; return its address and the options that pack it."""
    at.mkdir()
    if source in ("images", "mixed"):
        return make_files(at / "files", numbers, source), {}
    if source == "tars":
        with tarfile.open(at / "00000.tar", "w") as to:
            for i in numbers:
                for name, data in ((f"{i}.PNG", PNG % i), (f"{i}.meta.json", b'{"n": %d}' % i)):
                    info = tarfile.TarInfo(name)
                    info.size = len(data)
                    to.addfile(info, io.BytesIO(data))
        return at, {}
    rows = [{"id": f"row{i}", "text": f"text {i}"} for i in numbers]
    if source == "fetch":
        for i, row in zip(numbers, rows, strict=True):
            (at / f"{i}.png").write_bytes(PNG % i)
            row["url"] = f"{i}.png"
    pq.write_table(pa.Table.from_pylist(rows), at / "rows.parquet")
    options = {"fetch": "url:image", "allow_local": True} if source == "fetch" else {}
    return at / "rows.parquet", {"key": "id", **options}


def pack(source, numbers, at, out, format="webdataset", **options):
    address, own = make_source(source, numbers, at)
    flare.pack(address, out, format=format, **own, **options)
    return out


def members(out):
    """Return the member names of the listed tars with their bytes, in the order of the rows."""
    found = []
    for stream in playlists.read(locate(str(out / "playlist.yaml"))).streams:
        for url in stream.urls:
            with tarfile.open(out / url) as tar:
                found += [(one.name, tar.extractfile(one).read()) for one in tar]
    return found


def facts(out):
    """Return the columns of each stream with their extensions and types."""
    return [
        ([(one.name, one.encoding, one.extension) for one in stream.columns], dict(stream.types))
        for stream in playlists.read(locate(str(out / "playlist.yaml"))).streams
    ]


def content(out):
    return flare.open(str(out)).to_arrow().to_pylist()


def check_equal(out, expected):
    assert content(out) == content(expected)
    assert facts(out) == facts(expected)
    assert members(out) == members(expected)
    assert list(flare.verify(str(out))) == []


@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("erase", [False, True])
def test_dropped_rows_leave_the_tar_of_a_pack_without_them(source, erase, tmp_path):
    out = pack(source, range(6), tmp_path / "all", tmp_path / "out")
    flare.drop(out, rows="0,3", erase=erase)
    expected = pack(source, [1, 2, 4, 5], tmp_path / "kept", tmp_path / "expected")
    check_equal(out, expected)


@pytest.mark.parametrize("source", SOURCES)
def test_compact_writes_the_tar_of_a_pack_into_one_shard(source, tmp_path):
    out = pack(source, range(6), tmp_path / "all", tmp_path / "out", shard_rows=2)
    assert flare.compact(out).shards == 3
    check_equal(out, pack(source, range(6), tmp_path / "again", tmp_path / "expected"))


@pytest.mark.parametrize("source", ["mixed", "fetch", "tars"])
def test_a_dropped_column_leaves_the_tar_of_a_pack_without_it(source, tmp_path):
    out = pack(source, range(6), tmp_path / "all", tmp_path / "out")
    names = flare.open(str(out)).schema.names
    gone = next(name for name in ("json", "meta.json", "text") if name in names)
    flare.drop(out, drop_column=gone)
    known = {"__key__"} if source == "mixed" else set()  # a folder has no column of this name
    kept = [name for name in names if name not in (gone, *known)]
    expected = pack(source, range(6), tmp_path / "kept", tmp_path / "expected", columns=kept)
    check_equal(out, expected)


@pytest.mark.parametrize("source", SOURCES)
def test_replaced_rows_leave_the_tars_of_a_pack_of_the_kept_rows(source, tmp_path):
    out = pack(source, range(6), tmp_path / "all", tmp_path / "out")
    address, own = make_source(source, [1, 6], tmp_path / "more")
    own.setdefault("key", "__key__" if source == "tars" else "key")
    flare.pack(address, out, append=True, on_duplicate="replace", **own)
    kept = pack(source, [0, 2, 3, 4, 5], tmp_path / "kept", tmp_path / "expected")
    added = pack(source, [1, 6], tmp_path / "new", tmp_path / "added")
    assert members(out) == members(kept) + members(added)
    assert content(out) == content(kept) + content(added)
    assert facts(out) == facts(kept)
    assert list(flare.verify(str(out))) == []


def test_files_of_another_extension_are_appended_with_the_extension_of_the_dataset(tmp_path):
    out = pack("images", range(3), tmp_path / "all", tmp_path / "out")
    make_files(tmp_path / "more", [3], "mixed")
    flare.pack(tmp_path / "more", out, append=True, columns="image")
    assert [name for name, _ in members(out)][3:] == ["dog/3.png"]
    assert content(out)[3]["image"] == JPEG % 3


def test_a_dropped_extension_column_leaves_members_that_are_named_after_their_column(tmp_path):
    out = pack("mixed", range(4), tmp_path / "all", tmp_path / "out")
    before = content(out)
    flare.drop(out, drop_column="image_extension")
    assert content(out) == [
        {name: value for name, value in one.items() if name != "image_extension"} for one in before
    ]
    assert [name for name, _ in members(out)][:3] == ["cat/0.image.jpg", "cat/0.json", "cat/0.txt"]


@pytest.mark.parametrize("format", ["mds", "tfrecord", "parquet", "granular"])
def test_a_change_keeps_the_extensions_of_files_in_every_format(format, tmp_path):
    out = pack("mixed", range(6), tmp_path / "all", tmp_path / "out", format=format, shard_rows=2)
    more = make_files(tmp_path / "more", [6], "mixed")
    make_files(tmp_path / "more", [7], "mixed")
    flare.pack(more, out, append=True)
    flare.drop(out, rows="0")
    flare.compact(out)
    expected = pack("mixed", range(1, 8), tmp_path / "kept", tmp_path / "expected", format=format)
    assert content(out) == content(expected)
    assert facts(out) == facts(expected)


def test_shards_that_lack_the_listed_columns_are_refused_before_the_commit(tmp_path):
    with Writer(tmp_path / "out", format="webdataset", columns={"image": "png"}) as writer:
        writer.write({"image": PNG % 0})
    (stream,) = playlists.read(locate(str(tmp_path / "out/playlist.yaml"))).streams
    check_opens(stream, stream.columns)
    listed = tuple(replace(one, extension="png") for one in stream.columns)
    with pytest.raises(IntegrityError, match=r"unexpected extension \.image\.png"):
        check_opens(stream, listed)


@pytest.mark.parametrize("format", ["mds", "webdataset", "tfrecord", "granular"])
def test_a_folder_with_json_files_is_appended(format, tmp_path):
    out = pack("mixed", range(3), tmp_path / "all", tmp_path / "out", format=format)
    flare.pack(make_files(tmp_path / "more", [3, 4], "mixed"), out, append=True)
    assert [one["json"] for one in content(out)] == [f'{{"n": {i}}}' for i in range(5)]


@pytest.mark.parametrize("dry_run", [True, False])
def test_tars_that_repeat_a_key_are_not_joined(dry_run, tmp_path, capsys):
    out = pack("images", range(5), tmp_path / "all", tmp_path / "out", shard_rows=2)
    flare.pack(tmp_path / "all/files", out, append=True)  # the same keys in one tar
    flare.pack(make_files(tmp_path / "more", [5, 6], "images"), out, append=True)
    before = content(out)
    assert main(["compact", str(out), *(["-n"] if dry_run else [])]) == 0
    count = "would join 5 shards" if dry_run else "joined 5 shards"
    assert count in capsys.readouterr().out
    assert content(out) == before
    if not dry_run:
        (stream,) = playlists.read(locate(str(out / "playlist.yaml"))).streams
        assert stream.rows.tolist() == [5, 7]
        assert list(flare.verify(str(out))) == []
        assert main(["compact", str(out)]) == 0
        note = "not joined: 2 shards with keys that occur in adjacent shards\n"
        assert note in capsys.readouterr().err
        assert [one.number for one in flare.log(out)] == [1, 2, 3, 4]
