"""Folders: the files of a row, and skipped files. Each data file is used exactly once."""

import json
import os
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import commands
from flarecli.errors import (
    FormatError,
    MissingError,
    ReachError,
    UsageError,
)
from flarecli.ingest import data_among, filled, folder, folder_metadata, open_folder
from flarecli.ingest.folder import Folder, FolderOptions, groups
from flarecli.storage import Entry, Location
from flarecli.storage.memory import MemoryStore
from tests.ingest.samples import error_of, images, rows_of, write_files
from tests.properties import examples


def opened(names, columns=None, **options) -> Folder:
    files = names if isinstance(names, dict) else dict.fromkeys(names, b"x")
    return Folder(Location(MemoryStore(files)), FolderOptions(columns, **options))


def keys(names) -> dict[str, set[str]]:
    """Return key -> columns for which the key has a file."""
    found = opened(names)
    return {
        row["key"]: {name for name in found.files if row[name] is not None}
        for row in rows_of(found)
    }


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (
            ["IMG_2024.01.01.jpg", "IMG_2024.01.02.jpg"],
            {"IMG_2024.01.01": {"image"}, "IMG_2024.01.02": {"image"}},
        ),
        (
            ["a.b/1.jpg", "a.b/1.txt", "a.b/2.jpg", "a.b/2.txt"],
            {"a.b/1": {"image", "text"}, "a.b/2": {"image", "text"}},
        ),
        (
            ["1.jpg", "1.seg.png", "2.jpg", "2.seg.png", "3.jpg", "3.seg.png"],
            {"1": {"image", "seg.png"}, "2": {"image", "seg.png"}, "3": {"image", "seg.png"}},
        ),
        (  # dots in the key, and an extension of two parts
            ["v1.2.jpg", "v1.2.seg.png", "v1.3.jpg", "v1.3.seg.png"],
            {"v1.2": {"image", "seg.png"}, "v1.3": {"image", "seg.png"}},
        ),
        (  # no `John.jpg`: the dot is part of the name
            ["John.Smith.jpg", "John.Doe.jpg"],
            {"John.Smith": {"image"}, "John.Doe": {"image"}},
        ),
        (  # half of the keys are not most
            ["1.seg.png", "2.png", "2.seg.png"],
            {"1.seg": {"image"}, "2": {"image"}, "2.seg": {"image"}},
        ),
        (  # a part that starts with a digit belongs to the key
            ["1.jpg", "1.2x.jpg", "2.jpg", "2.2x.jpg"],
            {"1": {"image"}, "1.2x": {"image"}, "2": {"image"}, "2.2x": {"image"}},
        ),
        (
            ["John.Smith.jpg", "John.Smith.meta.json", "Jane.Doe.jpg", "Jane.Doe.meta.json"],
            {"John.Smith": {"image", "meta.json"}, "Jane.Doe": {"image", "meta.json"}},
        ),
        (
            ["1.JPG", "1.Meta.JSON"],
            {"1": {"image", "meta.json"}},
        ),
    ],
)
def test_names_are_split_at_the_last_dot_or_before_a_compound_extension(names, wanted):
    assert keys(names) == wanted


PART = st.text(st.sampled_from("ab1"), min_size=1, max_size=2)
NAME = st.tuples(
    st.sampled_from(["", "f/", "a.b/"]), st.lists(PART, min_size=1, max_size=4).map(".".join)
).map("".join)


def model(names: set[str]) -> dict[str, str]:
    """Return name -> key by the documented rule, computed from all names."""

    def splits(name):
        path, slash, last = name.rpartition("/")
        parts = last.split(".")
        for at in range(1, len(parts) - 1):
            if all(part[0].isalpha() for part in parts[at:-1]):
                yield f"{path}{slash}{'.'.join(parts[:at])}", ".".join(parts[at:])

    def has_plain(key):
        return any(
            name.startswith(f"{key}.") and not set("./") & set(name[len(key) + 1 :])
            for name in names
        )

    uses: dict[str, list[bool]] = {}
    for name in names:
        for key, extension in splits(name):
            uses.setdefault(extension, []).append(has_plain(key))
    compounds = {one for one, plain in uses.items() if 2 * sum(plain) > len(plain)}
    return {
        name: next(
            (key for key, extension in splits(name) if extension in compounds),
            name if "." not in name.rpartition("/")[2] else name.rpartition(".")[0],
        )
        for name in names
    }


@settings(max_examples=examples(300), deadline=None)
@given(st.sets(NAME, min_size=1, max_size=14))
def test_every_file_is_in_exactly_one_row(names):
    wanted = model(names)
    if all(key == name for name, key in wanted.items()):
        with pytest.raises(FormatError, match="^no data file has an extension(?m:$)"):
            opened(names)
        return
    found = opened(names)
    rows = rows_of(found)
    assert len(rows) == found.rows
    used = [
        (row[name], row["key"]) for row in rows for name in found.files if row[name] is not None
    ]
    alone = [row["key"] for row in rows if all(row[name] is None for name in found.files)]
    assert sorted([name for name, _ in used] + alone) == sorted(names)
    assert all(wanted[name] == key for name, key in used)


def test_skipped_files_are_counted_and_named():
    found = opened(
        [
            "a.jpg", "b.jpg", ".DS_Store", ".git/x.jpg", "Thumbs.db", "x/Desktop.ini",
            "README.md", "x/LICENSE", "x/license.txt", "readme.jpg", "readme.csv",
        ]
    )  # fmt: skip
    assert found.notes == (
        "skipped 2 hidden files: .DS_Store, .git/x.jpg",
        "skipped 3 README or LICENSE files: README.md, x/LICENSE, x/license.txt",
        "skipped 2 desktop files: Thumbs.db, x/Desktop.ini",
    )
    assert [row["key"] for row in rows_of(found)] == ["a", "b", "readme", "readme.csv"]


def test_a_readme_is_data_among_texts():
    found = opened(["README.md", "a.md", "LICENSE.md", "desktop.ini"])
    assert found.notes == ("skipped 1 desktop file: desktop.ini",)
    assert rows_of(found) == [
        {"key": "LICENSE", "text": "LICENSE.md"},
        {"key": "README", "text": "README.md"},
        {"key": "a", "text": "a.md"},
    ]


def test_a_rare_extension_is_not_a_column():
    names = [f"{n}.{kind}" for n in range(9) for kind in ("jpg", "txt")]
    found = opened([*names, "3.npy"])
    assert found.files == ["image", "text"]
    assert [row for row in rows_of(found) if None in row.values()] == [
        {"key": "3.npy", "image": None, "text": None}
    ]


def test_a_wildcard_skips_files_that_are_not_data():
    matched = ["in/.a.jpg", "in/README.md", "in/Thumbs.db", "in/a.jpg", "in/b.jpg"]
    assert data_among(matched) == (
        ["in/.a.jpg", "in/a.jpg", "in/b.jpg"],
        [
            "skipped 1 README or LICENSE file: in/README.md",
            "skipped 1 desktop file: in/Thumbs.db",
        ],
    )
    assert data_among(["README.md", "a.md"]) == (["README.md", "a.md"], [])


def test_last_names_in_file_names_are_not_extensions(monkeypatch):
    monkeypatch.setattr(folder, "MAX_COMPOUNDS", 5)
    assert keys([f"First.L{n:02}.jpg" for n in range(40)]) == {
        f"First.L{n:02}": {"image"} for n in range(40)
    }
    with pytest.raises(FormatError) as caught:
        opened(["First.jpg", *(f"First.L{n:02}.jpg" for n in range(40))])
    assert caught.value.message == "more than 5 compound extensions"


NAME = st.lists(
    st.text(st.sampled_from("ab.-"), min_size=1, max_size=4).filter(lambda part: part.strip(".")),
    min_size=1,
    max_size=3,
).map("/".join)


@settings(max_examples=examples(200), deadline=None)
@given(st.sets(NAME, max_size=12))
def test_files_are_grouped_by_key(names):
    wanted: dict[str, dict[str, str]] = {}
    alone: list[str] = []
    for name in names:
        stem, _, extension = name.rpartition(".")
        if any(part.startswith(".") for part in name.split("/")):
            continue
        if not extension or "/" in extension or not stem:
            alone.append(name)
        else:
            wanted.setdefault(stem, {})[extension] = name
    found = list(groups(Entry(name, 1) for name in sorted(names, key=str.encode)))
    assert {group.key: group.files for group in found if group.files} == wanted
    assert sorted(group.key for group in found if not group.files) == sorted(alone)
    assert len(found) == len(wanted) + len(alone)


def test_files_with_the_same_key_are_one_row(tmp_path):
    write_files(tmp_path, images())
    found = open_folder(str(tmp_path))
    assert (found.schema.names, found.rows, found.links, found.key, found.notes) == (
        ["key", "image", "meta.json", "text"],
        6,
        ("image", "meta.json", "text"),
        "key",
        (),
    )
    ((batch, flaws),) = found.filled(found.batches(), found.links)
    assert flaws == []
    assert batch.schema.equals(filled(found.schema, found.links), check_metadata=True)
    assert batch.to_pylist() == [
        {
            "key": f"{folder}/{n:03}",
            "image": f"{folder} {n} jpg".encode(),
            "meta.json": f"{folder} {n} meta.json".encode(),
            "text": f"{folder} {n} txt".encode(),
        }
        for folder in "ab"
        for n in range(3)
    ]
    assert {
        name: (batch.schema.field(name).metadata or {}).get(b"encoding")
        for name in batch.schema.names
    } == {
        "key": None,
        "image": None,
        "meta.json": b"json",
        "text": b"str",
    }


def test_only_requested_columns_determine_the_rows_and_are_read(tmp_path):
    write_files(tmp_path, {**images(2), "c/0.txt": "alone", "d/0.png": "other"})
    found = open_folder(str(tmp_path), columns=["text", "key"])
    assert (found.schema.names, found.rows) == (["key", "text"], 5)
    assert found.notes == ("skipped 1 key without text: d/0",)


def test_keys_without_the_requested_columns_are_counted_and_named(tmp_path):
    files = {
        **images(4),
        "README": "x",
        ".hidden/x.jpg": "x",
        "a/.DS_Store": "x",
        "c.txt": "x",
        "d.txt": "x",
        "A.JPG": "x",
    }
    del files["b/002.txt"]
    write_files(tmp_path, files)
    found = open_folder(str(tmp_path))
    assert found.notes == (
        "skipped 2 hidden files: .hidden/x.jpg, a/.DS_Store",
        "skipped 1 README or LICENSE file: README",
    )
    assert [row["key"] for row in rows_of(found) if None in row.values()] == [
        "A",
        "b/002",
        "c",
        "d",
    ]
    assert rows_of(found)[0] == {
        "key": "A",
        "image": "A.JPG",
        "meta.json": None,
        "text": None,
        "image_extension": "JPG",
    }


@pytest.mark.parametrize(
    ("files", "columns", "message", "hint"),
    [
        (
            {"README": "x", "Thumbs.db": "x"},
            None,
            "d: no data file has an extension",
            "Found 1 desktop file: Thumbs.db; 1 file without an extension: README.",
        ),
        (
            {"a.jpg": "x", "a.JPG": "x"},
            None,
            "d: a.JPG and a.jpg have the same key 'a' and extension 'jpg'",
            "Rename one of the files.",
        ),
        (
            {"a.jpg": "x", "a.txt": "x"},
            ["png"],
            "d: no column 'png'",
            "Choose from image, text.",
        ),
        (
            {"a.jpg": "x", "a.txt": "x"},
            ["jpg"],
            "d: no column 'jpg'",
            "For .jpg files, use column 'image'.",
        ),
        (
            {"a.jpg": "x", "metadata.csv": "file_name,image\na.jpg,1\n"},
            None,
            "d/metadata.csv: column 'image' has the same name as a column that is created from the "
            "files",
            "Rename the column in the metadata.",
        ),
        (
            {
                "a.jpg": "x",
                "metadata.csv": "file_name,n\na.jpg,1\n",
                "metadata.jsonl": '{"file_name": "a.jpg", "n": 1}',
            },
            None,
            "d: metadata.csv and metadata.jsonl describe the same folder",
            "Delete one of the files.",
        ),
        (
            {"a.jpg": "x", "metadata.jsonl": '{"file_name": 3}'},
            None,
            "d/metadata.jsonl: column 'file_name' is int64, not text",
            "",
        ),
    ],
)
def test_a_folder_without_rows_is_reported(tmp_path, files, columns, message, hint):
    write_files(tmp_path / "d", files)
    assert error_of(tmp_path, lambda: open_folder(str(tmp_path / "d"), columns=columns)) == (
        message,
        hint,
    )


def test_a_folder_that_changes_while_it_is_read_is_an_error(tmp_path):
    write_files(tmp_path, images())
    found = open_folder(str(tmp_path))
    (tmp_path / "b/new.jpg").write_text("x")
    message, hint = error_of(tmp_path, lambda: rows_of(found))
    assert (message, hint) == (
        f"{tmp_path}: the folder changed while it was being read",
        "Run the command again when no other process is writing to the folder.",
    )


def test_a_column_may_be_called_key(tmp_path):
    write_files(tmp_path, {"a.key": "1", "a.jpg": "2"})
    found = open_folder(str(tmp_path))
    assert (found.key, rows_of(found)) == (
        "__key__",
        [{"__key__": "a", "image": "a.jpg", "key": "a.key"}],
    )


def test_the_checksum_changes_with_the_folder(tmp_path):
    write_files(tmp_path, images())
    before = open_folder(str(tmp_path)).sum()
    assert open_folder(str(tmp_path)).sum() == before
    (tmp_path / "a/000.jpg").write_text("longer than it was")
    assert open_folder(str(tmp_path)).sum() != before


def test_missing_folders_and_addresses_that_cannot_be_listed_are_errors(tmp_path, web):
    with pytest.raises(MissingError):
        open_folder(str(tmp_path / "no") + "/")
    with pytest.raises(UsageError):
        open_folder(web.url("/d/"))


# -- columns of categories


def extensions(names) -> tuple[dict[str, str], list[dict]]:
    """Return the extensions of the columns, and the rows."""
    found = opened(names)
    return found.extensions, rows_of(found)


def test_extensions_of_one_category_are_one_column():
    assert extensions(["a.jpg", "b.PNG", "c.webp"]) == (
        {"image": "{image_extension}"},
        [
            {"key": "a", "image": "a.jpg", "image_extension": "jpg"},
            {"key": "b", "image": "b.PNG", "image_extension": "PNG"},
            {"key": "c", "image": "c.webp", "image_extension": "webp"},
        ],
    )
    for category, names in {
        "image": ["a.jpeg", "b.jpeg"],
        "audio": ["a.wav", "b.flac", "c.mp3"],
        "video": ["a.mp4", "b.mov"],
        "text": ["a.txt", "b.md"],
        "json": ["a.json", "b.json"],
        "npy": ["a.npy"],
    }.items():
        assert opened(names).files == [category]


def test_a_single_extension_is_recorded_without_a_column():
    names = ["a.JPG", "a.seg.PNG", "a.txt", "b.JPG", "b.seg.PNG", "b.txt"]
    found = opened(names)
    assert found.extensions == {"image": "JPG", "seg.png": "seg.PNG", "text": "txt"}
    assert found.schema.names == ["key", "image", "seg.png", "text"]


def test_two_files_of_a_category_with_one_key_are_separate_columns():
    found = opened(["a.jpg", "a.png", "b.jpg", "b.png", "a.txt", "b.txt"])
    assert found.extensions == {"jpg": "jpg", "png": "png", "text": "txt"}
    assert found.notes == (
        "a has jpg and png files, so jpg and png are separate columns, not image",
    )
    assert rows_of(found)[0] == {"key": "a", "jpg": "a.jpg", "png": "a.png", "text": "a.txt"}


def test_a_column_of_several_file_types_is_bytes():
    assert opened(["a.jpg", "b.jpeg"]).encodings == {}
    assert opened(["a.jpg", "b.png"]).encodings == {"image": "bytes"}
    assert opened(["a.txt", "b.md", "a.json", "b.json"]).encodings == {
        "text": "str",
        "json": "json",
    }


def test_an_extension_that_a_name_must_not_contain_is_in_a_column():
    assert opened(["a.{x}", "b.{x}"]).extensions == {"{x}": "{{x}_extension}"}


def test_the_first_folder_is_a_column():
    found = opened(["cat/1.jpg", "dog/x/1.jpg"], folder_column="label")
    assert rows_of(found) == [
        {"key": "cat/1", "image": "cat/1.jpg", "label": "cat"},
        {"key": "dog/x/1", "image": "dog/x/1.jpg", "label": "dog"},
    ]
    found = opened(["1.jpg", "dog/1.jpg"], folder_column="label")
    assert rows_of(found)[0] == {"key": "1", "image": None, "label": None}
    message = "not in a folder; column 'label' needs a folder name"
    assert found.flaw("image", True, "1") == ("incomplete", message)
    found = opened(["1.jpg", "dog/1.jpg"], folder_column="label", allow_missing=True)
    assert rows_of(found)[0] == {"key": "1", "image": "1.jpg", "label": None}
    with pytest.raises(UsageError) as caught:
        opened(["dog/1.jpg"], folder_column="image")
    assert caught.value.message == "--folder-column: column 'image' already exists"


def test_incomplete_rows_are_valid_if_files_may_be_missing():
    names = ["a.jpg", "b.jpg", "c.jpg", "c.npy", "README.md"]
    found = opened(names)
    assert found.files == ["image"]
    found = opened(names, allow_missing=True)
    assert found.files == ["image", "npy"]
    assert [(row["key"], row["npy"]) for row in rows_of(found)] == [
        ("a", None),
        ("b", None),
        ("c", "c.npy"),
    ]
    assert found.flaw("npy", False, "a") is None


# -- metadata files


def test_metadata_is_joined_by_file_name():
    found = opened(
        {
            **dict.fromkeys(["1.jpg", "train/1.jpg", "train/2.jpg", "train/2.txt"], b"x"),
            "metadata.csv": b"file_name,caption\n1.jpg,one\n",
            "train/metadata.jsonl": b'{"n": 1, "file_name": "./2.txt"}\n'
            b'{"n": 2, "file_name": "1.jpg", "caption": "two"}\n',
        },
        columns=["image", "caption", "n"],
    )
    assert found.rows is None
    assert rows_of(found) == [
        {"key": "1", "image": "1.jpg", "caption": "one", "n": None},
        {"key": "train/1", "image": "train/1.jpg", "caption": "two", "n": 2},
        {"key": "train/2", "image": "train/2.jpg", "caption": None, "n": 1},
    ]


def test_metadata_rows_and_files_that_do_not_match_are_failed_rows():
    rows = [
        "1.jpg,a",
        "../1.jpg,leaves",
        "/etc/passwd,absolute",
        "http://host/1.jpg,address",
        "1.jpg,again",
        "9.jpg,missing",
        ",empty",
        ".hidden.jpg,hidden",
    ]
    files = {
        **dict.fromkeys(["d/1.jpg", "d/2.jpg", "d/.hidden.jpg", "d/3.jpg", "d/3.png"], b"x"),
        "d/metadata.csv": "\n".join(
            ["file_name,caption", *rows, "3.jpg,b", "3.png,c", ""]
        ).encode(),
    }
    found = opened(files)
    failed = {
        row["key"]: found.flaw("jpg", True, row["key"])
        for row in rows_of(found)
        if row["jpg"] is None
    }
    assert failed == {
        "d/2": ("incomplete", "no row in d/metadata.csv for this key"),
        "d/3": (
            "metadata",
            "d/metadata.csv[8] and d/metadata.csv[9] describe files of the same key",
        ),
        "d/3.png": ("column", "no column for this file (columns: jpg)"),
        "d/metadata.csv[1]": ("unsafe", "file_name '../1.jpg' points outside the folder"),
        "d/metadata.csv[2]": ("unsafe", "file_name '/etc/passwd' is not relative"),
        "d/metadata.csv[3]": ("unsafe", "file_name 'http://host/1.jpg' is a URL"),
        "d/metadata.csv[4]": ("metadata", "file_name '1.jpg' is also in d/metadata.csv[0]"),
        "d/metadata.csv[5]": ("metadata", "no data file 'd/9.jpg'"),
        "d/metadata.csv[6]": ("metadata", "file_name is empty"),
        "d/metadata.csv[7]": ("metadata", "no data file 'd/.hidden.jpg'"),
    }
    kept = [row for row in rows_of(opened(files, allow_missing=True)) if row["key"] == "d/2"]
    assert kept == [{"key": "d/2", "jpg": "d/2.jpg", "png": None, "caption": None}]


def test_a_metadata_file_without_file_names_is_data():
    found = opened({"metadata.csv": b"a,b\n1,2\n", "x.csv": b"y"})
    assert rows_of(found) == [
        {"key": "metadata", "csv": "metadata.csv"},
        {"key": "x", "csv": "x.csv"},
    ]


def test_the_size_of_metadata_is_limited(monkeypatch):
    monkeypatch.setattr(folder_metadata, "MAX_BYTES", 100)
    rows = "".join(f"{n}.jpg,{'x' * 20}\n" for n in range(10)).encode()
    found = opened({"1.jpg": b"x", "metadata.csv": b"file_name,caption\n" + rows})
    with pytest.raises(FormatError) as caught:
        rows_of(found)
    assert caught.value.message == "metadata is larger than 100 B"


def test_the_checksum_changes_with_the_metadata(tmp_path):
    write_files(tmp_path, {"1.jpg": "x", "metadata.csv": "file_name,n\n1.jpg,1\n"})
    before = open_folder(str(tmp_path)).sum()
    (tmp_path / "metadata.csv").write_text("file_name,n\n1.jpg,2\n")
    assert open_folder(str(tmp_path)).sum() != before


def test_a_full_disk_is_reported_while_the_errors_of_rows_are_stored(monkeypatch):
    resource = pytest.importorskip("resource")
    # Python would truncate the bytecode of a module that is imported under the limit.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    files = {f"d/{number:06}{'x' * 500}.jpg": b"x" for number in range(20_000)}
    found = opened({**files, "d/metadata.csv": b"file_name,caption\n"})
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (4096, limits[1]))
    try:
        with pytest.raises(ReachError) as caught:
            rows_of(found)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert caught.value.message.startswith("cannot write temporary files for the failed rows: ")
    assert caught.value.hint == "Set TMPDIR to a folder on a larger disk."


@pytest.mark.skipif(sys.platform != "linux", reason="other systems refuse such names")
def test_a_name_that_is_not_utf8_is_the_reason_for_the_failed_row(tmp_path):
    folder = tmp_path / "d"
    folder.mkdir()
    (folder / os.fsdecode(b"caf\xe9.jpg")).write_bytes(b"x")
    with pytest.raises(FormatError) as caught:
        open_folder(str(folder))
    assert caught.value.hint == (
        "Found 1 file without an extension or with a name that is not UTF-8: caf\\xe9.jpg."
    )
    (folder / "a.jpg").write_bytes(b"x")
    done = commands.pack(str(folder), str(tmp_path / "out"), on_error="skip")
    assert (done.rows, done.failed) == (1, 1)
    (failed,) = (tmp_path / "out/failed.jsonl").read_text().splitlines()
    assert json.loads(failed)["reason"] == "the file name is not UTF-8"
