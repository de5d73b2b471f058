"""`flare verify out/shard.00000.mds`: a single file is checked against the lists in its folder and
above it.
"""

import json
import os
import shutil

import pytest

from flarecli import commands
from flarecli.errors import UsageError
from flarecli.model import Finding, Settings
from flarecli.write import Writer

UNLISTED_HINT = "Remove the shard, or add it to the list: `flare playlist … -o FILE`."
AGAIN = "fetch it again, or pack it again with `flare pack … --overwrite`."
# format -> its second shard, and a file of it in which a flipped last bit is a valid value
FORMS = {
    "mds": ("shard.00001.mds", "shard.00001.mds"),
    "json": ("shard.00001.json", "shard.00001.json"),
    "csv": ("shard.00001.csv", "shard.00001.csv"),
    "granular": ("shards/000001", "shards/000001/text.bag"),
    "webdataset": ("00001.tar", "00001.tar"),
}


def checked(*addresses, **options):
    done = commands.verify([str(one) for one in addresses], **options)
    return list(done), done


def packed(folder, form="mds", hashes=()):
    settings = Settings(shard_rows=2, hashes=hashes)
    columns = {"id": "int", "text": "str"}
    with Writer(str(folder), columns=columns, format=form, settings=settings) as writer:
        for i in range(6):
            writer.write({"id": i, "text": f"value {i}"})
    return folder


def damage(path):
    """Change a letter of the text of row 3; the structure stays valid."""
    data = path.read_bytes()
    assert data.count(b"value 3") == 1
    path.write_bytes(data.replace(b"value 3", b"Value 3"))


@pytest.mark.parametrize("form", FORMS)
def test_a_changed_byte_of_a_single_shard_is_found_by_the_playlist_in_its_folder(form, tmp_path):
    out = packed(tmp_path / "out", form)
    name, changed = FORMS[form]
    result, done = checked(out / name)
    assert (result, done.shards, done.rows, done.left) == ([], 1, 2, 0)
    assert not [one for one in done.unprotected if "only sizes and structure" in one]
    damage(out / changed)
    result, _ = checked(out / name)
    assert [(one.where, one.kind) for one in result] == [(str(out / changed), "checksum")]
    assert f", {out}/playlist.yaml lists " in result[0].message
    assert checked(out)[0] == result


def test_the_rows_of_a_single_shard_are_numbered_as_in_the_dataset(tmp_path):
    out = packed(tmp_path / "out")
    damage(out / "shard.00001.mds")
    (one,), _ = checked(out / "shard.00001.mds")
    assert one.message.startswith("checksum mismatch (rows 2 to 3): xxh3_128 is ")


@pytest.mark.parametrize("name", ["shards/000001/text.bag", "shards/000001/spec.json"])
def test_a_file_of_a_granular_shard_names_the_shard(name, tmp_path):
    out = packed(tmp_path / "out", "granular")
    assert checked(out / name)[1].shards == 1
    damage(out / "shards/000001/text.bag")
    result, _ = checked(out / name)
    assert [(one.where, one.kind) for one in result] == [
        (str(out / "shards/000001/text.bag"), "checksum")
    ]


def test_a_file_that_belongs_to_no_shard_is_checked_against_the_playlist(tmp_path):
    out = packed(tmp_path / "out", "webdataset")
    data = (out / "shardindex.json").read_bytes()
    (out / "shardindex.json").write_bytes(data.replace(b'"nsamples": 2', b'"nsamples": 3', 1))
    result, done = checked(out / "shardindex.json")
    assert [(one.where, one.kind) for one in result] == [(f"{out}/shardindex.json", "checksum")]
    assert (done.files, done.shards) == (2, 0)


def test_a_single_shard_is_checked_against_an_index_with_hashes(tmp_path):
    out = packed(tmp_path / "out", hashes=("sha1",))
    (out / "playlist.yaml").unlink()
    assert checked(out / "shard.00001.mds")[0] == []
    damage(out / "shard.00001.mds")
    (one,), _ = checked(out / "shard.00001.mds")
    assert ": sha1 is " in one.message and f", {out}/index.json lists " in one.message


def test_an_index_is_checked_against_the_playlist_in_its_folder(tmp_path):
    out = packed(tmp_path / "out")
    damage(out / "shard.00001.mds")
    (one,), _ = checked(out / "index.json")
    assert ": xxh3_128 is " in one.message


@pytest.mark.parametrize("is_relative", [False, True])
def test_lists_in_parent_folders_are_used_if_they_name_the_shard(
    is_relative, tmp_path, monkeypatch
):
    top = tmp_path / "sets"
    packed(top / "a" / "b" / "out")
    commands.playlist(str(top / "a" / "b" / "out"), out=str(top / "playlist.yaml"))
    assert checked(top)[0] == []
    for name in ("playlist.yaml", "index.json"):
        (top / "a" / "b" / "out" / name).unlink()
    (top / "a" / "playlist.yaml").write_text("other:\n  headers: {}\n  content: [x.mds]\n")
    (tmp_path / "index.json").write_text("{no index at all")
    (tmp_path / "playlist.yaml").write_text("}{")
    damage(top / "a" / "b" / "out" / "shard.00001.mds")
    shown = str(top)
    if is_relative:
        monkeypatch.chdir(top / "a")
        shown = ".."
    folder = "b/out" if is_relative else str(top / "a" / "b" / "out")
    result, done = checked(f"{folder}/shard.00001.mds")
    assert [one.kind for one in result] == ["checksum"]
    assert ": xxh3_128 is " in result[0].message
    assert (
        f"{top}/playlist.yaml lists " in result[0].message
        or "../playlist.yaml" in result[0].message
    )
    assert (done.shards, shown in result[0].message) == (1, not is_relative)
    assert checked(f"{folder}/shard.00000.mds", f"{folder}/shard.00002.mds")[0] == []


def test_a_shard_missing_in_the_list_of_its_folder_is_a_finding(tmp_path):
    out = packed(tmp_path / "out")
    shutil.copy(out / "shard.00001.mds", out / "shard.00009.mds")
    message = f"shard is not listed in {out}/playlist.yaml"
    assert checked(out / "shard.00009.mds")[0] == [
        Finding(f"{out}/shard.00009.mds", "unlisted", message, UNLISTED_HINT)
    ]


@pytest.mark.parametrize("depth", [0, 2])
def test_a_damaged_list_that_names_the_shard_is_a_finding(depth, tmp_path):
    top = packed(tmp_path / "out")
    folder = top.joinpath(*"ab"[:depth])
    if depth:
        folder.mkdir(parents=True)
        os.rename(top / "shard.00001.mds", folder / "shard.00001.mds")
        text = (top / "playlist.yaml").read_text()
        (top / "playlist.yaml").write_text(text.replace("- shard.00001", "- a/b/shard.00001"))
        (top / "index.json").unlink()
    text = (top / "playlist.yaml").read_text()
    (top / "playlist.yaml").write_text(text.replace("rows: [", "rows: [["))
    result, _ = checked(folder / "shard.00001.mds")
    assert [one.kind for one in result] == ["format"]
    assert result[0].where.startswith(f"{top}/playlist.yaml")


def test_a_list_whose_own_checksum_is_wrong_is_a_finding(tmp_path):
    out = packed(tmp_path / "out")
    text = (out / "playlist.yaml").read_text()
    (out / "playlist.yaml").write_text(text.replace("text: str", "text: bytes"))
    result, _ = checked(out / "shard.00001.mds")
    assert (result[0].where, result[0].kind) == (f"{out}/playlist.yaml", "checksum")
    assert result[0].message == "the last line is not the checksum of the lines above"


def test_a_contradiction_between_lists_is_a_finding_for_the_shards_that_are_checked(tmp_path):
    out = packed(tmp_path / "out")
    (out / "playlist.yaml").unlink()
    commands.playlist(f"{out}/shard.0000*.mds", out=str(out / "playlist.yaml"))
    index = json.loads((out / "index.json").read_text())
    index["shards"][1]["samples"] = 9
    (out / "index.json").write_text(json.dumps(index))
    assert checked(out / "shard.00000.mds")[0] == []
    (one,), _ = checked(out / "shard.00001.mds")
    assert (one.where, one.kind) == (f"{out}/index.json", "listing")
    assert one.message == (f"lists 9 rows for {out}/shard.00001.mds, {out}/playlist.yaml lists 2")


def test_shards_of_several_folders_share_the_list_that_names_them(tmp_path):
    top = tmp_path / "sets"
    for name in "ab":
        packed(top / name)
    commands.playlist([f"a={top}/a", f"b={top}/b"], out=str(top / "playlist.yaml"))
    for name in "ab":
        (top / name / "playlist.yaml").unlink()
    damage(top / "b" / "shard.00001.mds")
    result, done = checked(
        top / "a" / "shard.00000.mds", top / "b" / "shard.00001.mds", top / "a" / "shard.00002.mds"
    )
    assert [(one.where, one.kind) for one in result] == [(f"{top}/b/shard.00001.mds", "checksum")]
    assert done.shards == 3


def test_a_format_that_the_list_contradicts_is_refused(tmp_path):
    out = packed(tmp_path / "out")
    with pytest.raises(UsageError) as caught:
        commands.verify(str(out / "shard.00001.mds"), format="webdataset")
    assert str(caught.value) == (
        f"{out}/playlist.yaml: stream 'data' has the format mds, not webdataset"
    )


def test_a_single_shard_on_a_web_server_is_checked_against_its_playlist(tmp_path, web):
    out = packed(tmp_path / "out")
    damage(out / "shard.00001.mds")
    for path in out.iterdir():
        web.file(f"/set/{path.name}", path.read_bytes())
    result, done = checked(web.url("/set/shard.00001.mds"))
    assert [one.kind for one in result] == ["checksum"]
    assert done.shards == 1
    web.asked.clear()
    assert checked(web.url("/set/shard.00001.mds"), quick=True)[0] == []
    assert list(web.asked) == ["/set/shard.00001.mds"]


def test_a_server_that_denies_access_to_lists_or_returns_wrong_pages_causes_no_finding(
    tmp_path, web
):
    out = packed(tmp_path / "out")
    web.file("/a/b/shard.00001.mds", (out / "shard.00001.mds").read_bytes())
    web.page("/a/b/playlist.yaml", b"no", status=403)
    web.page("/a/playlist.yaml", b"<html><body>welcome</body></html>")
    result, done = checked(web.url("/a/b/shard.00001.mds"))
    assert (result, done.shards) == ([], 1)
    assert done.unprotected == [
        "1 of 1 files of stream 'data': no checksums; only sizes and structure were checked"
    ]
