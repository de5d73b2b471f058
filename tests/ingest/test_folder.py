"""Folders: the files of a row, skipped files, and that each data file is used exactly once."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import (
    FormatError,
    MissingError,
    UsageError,
)
from flarecli.ingest import data_among, filled, folder, open_folder
from flarecli.ingest.folder import Folder, groups
from flarecli.storage import Entry, Location
from flarecli.storage.memory import MemoryStore
from tests.ingest.samples import error_of, images, rows_of, write_files
from tests.properties import examples


def opened(names, columns=None) -> Folder:
    return Folder(Location(MemoryStore(dict.fromkeys(names, b"x"))), columns)


def keys(names) -> dict[str, set[str]]:
    """Return key -> columns for which the key has a file."""
    return {
        row["key"]: {name for name, value in row.items() if value is not None} - {"key"}
        for row in rows_of(opened(names))
    }


@pytest.mark.parametrize(
    ("names", "wanted"),
    [
        (
            ["IMG_2024.01.01.jpg", "IMG_2024.01.02.jpg"],
            {"IMG_2024.01.01": {"jpg"}, "IMG_2024.01.02": {"jpg"}},
        ),
        (
            ["a.b/1.jpg", "a.b/1.txt", "a.b/2.jpg", "a.b/2.txt"],
            {"a.b/1": {"jpg", "txt"}, "a.b/2": {"jpg", "txt"}},
        ),
        (
            ["1.jpg", "1.seg.png", "2.jpg", "2.seg.png", "3.jpg", "3.seg.png"],
            {"1": {"jpg", "seg.png"}, "2": {"jpg", "seg.png"}, "3": {"jpg", "seg.png"}},
        ),
        (  # dots in the key, and an extension of two parts
            ["v1.2.jpg", "v1.2.seg.png", "v1.3.jpg", "v1.3.seg.png"],
            {"v1.2": {"jpg", "seg.png"}, "v1.3": {"jpg", "seg.png"}},
        ),
        (  # no `John.jpg`: the dot is part of the name
            ["John.Smith.jpg", "John.Doe.jpg"],
            {"John.Smith": {"jpg"}, "John.Doe": {"jpg"}},
        ),
        (  # half of the keys are not most
            ["1.seg.png", "2.png", "2.seg.png"],
            {"1.seg": {"png"}, "2": {"png"}, "2.seg": {"png"}},
        ),
        (  # a part that starts with a digit belongs to the key
            ["1.jpg", "1.2x.jpg", "2.jpg", "2.2x.jpg"],
            {"1": {"jpg"}, "1.2x": {"jpg"}, "2": {"jpg"}, "2.2x": {"jpg"}},
        ),
        (
            ["John.Smith.jpg", "John.Smith.meta.json", "Jane.Doe.jpg", "Jane.Doe.meta.json"],
            {"John.Smith": {"jpg", "meta.json"}, "Jane.Doe": {"jpg", "meta.json"}},
        ),
        (
            ["1.JPG", "1.Meta.JSON"],
            {"1": {"jpg", "meta.json"}},
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
        with pytest.raises(FormatError, match="^no data files with extensions$"):
            opened(names)
        return
    found = opened(names)
    rows = rows_of(found)
    assert len(rows) == found.rows
    used = [
        (value, row["key"])
        for row in rows
        for name, value in row.items()
        if name != "key" and value is not None
    ]
    alone = [row["key"] for row in rows if all(row[name] is None for name in found.extensions)]
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
        {"key": "LICENSE", "md": "LICENSE.md"},
        {"key": "README", "md": "README.md"},
        {"key": "a", "md": "a.md"},
    ]


def test_a_rare_extension_is_not_a_column():
    names = [f"{n}.{kind}" for n in range(9) for kind in ("jpg", "txt")]
    found = opened([*names, "3.npy"])
    assert found.extensions == ["jpg", "txt"]
    assert [row for row in rows_of(found) if None in row.values()] == [
        {"key": "3.npy", "jpg": None, "txt": None}
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
        f"First.L{n:02}": {"jpg"} for n in range(40)
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
        ["key", "jpg", "meta.json", "txt"],
        6,
        ("jpg", "meta.json", "txt"),
        "key",
        (),
    )
    ((batch, flaws),) = found.contents()
    assert flaws == []
    assert batch.schema.equals(filled(found.schema, found.links), check_metadata=True)
    assert batch.to_pylist() == [
        {
            "key": f"{folder}/{n:03}",
            **{kind: f"{folder} {n} {kind}".encode() for kind in ("jpg", "meta.json", "txt")},
        }
        for folder in "ab"
        for n in range(3)
    ]
    assert {
        name: (batch.schema.field(name).metadata or {}).get(b"encoding")
        for name in batch.schema.names
    } == {
        "key": None,
        "jpg": None,
        "meta.json": b"json",
        "txt": b"str",
    }


def test_only_requested_columns_determine_the_rows_and_are_read(tmp_path):
    write_files(tmp_path, {**images(2), "c/0.txt": "alone", "d/0.png": "other"})
    found = open_folder(str(tmp_path), columns=["txt", "key"])
    assert (found.schema.names, found.rows) == (["key", "txt"], 5)
    assert found.notes == ("skipped 1 key without txt: d/0",)


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
    assert rows_of(found)[0] == {"key": "A", "jpg": "A.JPG", "meta.json": None, "txt": None}


@pytest.mark.parametrize(
    ("files", "columns", "message", "hint"),
    [
        (
            {"README": "x", "Thumbs.db": "x"},
            None,
            "d: no data files with extensions",
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
            "d: no file has the extension 'png'",
            "Choose from jpg, txt.",
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
        [{"__key__": "a", "jpg": "a.jpg", "key": "a.key"}],
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
