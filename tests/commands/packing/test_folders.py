"""Folders of media: columns of categories, original extensions, class folders and metadata in every
format.
"""

import io
import json
import shutil
import tarfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
from PIL import Image
from pyarrow import csv

from flarecli import commands, read
from flarecli.__main__ import main
from flarecli.errors import FormatError, UnsafeError, UsageError, ValueFitError
from flarecli.formats import find
from flarecli.model import Chunk
from flarecli.storage import locate
from tests.commands.packing.note_collector import NoteCollector


def picture(kind: str, width: int = 4) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, 3), "teal").save(out, kind)
    return out.getvalue()


PHOTOS = {
    "cat/1.jpg": picture("JPEG"),
    "cat/1.txt": b"one",
    "cat/2.JPEG": picture("JPEG", 5),
    "cat/2.md": b"two",
    "dog/1.png": picture("PNG"),
    "dog/1.txt": b"three",
    "dog/2.PNG": picture("PNG", 7),
    "dog/2.txt": b"four \xc3\xa9",
}
KEYS = ["cat/1", "cat/2", "dog/1", "dog/2"]


def write(folder: Path, files: dict[str, bytes]) -> str:
    for name, data in files.items():
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        (folder / name).write_bytes(data)
    return str(folder)


@pytest.fixture
def photos(tmp_path) -> str:
    return write(tmp_path / "photos", PHOTOS)


def unpacked(source, to: Path, **options) -> dict[str, bytes]:
    """Return the files of an unpack by name, without the index."""
    commands.unpack(str(source), str(to), index="none", **options)
    return {
        str(path.relative_to(to)): path.read_bytes() for path in to.rglob("*") if path.is_file()
    }


def rows_of(address) -> list[dict]:
    return read.open(str(address)).to_arrow().to_pylist()


@pytest.mark.parametrize("format", ["mds", "granular", "granular-refs", "tfrecord", "webdataset"])
def test_the_original_files_come_back_from_every_format(photos, tmp_path, format):
    done = commands.pack(photos, str(tmp_path / "out"), format=format)
    encodings = {column.name: column.encoding for column in done.columns}
    assert (encodings["image"], encodings["text"]) == ("bytes", "str")
    assert unpacked(tmp_path / "out", tmp_path / "files") == PHOTOS
    assert not commands.verify(str(tmp_path / "out"), decode=True).findings
    (rows, data) = (rows_of(tmp_path / "out"), read.open(str(tmp_path / "out")))
    assert [row["image"] for row in rows] == [
        PHOTOS[f"{key}.{row['image_extension']}"] for key, row in zip(KEYS, rows, strict=True)
    ]
    assert [row["image_extension"] for row in rows] == ["jpg", "JPEG", "png", "PNG"]
    assert [row["text_extension"] for row in rows] == ["txt", "md", "txt", "txt"]
    stored = data.rows(range(4))
    assert [data[i]["text"] for i in range(4)] == [row["text"] for row in rows]
    assert [row["image_extension"] for row in stored] == [b"jpg", b"JPEG", b"png", b"PNG"]


def test_the_original_files_come_back_after_conversions(photos, tmp_path):
    steps = [("mds", None), ("webdataset", "key"), ("tfrecord", None), ("granular", None)]
    source = photos
    for format, key in steps:
        commands.pack(source, str(tmp_path / format), format=format, key=key)
        source = str(tmp_path / format)
    assert unpacked(source, tmp_path / "files") == PHOTOS


def test_members_of_a_tar_have_the_names_of_the_files(photos, tmp_path):
    commands.pack(photos, str(tmp_path / "out"), format="webdataset", folder_column="label")
    with tarfile.open(tmp_path / "out/00000.tar") as tar:
        members = {one.name: tar.extractfile(one).read() for one in tar}
    labels = {f"{key}.label.txt": key.partition("/")[0].encode() for key in KEYS}
    assert members == PHOTOS | labels
    # without the playlist, the columns are the extensions in the tar
    webdataset = find("webdataset")
    shard = webdataset.open_shard(Chunk(locate(str(tmp_path / "out/00000.tar"))))
    names = [column.name for column in shard.columns]
    assert names == ["__key__", "jpg", "txt", "label.txt", "jpeg", "md", "png"]
    (tmp_path / "out/00000.idx.json").unlink()
    assert rows_of(tmp_path / "out")[3] == {
        "__key__": "dog/2",
        "image": PHOTOS["dog/2.PNG"],
        "text": "four é",
        "label": "dog",
        "image_extension": "PNG",
        "text_extension": "txt",
    }


def test_a_single_extension_needs_no_column(tmp_path):
    files = {"a.JPG": picture("JPEG"), "a.wav": b"x", "b.JPG": picture("JPEG", 9), "b.wav": b"y"}
    folder = write(tmp_path / "in", files)
    for format in ("mds", "webdataset"):
        out = tmp_path / format
        done = commands.pack(folder, str(out), format=format)
        names = {column.name: (column.encoding, column.extension) for column in done.columns}
        key = "key" if format == "mds" else "__key__"
        assert names == {key: ("str", ""), "audio": ("bytes", "wav"), "image": ("jpeg", "JPG")}
        assert read.open(str(out)).columns[1].extension == "wav"
        assert unpacked(out, tmp_path / f"{format}.files") == files
    with tarfile.open(tmp_path / "webdataset/00000.tar") as tar:
        assert sorted(tar.getnames()) == sorted(files)


def test_a_format_of_one_column_derives_the_extension_from_the_content(photos, tmp_path):
    commands.pack(photos, str(tmp_path / "out"), format="ffrecord", columns=["image"])
    files = unpacked(tmp_path / "out", tmp_path / "files")
    assert sorted(files) == ["000000.jpg", "000001.jpg", "000002.png", "000003.png"]


def test_selected_columns_keep_their_extensions(photos, tmp_path):
    commands.pack(photos, str(tmp_path / "out"), columns=["image", "key"])
    assert [sorted(row) for row in rows_of(tmp_path / "out")[:1]] == [
        ["image", "image_extension", "key"]
    ]
    images = {name: data for name, data in PHOTOS.items() if not name.endswith(("txt", "md"))}
    assert unpacked(tmp_path / "out", tmp_path / "files") == images
    commands.pack(photos, str(tmp_path / "all"))
    assert unpacked(tmp_path / "all", tmp_path / "only", columns=["image"]) == images
    renamed = unpacked(tmp_path / "all", tmp_path / "n", name="x/{row}.{ext}", columns=["text"])
    assert sorted(renamed) == ["x/000000.txt", "x/000001.md", "x/000002.txt", "x/000003.txt"]


def test_rows_of_a_folder_are_selected_like_rows_of_a_table(photos, tmp_path):
    def packed(name, **options):
        commands.pack(photos, str(tmp_path / name), folder_column="label", **options)
        return [row["key"] for row in rows_of(tmp_path / name)]

    assert packed("where", where="label = 'dog' and image_extension = 'PNG'") == ["dog/2"]
    assert packed("content", where="text = 'two'") == ["cat/2"]
    assert packed("limit", limit=3) == KEYS[:3]
    assert sorted(packed("shuffle", shuffle=5)) == KEYS
    assert packed("parts", part_rows=1) == KEYS
    assert unpacked(tmp_path / "parts", tmp_path / "files") == PHOTOS
    would = commands.pack(photos, str(tmp_path / "x"), dry_run=True, folder_column="label")
    assert (would.rows, [column.name for column in would.columns]) == (
        4,
        ["image", "image_extension", "key", "label", "text", "text_extension"],
    )
    assert commands.pack(photos, str(tmp_path / "key"), key="key", on_duplicate="first").rows == 4


def test_dots_in_keys_become_underscores_in_a_tar(tmp_path):
    folder = write(
        tmp_path / "in", {f"d.x/IMG_{year}.01.01.jpg": picture("JPEG") for year in (2023, 2024)}
    )
    for options in ({}, {"part_rows": 1}):
        out, notes = tmp_path / f"out{len(options)}", NoteCollector()
        commands.pack(folder, str(out), format="webdataset", progress=notes, **options)
        assert [row["__key__"] for row in rows_of(out)] == [
            "d.x/IMG_2023_01_01",
            "d.x/IMG_2024_01_01",
        ]
        assert notes.notes == [
            "dots in keys are stored as '_', because the extension starts at the first dot"
        ]
    write(tmp_path / "in", {"d.x/IMG_2024_01.01.jpg": b"", "d.x/noext": b""})
    for options in ({}, {"part_rows": 1}, {"on_error": "skip"}):
        with pytest.raises(FormatError) as caught:
            commands.pack(
                folder, str(tmp_path / "no"), format="webdataset", overwrite=True, **options
            )
        assert str(caught.value) == (
            f"{folder}: two keys that differ only in '.' and '_' are both stored as 'd.x/IMG_2024_01_01'"
        )


def test_incomplete_rows_fail_or_have_nulls(tmp_path, capsys):
    folder = write(tmp_path / "in", {"a.jpg": picture("JPEG"), "b.jpg": b"x", "a.npy": b"1"})
    write(tmp_path / "in", {"b.txt": b"b", "a.txt": b"a", "c.jpg": b"c"})
    out = str(tmp_path / "out")
    assert main(["pack", folder, out, "-c", "image,text"]) == 4
    assert capsys.readouterr().err == (
        f"error: {folder}[2]: c: no text file for this key\n"
        "hint: Complete the rows, use --allow-missing to store nulls, or use --on-error skip to omit"
        " such rows and list them in failed.jsonl.\n"
    )
    commands.pack(folder, out, format="webdataset", allow_missing=True, overwrite=True)
    assert [(row["__key__"], row["text"], row["npy"]) for row in rows_of(out)] == [
        ("a", "a", b"1"),
        ("b", "b", None),
        ("c", None, None),
    ]
    assert sorted(unpacked(out, tmp_path / "files")) == [
        "a.jpg", "a.npy", "a.txt", "b.jpg", "b.txt", "c.jpg",
    ]  # fmt: skip


def test_files_without_a_class_folder_fail(tmp_path):
    folder = write(tmp_path / "in", {"a.jpg": picture("JPEG"), "cat/b.jpg": picture("JPEG")})
    with pytest.raises(FormatError) as caught:
        commands.pack(folder, str(tmp_path / "out"), folder_column="label")
    assert (
        str(caught.value) == f"{folder}[0]: a: not in a folder; column 'label' needs a folder name"
    )
    with pytest.raises(UsageError) as usage:
        commands.pack(f"{folder}/*.jpg", str(tmp_path / "x"), folder_column="label")
    assert usage.value.message == "--folder-column: the source is not a folder of files"


@pytest.mark.parametrize("suffix", ["csv", "jsonl", "parquet"])
def test_metadata_files_add_columns(photos, tmp_path, suffix):
    for folder, names in {"cat": ["1.jpg", "2.JPEG"], "dog": ["1.png", "2.PNG"]}.items():
        table = pa.table({"file_name": names, "caption": ["first", "second"], "n": [1, 2]})
        _save(table, Path(photos) / folder / f"metadata.{suffix}")
    done = commands.pack(photos, str(tmp_path / "out"), folder_column="label")
    assert done.rows == 4
    assert [
        (row["key"], row["label"], row["caption"], row["n"]) for row in rows_of(tmp_path / "out")
    ] == [
        ("cat/1", "cat", "first", 1),
        ("cat/2", "cat", "second", 2),
        ("dog/1", "dog", "first", 1),
        ("dog/2", "dog", "second", 2),
    ]
    files = unpacked(tmp_path / "out", tmp_path / "files", columns=["image"])
    assert sorted(files) == ["cat/1.jpg", "cat/2.JPEG", "dog/1.png", "dog/2.PNG"]


def _save(table: pa.Table, at: Path) -> None:
    if at.suffix == ".csv":
        csv.write_csv(table, at)
    elif at.suffix == ".jsonl":
        at.write_text("".join(f"{json.dumps(row)}\n" for row in table.to_pylist()))
    else:
        pq.write_table(table, at)


def test_metadata_that_does_not_match_is_listed_by_name(photos, tmp_path):
    lines = ["file_name,caption", "1.png,one", "../cat/1.jpg,x", "9.png,none", "1.png,again", ""]
    (Path(photos) / "dog/metadata.csv").write_text("\n".join(lines))
    done = commands.pack(photos, str(tmp_path / "out"), on_error="skip")
    assert (done.rows, done.reasons) == (1, {"incomplete": 3, "metadata": 2, "unsafe": 1})
    lines = (tmp_path / "out/failed.jsonl").read_text().splitlines()
    missing = "no row in dog/metadata.csv for this key"
    assert [(one["key"], one["reason"]) for one in map(json.loads, lines)] == [
        ("cat/1", missing),
        ("cat/2", missing),
        ("dog/2", missing),
        ("dog/metadata.csv[1]", "file_name '../cat/1.jpg' points outside the folder"),
        ("dog/metadata.csv[3]", "file_name '1.png' is also in dog/metadata.csv[0]"),
        ("dog/metadata.csv[2]", "no data file 'dog/9.png'"),
    ]
    done = commands.pack(
        photos, str(tmp_path / "w"), where="caption = 'one'", columns=["image", "caption"]
    )
    assert (done.rows, done.failed) == (1, 0)


def test_only_used_metadata_is_read(photos, tmp_path):
    (Path(photos) / "cat/metadata.csv").write_text("file_name,caption\n1.jpg,one\n9.jpg,none\n")
    for name, options in {
        "one": {"part_rows": 2},
        "two": {"where": "key <> 'x'"},
        "three": {"key": "key"},
    }.items():
        out = str(tmp_path / name)
        done = commands.pack(photos, out, columns=["image"], on_error="skip", **options)
        assert (done.rows, done.failed) == (4, 0)
    for name, options in {
        "five": {"columns": ["image", "caption"]},
        "six": {"columns": ["image"], "where": "caption = 'one' OR caption IS NULL"},
        "seven": {"columns": ["image"], "key": "caption"},
    }.items():
        done = commands.pack(photos, str(tmp_path / name), on_error="skip", **options)
        assert (done.rows, done.failed) == (1, 4)


def test_the_column_of_folders_is_packed_with_selected_columns(photos, tmp_path):
    commands.pack(photos, str(tmp_path / "out"), columns=["image"], folder_column="label")
    assert [row["label"] for row in rows_of(tmp_path / "out")] == ["cat", "cat", "dog", "dog"]


def test_an_unfinished_pack_of_an_earlier_version_is_rejected(tmp_path):
    folder = write(tmp_path / "in", {"a.jpg": picture("JPEG"), "b.jpg": b"x", "b.txt": b""})
    write(tmp_path / "in", {"a.txt": b"", "c.jpg": b"c"})
    out = tmp_path / "out"
    with pytest.raises(FormatError):
        commands.pack(folder, str(out), shard_rows=1)
    journal = out / ".flare/journal"
    head = journal.read_bytes().splitlines()[0]
    listing = "".join(f"{name}\0{(tmp_path / 'in' / name).stat().st_size}\n" for name in sorted(
        path.name for path in (tmp_path / "in").iterdir()
    ))  # fmt: skip
    old = {**json.loads(head), "source": xxhash.xxh3_128_hexdigest(listing.encode())}
    columns = {"columns": [["jpg", "jpeg"], ["key", "str"], ["txt", "str"]]}
    journal.write_bytes(b"".join(json.dumps(one).encode() + b"\n" for one in (old, columns)))
    with pytest.raises(UsageError) as caught:
        commands.pack(folder, str(out), shard_rows=1, resume=True)
    assert caught.value.message == (
        "the unfinished pack was started with another source, or before the source was changed"
    )


def test_extensions_in_data_are_not_trusted(tmp_path):
    folder = write(tmp_path / "in", {"a.jpg": picture("JPEG"), "b.png": picture("PNG")})
    out = tmp_path / "out"
    commands.pack(folder, str(out))
    shard = out / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes().replace(b"png" + b"b", b"/xx" + b"b"))
    with pytest.raises(UnsafeError) as caught:
        commands.unpack(str(out), str(tmp_path / "files"))
    assert caught.value.message == "'/xx' is not a file extension"
    with pytest.raises(ValueFitError) as value:
        commands.pack(str(out), str(tmp_path / "tar"), format="webdataset", key="key")
    assert value.value.message.endswith("'/xx' cannot be the extension of column 'image'")
    playlist = out / "playlist.yaml"
    text = playlist.read_text().replace('{image: "{image_extension}"}', "{image: ../x}")
    playlist.write_text(text[: text.index("# flare")])
    with pytest.raises(FormatError) as caught:
        read.open(str(out))
    assert caught.value.message == "column 'image': invalid extension '../x'"


def test_a_list_of_files_of_several_types_is_bytes(photos, tmp_path, monkeypatch):
    names = [name for name in sorted(PHOTOS) if name.endswith((".jpg", ".png", ".PNG"))]
    monkeypatch.chdir(photos)
    (tmp_path / "list").write_text("\n".join(names))
    with open(tmp_path / "list", "rb") as file:
        monkeypatch.setattr("sys.stdin", io.TextIOWrapper(file))
        done = commands.pack("-", str(tmp_path / "out"))
    assert {column.name: column.encoding for column in done.columns} == {
        "data": "bytes",
        "name": "str",
    }
    assert [row["data"] for row in rows_of(tmp_path / "out")] == [PHOTOS[name] for name in names]


def test_concatenated_datasets_keep_only_equal_extensions(tmp_path):
    for name, extension in (("a", "JPG"), ("b", "jpg"), ("c", "jpeg")):
        files = {f"{name}.{extension}": picture("JPEG"), f"{name}.md": b"x", f"{name}.npy": b"1"}
        commands.pack(write(tmp_path / name, files), str(tmp_path / f"{name}.out"))
    a, b, c = (str(tmp_path / f"{name}.out") for name in "abc")
    commands.playlist([a, b], out=str(tmp_path / "set.yaml"))
    for source in ([a, b], str(tmp_path / "set.yaml")):
        commands.unpack(source, str(tmp_path / "ab"), index="none", overwrite=True)
        assert sorted(path.name for path in (tmp_path / "ab").iterdir()) == [
            "a.jpg", "a.md", "a.npy", "b.jpg", "b.md", "b.npy",
        ]  # fmt: skip
        shutil.rmtree(tmp_path / "ab")
    commands.unpack([b, c], str(tmp_path / "bc"), index="none", columns=["image"])
    # the extension is unknown, and derived from the content
    assert sorted(path.name for path in (tmp_path / "bc").iterdir()) == ["b.jpg", "c.jpg"]
