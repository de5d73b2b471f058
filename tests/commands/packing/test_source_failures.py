"""pack of a folder or a wildcard: each data file is packed, or is a failed row with its name."""

import json
from pathlib import Path

import pytest

from flarecli import commands, read
from flarecli.__main__ import main
from flarecli.errors import FormatError

JPEG = b"\xff\xd8\xff"


def created(folder: Path, *names: str) -> str:
    for name in names:
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(JPEG + name.encode())
    return str(folder)


def failed(out: Path) -> list[tuple[str, str, str, str]]:
    lines = [json.loads(line) for line in (out / "failed.jsonl").read_text().splitlines()]
    return [(one["key"], one["column"], one["kind"], one["reason"]) for one in lines]


def packed_keys(out: Path) -> list[str]:
    return [
        key
        for batch in read.open(str(out)).scan(["key"])
        for key in batch.column("key").to_pylist()
    ]


def test_files_without_a_column_fail_by_name(tmp_path, capsys):
    folder = created(tmp_path / "in", "a.jpg", "b.png", "c.JPEG", "d.npy", "e.x", "noext")
    out = tmp_path / "out"
    assert main(["pack", folder, str(out)]) == 4
    assert capsys.readouterr().err == (
        f"error: {folder}[3]: d.npy: no column for this file (columns: image)\n"
        "hint: Select the columns to pack with -c, or use --on-error skip to omit such rows and list them in failed.jsonl.\n"
    )
    assert main(["pack", folder, str(out), "--on-error", "skip", "--overwrite"]) == 1
    reason = "no column for this file (columns: image)"
    assert failed(out) == [(name, "image", "column", reason) for name in ("d.npy", "e.x", "noext")]
    assert packed_keys(out) == ["a", "b", "c"]


def test_a_metadata_file_without_file_names_is_reported(tmp_path, capsys):
    folder = created(tmp_path / "in", "a.jpg")
    (tmp_path / "in/metadata.csv").write_text("filename,caption\na.jpg,a cat\n")
    assert main(["pack", folder, str(tmp_path / "out")]) == 4
    assert capsys.readouterr().err.splitlines()[0] == (
        f"error: {folder}[1]: metadata.csv: no column for this file (columns: image); "
        "a metadata file needs a column 'file_name'"
    )


def test_files_with_dates_in_their_names_are_separate_rows(tmp_path):
    folder = created(tmp_path / "in", "IMG_2024.01.01.jpg", "IMG_2024.01.02.jpg")
    assert commands.pack(folder, str(tmp_path / "out")).rows == 2
    assert packed_keys(tmp_path / "out") == ["IMG_2024.01.01", "IMG_2024.01.02"]


@pytest.mark.parametrize("format", ["mds", "granular", "webdataset"])
def test_an_incomplete_key_fails_in_every_format(tmp_path, format):
    folder = created(tmp_path / "in", *(f"{n}.jpg" for n in range(5)))
    for n in (0, 1, 3, 4):
        (tmp_path / f"in/{n}.meta.json").write_text("{}")
    done = commands.pack(folder, str(tmp_path / "out"), format=format, on_error="skip")
    assert (done.rows, done.failed, done.reasons) == (4, 1, {"incomplete": 1})
    assert failed(tmp_path / "out") == [
        ("2", "meta.json", "incomplete", "no meta.json file for this key")
    ]


def test_a_folder_with_only_desktop_files_is_an_error(tmp_path, capsys):
    folder = created(tmp_path / "in", "Thumbs.db", ".DS_Store")
    assert main(["pack", folder, str(tmp_path / "out")]) == 4
    assert capsys.readouterr().err == (
        f"error: {folder}: no data file has an extension\n"
        "hint: Found 1 hidden file: .DS_Store; 1 desktop file: Thumbs.db.\n"
    )
    assert main(["pack", f"{folder}/*", str(tmp_path / "out")]) == 4
    assert capsys.readouterr().err == f"error: {folder}/*: no data files match the pattern\n"


def test_a_wildcard_skips_desktop_files_with_a_note(tmp_path, capsys):
    folder = created(tmp_path / "in", "a.jpg", "b.png", "c.jpeg", "Thumbs.db", "README.txt")
    assert main(["pack", f"{folder}/*", str(tmp_path / "out")]) == 0
    notes = capsys.readouterr().err.splitlines()
    assert f"skipped 1 desktop file: {folder}/Thumbs.db" in notes
    assert f"skipped 1 README or LICENSE file: {folder}/README.txt" in notes
    assert len(read.open(str(tmp_path / "out"))) == 3


@pytest.mark.parametrize("name", ["a.jpg", "a.csv"])
def test_a_wildcard_that_matches_one_folder_has_notes_on_skipped_files(tmp_path, capsys, name):
    folder = created(tmp_path / "in", "Thumbs.db", f"sub/{name}")
    (tmp_path / "in/sub" / name).write_text("n\n1\n")
    assert main(["pack", f"{folder}/*", str(tmp_path / "out")]) == 0
    assert f"skipped 1 desktop file: {folder}/Thumbs.db" in capsys.readouterr().err.splitlines()


def test_a_folder_without_files_of_the_named_kind_is_refused(tmp_path, capsys):
    folder = created(tmp_path / "in", "a.jpg")
    assert main(["pack", folder, str(tmp_path / "out"), "--input", "tar"]) == 2
    assert capsys.readouterr().err == (
        f"error: {folder}: the folder contains no tar files; --input tar expects such files\n"
        "hint: Omit --input to pack the files in the folder.\n"
    )
    assert not (tmp_path / "out").exists()


def test_files_of_unselected_columns_are_not_failures(tmp_path):
    folder = created(tmp_path / "in", "a.jpg", "b.jpg", "c.png")
    for name in "ad":
        (tmp_path / f"in/{name}.txt").write_text(name)
    done = commands.pack(folder, str(tmp_path / "one"), columns=["image"])
    assert (done.rows, done.failed) == (3, 0)
    done = commands.pack(folder, str(tmp_path / "two"), columns=["image", "text"], on_error="skip")
    assert failed(tmp_path / "two") == [
        ("b", "text", "incomplete", "no text file for this key"),
        ("c", "text", "incomplete", "no text file for this key"),
        ("d", "image", "incomplete", "no image file for this key"),
    ]


def test_a_missing_file_fails_only_rows_that_the_condition_selects(tmp_path):
    folder = created(tmp_path / "in", "a.jpg", "b.jpg", "c.jpg", "d.npy")
    for name in "ab":
        (tmp_path / f"in/{name}.txt").write_text(name)
    assert commands.pack(folder, str(tmp_path / "one"), where="text = 'a'").rows == 1
    done = commands.pack(folder, str(tmp_path / "two"), where="text IS NULL", on_error="skip")
    assert (done.rows, failed(tmp_path / "two")) == (
        0,
        [
            ("c", "text", "incomplete", "no text file for this key"),
            ("d.npy", "image", "column", "no column for this file (columns: image, text)"),
        ],
    )
    with pytest.raises(FormatError) as caught:
        commands.pack(folder, str(tmp_path / "three"), where="SELECT key, text FROM dataframe")
    assert str(caught.value) == f"{folder}: c: no text file for this key"


@pytest.mark.parametrize("extension", ["txt", "json"])
@pytest.mark.parametrize("first", [True, False])
def test_a_text_that_is_not_utf8_is_a_failed_row(tmp_path, extension, first):
    column = {"txt": "text"}.get(extension, extension)
    folder = created(tmp_path / "in", *(f"{n}.{extension}" for n in "abc"))
    for name, data in zip("abc", (b"1", b"\xff\xfe", b"2"), strict=True):
        (tmp_path / f"in/{name}.{extension}").write_bytes(data)
    if first:
        (tmp_path / f"in/a.{extension}").unlink()
    done = commands.pack(folder, str(tmp_path / "out"), on_error="skip", encode={column: "str"})
    assert (done.rows, done.failed) == (2 - first, 1)
    assert failed(tmp_path / "out") == [("b", column, "value", f"{column} is not UTF-8")]
