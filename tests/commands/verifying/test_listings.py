"""verify reads all lists of a dataset: truncated and contradicting lists are reported, and each
dataset is checked once.
"""

import json
import shutil
from pathlib import Path

import pytest

from flarecli import commands
from flarecli.commands.verifying.listings import LISTS_DIFFER
from flarecli.errors import MissingError
from flarecli.model import Finding, Settings
from flarecli.write import Writer

FIXTURES = Path(__file__).parents[3] / "fixtures"
GONE = "The file is missing; fetch it again, or pack it again with `flare pack … --overwrite`."
MERGED = [
    "merged_root/data",
    "merged_root_zstd/data",
    "merged_list_json/data",
    "merged_list_csv_gz/data",
]


def findings_of(*addresses, **options):
    return list(commands.verify([str(address) for address in addresses], **options))


def tars(folder, hashes=()):
    with Writer(
        str(folder),
        columns={"txt": "str"},
        format="webdataset",
        settings=Settings(hashes=hashes, shard_rows=2),
    ) as writer:
        for i in range(6):
            writer.write({"txt": f"text {i}"})
    (folder / "playlist.yaml").unlink()
    return folder


def changed(path, change):
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


@pytest.fixture(params=MERGED)
def merged(request, tmp_path):
    """Merge datasets with the original library."""
    return Path(shutil.copytree(FIXTURES / "mds" / request.param, tmp_path / "out"))


@pytest.fixture
def root(tmp_path):
    return Path(shutil.copytree(FIXTURES / "mds" / "merged_root" / "data", tmp_path / "out"))


def test_an_index_of_a_part_is_read_and_noted_as_unprotected(merged):
    done = commands.verify(str(merged))
    inner = sorted(path for path in merged.rglob("index.json") if path.parent != merged)
    assert list(done) == []
    more = f"{inner[0]} and {len(inner) - 1} more: no checksums; compared with {merged}/index.json and the shards"
    assert more in done.unprotected
    files = [path for path in merged.rglob("*") if path.is_file()]
    assert (done.files, done.bytes) == (len(files), sum(path.stat().st_size for path in files))


def test_a_truncated_index_of_a_part_is_reported(merged):
    for path in (path for path in merged.rglob("index.json") if path.parent != merged):
        complete = path.read_bytes()
        for cut in (
            0,
            1,
            len(complete) // 3,
            len(complete) // 2,
            len(complete) - 2,
            len(complete) - 1,
        ):
            path.write_bytes(complete[:cut])
            assert [one.where for one in findings_of(merged)] == [str(path)], (path, cut)
        path.write_bytes(complete)


def test_each_flipped_bit_of_the_index_of_a_part_is_reported(root):
    path, passed = root / "p1" / "index.json", []
    complete = path.read_bytes()
    for at in range(0, len(complete), 3):
        path.write_bytes(complete[:at] + bytes([complete[at] ^ 1 << at % 7]) + complete[at + 1 :])
        if not any(str(path) in f"{one.where} {one.message}" for one in findings_of(root, jobs=1)):
            passed.append((at, complete[max(0, at - 20) : at + 5]))
    assert passed == []


def test_a_contradiction_with_the_index_of_a_part_is_reported_with_both_values(root):
    path, shard = root / "p0" / "index.json", root / "p0" / "shard.00001.mds"
    complete, top = json.loads(path.read_text()), f"{root}/index.json"
    size = complete["shards"][1]["raw_data"]["bytes"]

    def findings_after(change):
        path.write_text(json.dumps(complete))
        changed(path, change)
        return findings_of(root)

    limit = complete["shards"][1]["size_limit"]
    message = f"lists size_limit {limit + 1} for {shard}, {top} lists {limit}"
    assert findings_after(lambda index: index["shards"][1].update(size_limit=limit + 1)) == [
        Finding(str(path), "listing", message, LISTS_DIFFER)
    ]
    assert findings_after(lambda index: index["shards"].pop()) == [
        Finding(str(path), "listing", f"does not list {shard}, {top} does", LISTS_DIFFER)
    ]
    extra = {
        **complete["shards"][1],
        "raw_data": {**complete["shards"][1]["raw_data"], "basename": "shard.00007.mds"},
    }
    message = f"lists shard.00007.mds, {top} does not"
    assert findings_after(lambda index: index["shards"].append(extra)) == [
        Finding(str(path), "listing", message, LISTS_DIFFER)
    ]
    first, second = findings_after(
        lambda index: index["shards"][1]["raw_data"].update(bytes=size + 1)
    )
    assert first == Finding(
        str(path),
        "listing",
        f"lists {size + 1} bytes for {shard}, {top} lists {size}",
        LISTS_DIFFER,
    )
    assert (second.where, second.message) == (
        str(shard),
        f"file is {size} bytes, {path} lists {size + 1}",
    )


def test_a_shard_missing_in_an_intermediate_index_is_reported(root):
    top = root / "deep"
    top.mkdir()
    for path in [path for path in root.iterdir() if path != top]:
        path.rename(top / path.name)
    commands.merge_index(str(root))
    between = json.loads((top / "index.json").read_text())
    assert findings_of(root) == []
    for i, shard in enumerate(between["shards"]):
        (top / "index.json").write_text(
            json.dumps({**between, "shards": [one for one in between["shards"] if one != shard]})
        )
        message = f"does not list {top}/{shard['raw_data']['basename']}, {root}/index.json does"
        assert findings_of(root) == [
            Finding(f"{top}/index.json", "listing", message, LISTS_DIFFER)
        ], i


def test_an_index_need_not_list_a_separate_dataset_in_a_subfolder(root):
    top = root / "deep"
    top.mkdir()
    (root / "p0").rename(top / "p0")
    for path in (root / "p1").iterdir():
        path.rename(top / path.name)
    (root / "p1").rmdir()
    (root / "index.json").unlink()
    inner, outer = (json.loads((at / "index.json").read_text()) for at in (top / "p0", top))
    shards = [
        at_below(shard, below)
        for index, below in ((inner, "deep/p0"), (outer, "deep"))
        for shard in index["shards"]
    ]
    (root / "index.json").write_text(json.dumps({**outer, "shards": shards}))
    assert findings_of(root) == []


def at_below(shard, below):
    """Return an entry of an index as an index in a parent folder has it."""
    files = {
        key: {**shard[key], "basename": f"{below}/{shard[key]['basename']}"}
        for key in ("raw_data", "zip_data")
        if shard.get(key)
    }
    return {**shard, **files}


def test_a_rebuilt_index_with_fewer_facts_is_no_contradiction(out):
    root = out.parent / "root"
    out.rename(root)
    for path in root.glob("*.*"):
        (root / "part").mkdir(exist_ok=True)
        path.rename(root / "part" / path.name)
    (root / "part" / "playlist.yaml").unlink()
    commands.merge_index(str(root))
    commands.reindex(str(root / "part"), replace=True)
    assert findings_of(root) == []
    changed(
        root / "part" / "index.json",
        lambda index: index["shards"][0].update(hashes=[], size_limit=None),
    )
    assert findings_of(root) == []


def test_a_shard_in_a_part_that_no_index_lists_is_reported(root):
    shutil.copy(root / "p0" / "shard.00001.mds", root / "p0" / "shard.00002.mds")
    message, hint = (
        f"shard is not listed in {root}/index.json",
        "Remove the shard, or add it to the list: `flare playlist … -o FILE`.",
    )
    assert findings_of(root) == [Finding(f"{root}/p0/shard.00002.mds", "unlisted", message, hint)]


def test_a_separate_dataset_in_a_subfolder_is_noted(root, tmp_path):
    shutil.copytree(root / "p0", root / "other" / "set")
    (root / "other" / "set" / "index.json").write_text("{")
    done = commands.verify(str(root))
    assert (list(done), done.extra) == ([], ["other/set/"])


def test_the_playlist_of_a_part_is_read_if_only_an_index_is_in_use(tmp_path):
    out = tmp_path / "out"
    rows = tmp_path / "rows.jsonl"
    rows.write_text("".join(f'{{"id": {i}}}\n' for i in range(6)))
    commands.pack(str(rows), str(out), part_rows=2)
    (out / "playlist.yaml").unlink()
    assert findings_of(out) == []
    for name in ("playlist.yaml", "index.json"):
        path = out / "00001" / name
        complete = path.read_bytes()
        for cut in (0, 1, len(complete) // 2, len(complete) - 1):
            path.write_bytes(complete[:cut])
            assert {one.where.partition(":")[0] for one in findings_of(out)} == {str(path)}, (
                name,
                cut,
            )
        path.write_bytes(complete)


def test_a_truncated_shardindex_is_reported_with_a_hint(tmp_path):
    out = tars(tmp_path / "out")
    path = out / "shardindex.json"
    complete = path.read_bytes()
    done = commands.verify(str(out))
    assert (list(done), done.files) == ([], 7)
    assert done.unprotected == [
        f"{path}: no checksums; compared with the shards",
        "3 of 3 files of stream 'data': no checksums; only sizes and structure were checked",
    ]
    for cut in (0, 1, len(complete) // 2, len(complete) - 1):
        path.write_bytes(complete[:cut])
        (one,) = findings_of(out)
        assert (one.where, one.kind, one.hint) == (
            str(path),
            "format",
            "Fetch the index again, or delete it so that flare lists the folder instead.",
        )
        assert one.message.startswith("not valid JSON: ")


def test_a_shardindex_that_contradicts_the_tars_is_reported_with_both_values(tmp_path):
    out = tars(tmp_path / "out", ("md5",))
    path, tar = out / "shardindex.json", out / "00001.tar"
    complete = path.read_text()
    size = tar.stat().st_size

    def findings_after(change):
        path.write_text(complete)
        changed(path, lambda index: change(index["shardlist"]))
        return [(one.where, one.kind, one.message) for one in findings_of(out)]

    assert findings_after(lambda shards: None) == []
    assert findings_after(lambda shards: shards[1].update(nsamples=3)) == [
        (str(path), "listing", f"lists 3 rows for {tar}, which contains 2")
    ]
    assert findings_after(lambda shards: shards[1].update(filesize=size - 1)) == [
        (str(tar), "size", f"file is {size} bytes, {path} lists {size - 1}")
    ]
    assert findings_after(lambda shards: shards.pop(1)) == [
        (str(path), "listing", f"does not list {tar}, which is in the same folder")
    ]
    assert findings_after(lambda shards: shards[1].update(url="00009.tar")) == [
        (str(path), "listing", f"does not list {tar}, which is in the same folder"),
        (f"{out}/00009.tar", "missing", f"no such file, {path} lists it"),
    ]
    ((where, kind, message),) = findings_after(lambda shards: shards[1].update(md5sum="0" * 32))
    assert (where, kind, message.startswith("checksum mismatch: md5 is ")) == (
        str(tar),
        "checksum",
        True,
    )
    for key, other in (
        ("filesize", "fileszie"),
        ("filesize", "gilesize"),
        ("filesize", "FileSize"),
        ("md5sum", "md5_sum"),
        ("md5sum", "mf5sum"),
    ):
        ((where, kind, message),) = findings_after(
            lambda shards, key=key, other=other: shards[1].update({other: shards[1].pop(key)})
        )
        assert (where, kind, message) == (
            f"{path}: shardlist[1]",
            "format",
            f"unknown key {other!r}; did you mean {key!r}?",
        )
    assert findings_after(lambda shards: shards[1].pop("filesize")) == []
    assert findings_after(lambda shards: shards[1].update(files=1, origin="x")) == []
    assert findings_after(lambda shards: shards[1].update(nsamples=-1)) == [
        (f"{path}: shardlist[1].nsamples", "format", "expected a count, got -1")
    ]


def test_a_tar_that_only_a_shardindex_lists_is_missing(tmp_path):
    out = tars(tmp_path / "out")
    (out / "00002.tar").unlink()
    (out / "00002.idx.json").unlink()
    assert findings_of(out) == [
        Finding(
            f"{out}/00002.tar", "missing", f"no such file, {out}/shardindex.json lists it", GONE
        )
    ]


def test_a_folder_of_datasets_that_is_checked_as_plain_files_is_noted(tmp_path):
    tars(tmp_path / "all" / "one")
    done = commands.verify(str(tmp_path / "all"))
    assert list(done) == []
    messages = f"{tmp_path}/all: checked as plain files, without opening one/00000.tar and 2 more shards; specify each dataset in the folder instead"
    assert done.unprotected[0] == messages


def counts(*addresses):
    done = commands.verify([str(address) for address in addresses])
    return list(done), done.files, done.shards, done.rows, done.bytes, sorted(done.unprotected)


@pytest.mark.parametrize(
    "form", ["mds", "json", "webdataset", "granular", "granular-refs", "ffrecord"]
)
@pytest.mark.parametrize("has_playlist", [True, False])
def test_the_shell_expansion_of_a_folder_is_checked_as_one_dataset(form, has_playlist, tmp_path):
    out, columns = (
        tmp_path / "out",
        {"data": "bytes"} if form == "ffrecord" else {"id": "int", "text": "str"},
    )
    with Writer(str(out), columns=columns, format=form, settings=Settings(shard_rows=2)) as writer:
        for i in range(6):
            writer.write(
                {"data": bytes(i)} if form == "ffrecord" else {"id": i, "text": f"text {i}"}
            )
    one = out
    if not has_playlist:
        (out / "playlist.yaml").unlink()
        one = out / "shards" if form.startswith("granular") else out
    complete = counts(one)
    assert complete[0] == []
    assert (
        counts(*sorted(out.iterdir()))
        == counts(*sorted(out.iterdir(), reverse=True))
        == counts(one, one, f"{one}/../{one.name}/")
        == complete
    )


def test_a_list_that_is_named_with_its_shards_is_compared_with_the_shards(out):
    path = out / "index.json"
    changed(path, lambda index: index["shards"][1].update(samples=11))
    (alone,) = findings_of(out)
    assert findings_of(*out.iterdir()) == [alone]
    shutil.copy(out / "playlist.yaml", out / "copy.yaml")
    findings, files, shards, *_ = counts(*out.iterdir())
    assert ({one.where for one in findings}, files, shards) == (
        {str(path)},
        len([*out.iterdir()]),
        4,
    )
    (out / "copy.yaml").unlink()
    (out / "more.yaml").write_text(
        "data:\n  headers: {format: mds, rows: [11]}\n  content: [shard.00000.mds]\n"
    )
    message = f"lists 11 rows for {out}/shard.00000.mds, {out}/playlist.yaml lists 10"
    assert findings_of(*out.iterdir()) == [
        alone,
        Finding(f"{out}/more.yaml", "listing", message, LISTS_DIFFER),
    ]


def test_shards_named_with_a_list_are_checked_once_and_unlisted_shards_too(out):
    shutil.copy(out / "shard.00001.mds", out / "shard.00009.mds")
    findings, files, shards, rows, *_ = counts(*sorted(out.iterdir()))
    assert ([one.kind for one in findings], files, shards, rows) == (["unlisted"], 8, 5, 45)


def test_two_lists_that_share_a_shard_are_both_checked_with_a_note(out):
    for name, shards in (("a.yaml", "01"), ("b.yaml", "12")):
        content = ", ".join(f"shard.0000{i}.mds" for i in shards)
        (out / name).write_text(f"data:\n  headers: {{format: mds}}\n  content: [{content}]\n")
    done = commands.verify([f"{out}/a.yaml", f"{out}/b.yaml"])
    assert (list(done), done.shards) == ([], 4)
    assert (
        done.unprotected[0]
        == f"{out}/a.yaml: 1 shard also listed in {out}/b.yaml; checked for each list"
    )


def test_a_missing_address_is_a_finding_among_others_and_an_error_alone(out, tmp_path):
    gone = f"link to {tmp_path}/gone: no such file or folder"
    for name, make, message in (
        (
            "shard.00001.mds",
            Path.mkdir,
            "is a folder; expected a file",
        ),  # as the shard of the playlist
        ("index.json", lambda path: path.symlink_to(tmp_path / "gone"), gone),
        ("playlist.yaml", Path.mkdir, "is a folder; expected a file"),
    ):
        path = out / name
        complete = path.read_bytes()
        path.unlink()
        make(path)
        with pytest.raises(MissingError):
            findings_of(path)
        assert (str(path), message) in [
            (one.where, one.message) for one in findings_of(*sorted(out.iterdir()))
        ]
        with pytest.raises(MissingError, match="no such file or folder"):
            findings_of(*sorted(out.iterdir()), tmp_path / "nothing")
        path.rmdir() if path.is_dir() else path.unlink()
        path.write_bytes(complete)
    assert findings_of(*sorted(out.iterdir())) == []
