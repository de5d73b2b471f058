"""verify reports each finding once if a shell expands a `*` to several files of one dataset."""

import os

import pytest

from flarecli import commands
from flarecli.model import Settings
from flarecli.write import Writer

LINK = "is a symbolic link; its target may be outside the folder"
FORMS = ["mds", "mds-zstd", "json", "csv", "webdataset", "granular", "ffrecord"]
COMPANIONS = [
    ("json", "shard.00000.json.meta"),
    ("csv", "shard.00000.csv.meta"),
    ("webdataset", "00000.idx.json"),
    ("granular", "shards/000000/id.bag"),
]


def findings_of(*addresses, **options):
    return [
        (one.where, one.kind, one.message)
        for one in commands.verify([str(address) for address in addresses], **options)
    ]


def missing_link(path):
    return str(path), "missing", f"link to {path.parent.parent}/gone: no such file or folder"


def packed(folder, form, has_playlist=True):
    columns = {"data": "bytes"} if form == "ffrecord" else {"id": "int", "text": "str"}
    settings = Settings(shard_rows=2, compression="zstd" if form.endswith("zstd") else None)
    with Writer(
        str(folder), columns=columns, format=form.partition("-")[0], settings=settings
    ) as writer:
        for i in range(6):
            writer.write(
                {"data": bytes(i)} if form == "ffrecord" else {"id": i, "text": f"text {i}"}
            )
    if not has_playlist:
        (folder / "playlist.yaml").unlink()
    return folder


def spellings(out):
    """Return all addresses to which a shell may expand one dataset."""
    star = sorted(out.iterdir())
    return [
        star,
        star[::-1],
        [f"{out}/*"],
        [f"{out}/*", f"{os.path.relpath(out)}/*"],
        [out, *star],
        [*star, out],
    ]


@pytest.mark.parametrize("has_playlist", [True, False])
@pytest.mark.parametrize("form", FORMS)
def test_a_broken_link_is_one_finding(form, has_playlist, tmp_path):
    out = packed(tmp_path / "out", form, has_playlist)
    for path in sorted(path for path in out.iterdir() if path.is_file()):
        complete = path.read_bytes()
        path.unlink()
        path.symlink_to(tmp_path / "gone")
        link = (str(path), "unsafe", LINK)
        for names in spellings(out):
            assert findings_of(*names) in ([link], [missing_link(path)])
            if (
                out not in names and has_playlist
            ):  # the list of a folder, and the files of an index, are searched first
                assert findings_of(*names) == [missing_link(path)]
        assert findings_of(out) == [link]
        path.unlink()
        path.write_bytes(complete)


def test_a_broken_link_outside_the_sample_is_reported(tmp_path):
    out = packed(tmp_path / "out", "mds")
    path = out / "shard.00002.mds"
    path.unlink()
    path.symlink_to(tmp_path / "gone")
    assert findings_of(*sorted(out.iterdir()), part=(0, 3)) == [missing_link(path)]


@pytest.mark.parametrize("form", FORMS)
def test_a_damaged_list_is_one_finding_however_it_is_addressed(form, tmp_path):
    out = packed(tmp_path / "out", form)
    (out / "playlist.yaml").write_bytes(b"")
    at = f"{out}/playlist.yaml"
    assert findings_of(out, at, at) == [(f"{at}:1:1", "format", "expected a mapping of streams")]


@pytest.mark.parametrize("name", ["spec.json", "id.bag", "text.idx"])
def test_a_missing_file_of_a_granular_shard_is_one_finding(name, tmp_path):
    out = packed(tmp_path / "out", "granular")
    lost = out / "shards" / "000000" / name
    lost.unlink()
    for names in ([out], *spellings(out)):
        assert findings_of(*names) == [
            (str(lost), "missing", f"no such file, {out}/playlist.yaml lists it")
        ]


def test_a_folder_with_listed_shards_needs_no_list_of_its_own(tmp_path):
    out = packed(tmp_path / "out", "mds")
    (out / "part").mkdir()
    for path in out.glob("*.mds"):
        path.rename(out / "part" / path.name)
    (out / "index.json").unlink()
    (out / "playlist.yaml").write_text(
        "data:\n  headers: {format: mds}\n  content: [part/shard.00000.mds, part/shard.00001.mds, part/shard.00002.mds]\n"
    )
    assert findings_of(*out.iterdir()) == []


@pytest.mark.parametrize(("form", "name"), COMPANIONS)
@pytest.mark.parametrize("damage", [b"", b"{}"])
def test_a_truncated_companion_of_a_shard_is_one_finding(form, name, damage, tmp_path):
    out = packed(tmp_path / "out", form)
    path = out / name
    size = path.stat().st_size
    path.write_bytes(damage)
    message = f"file is {len(damage)} bytes, {out}/playlist.yaml lists {size}"
    assert findings_of(out) == [(str(path), "size", message)]


def test_a_damaged_companion_that_no_list_names_is_a_finding(tmp_path):
    out = packed(tmp_path / "out", "webdataset", has_playlist=False)
    path = out / "00000.idx.json"
    path.write_bytes(b"{}")
    assert findings_of(out) == [
        (str(path), "index", "index does not match its tar; flare reads the tar headers instead")
    ]
