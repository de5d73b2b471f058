"""Datasets that the original library wrote: reading, writing the same bytes, rebuilding and merging
indexes.
"""

import bz2
import gzip
import hashlib
import json
import shutil
from pathlib import Path

import pyarrow as pa
import pytest

from flarecli import encodings, read
from flarecli.commands import verify
from flarecli.compress import decompress
from flarecli.encodings import lookup, stored
from flarecli.errors import (
    FlareError,
    FormatError,
    IntegrityError,
    MissingError,
    UnsafeError,
    UsageError,
)
from flarecli.formats import find
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds.index import open_dataset
from flarecli.formats.mds.repair_index import merge, parts_below, rebuild
from flarecli.model import Settings
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

GOLDEN = Path(__file__).parents[3] / "fixtures" / "mds"
ROOTS = sorted(str(path.parent.relative_to(GOLDEN)) for path in GOLDEN.glob("*/data/**/index.json"))
WHOLE = [
    root for root in ROOTS if root.endswith("/data") or root.startswith("splits")
]  # without the parts of merged datasets
SINGLE = [root for root in ROOTS if not (root.startswith("merged") and root.endswith("/data"))]
NOT_WRITTEN = (
    "mds_no_samples/data",
    "mds_zero_columns/data",
    "mds_oversize_first/data",
    "json_oversize_first/data",
)


def index_of(root):
    return json.loads((GOLDEN / root / "index.json").read_bytes())


def expected(root):
    name, _, split = root.partition("/data")
    lines = map(json.loads, (GOLDEN / name / "expected.jsonl").read_text().splitlines())
    return [
        line["fields"] for line in lines if line.get("root", split.strip("/")) == split.strip("/")
    ]


def opened(at):
    stream = open_dataset(at)
    return find(stream.format), stream


@pytest.mark.parametrize("root", WHOLE)
def test_rows_equal_the_inputs_of_the_original(root):
    form, stream = opened(locate(str(GOLDEN / root)))
    rows = []
    for chunk in stream:
        shard = form.open_shard(chunk, stream.columns)
        rows += form.read_rows(shard, range(shard.rows))
    found = [{name: hashlib.sha256(data).hexdigest() for name, data in row.items()} for row in rows]
    assert found == [
        {name: value["sha256"] for name, value in row.items()} for row in expected(root)
    ]


@pytest.mark.parametrize("maps", [True, False])
@pytest.mark.parametrize("root", WHOLE)
def test_batches_contain_the_same_values_as_rows(root, maps):
    at = locate(str(GOLDEN / root))
    form, stream = opened(at if maps else at.unmapped())
    for chunk in stream:
        shard = form.open_shard(chunk)
        rows = form.read_rows(shard, range(shard.rows))
        for start, stop in {(0, shard.rows), (shard.rows // 3, shard.rows // 2)}:
            for views in (False, True):
                batch = form.read_batch(shard, start, stop, views=views).cast(
                    pa.schema([encodings.field(one) for one in shard.columns])
                )
                for one in shard.columns:
                    assert stored(batch.column(one.name), lookup(one.encoding)).to_pylist() == [
                        row[one.name] for row in rows[start:stop]
                    ]
        assert list(form.verify_shard(shard, values=True)) == []


def raw_of(path):
    """Return the decompressed bytes of a file."""
    kind = path.name.rpartition(".")[2]
    readers = {"bz2": bz2.decompress, "gz": gzip.decompress}
    if kind in readers:
        return path.name.removesuffix(f".{kind}"), readers[kind](path.read_bytes())
    if kind in ("br", "snappy", "zstd"):
        return path.name.removesuffix(f".{kind}"), bytes(
            decompress(kind, [path.read_bytes()], None, path)
        )
    return path.name, path.read_bytes()


@pytest.mark.parametrize("root", [root for root in SINGLE if root not in NOT_WRITTEN])
def test_rewritten_shards_have_the_bytes_of_the_original(root, tmp_path):
    form, stream = opened(locate(str(GOLDEN / root)))
    first, to = index_of(root)["shards"][0], locate(f"{tmp_path}/")
    settings = Settings(
        first["compression"],
        tuple(first["hashes"]),
        first["size_limit"],
        None,
        first.get("newline", "\n"),
        first.get("separator", ","),
    )
    columns = form.arrange(reversed(stream.columns))
    chunks = []
    for i, chunk in enumerate(stream):
        shard = form.open_shard(chunk, stream.columns)
        chunks.append(
            form.write_shard(to, i, columns, [form.read_batch(shard, 0, shard.rows)], settings)
        )
    form.write_index(to, chunks, columns, settings)
    wanted = {path.name: path for path in (GOLDEN / root).iterdir()}
    assert {path.name for path in tmp_path.iterdir()} == set(wanted)
    for name, path in wanted.items():
        if name != "index.json":
            assert raw_of(tmp_path / name) == raw_of(path)
    ours, theirs = json.loads((tmp_path / "index.json").read_bytes()), index_of(root)
    if first["compression"] is None:
        assert (tmp_path / "index.json").read_bytes() == (GOLDEN / root / "index.json").read_bytes()
    for one, other in zip(ours["shards"], theirs["shards"], strict=True):
        assert list(one) == list(other)
        for what in [key for key in one if key.startswith("zip") and one[key]]:
            file = tmp_path / one[what]["basename"]
            assert one[what]["bytes"] == file.stat().st_size
            assert one[what].keys() == other[what].keys()
            one[what] = other[what]
        assert one == other


def test_shards_have_the_boundaries_of_the_original(tmp_path):
    """The size limits and rows of the original result in its shards; the header of a table is not
    counted.
    """
    for name in ("json_newline_lf", "csv_comp_gz", "json_comp_br", "mds_size_limit_human"):
        form, stream = opened(locate(str(GOLDEN / name / "data")))
        first = index_of(f"{name}/data")["shards"][0]
        settings = Settings(None, (), first["size_limit"], None, first.get("newline", "\n"))
        batches = [
            form.read_batch(form.open_shard(chunk), 0, rows)
            for chunk, rows in zip(stream, stream.rows.tolist(), strict=True)
        ]
        base, sizes = form.row_sizes(
            stream.columns,
            pa.Table.from_batches(batches).combine_chunks().to_batches()[0],
            settings,
        )
        cuts, size = [0], base
        for one in sizes.tolist():
            if size + one > first["size_limit"]:
                cuts.append(0)
                size = base
            cuts[-1], size = cuts[-1] + 1, size + one
        assert cuts == stream.rows.tolist()


@pytest.mark.parametrize("root", [root for root in SINGLE if root != "mds_no_samples/data"])
def test_a_rebuilt_index_equals_the_lost_one(root, tmp_path):
    shutil.copytree(GOLDEN / root, tmp_path / "d")
    (tmp_path / "d" / "index.json").unlink()
    stream = rebuild(locate(str(tmp_path / "d")))
    assert (tmp_path / "d" / "index.json").read_bytes() == (
        GOLDEN / root / "index.json"
    ).read_bytes()
    assert int(stream.rows.sum()) == sum(shard["samples"] for shard in index_of(root)["shards"])
    with pytest.raises(UsageError, match="index already exists(?m:$)"):
        rebuild(locate(str(tmp_path / "d")))
    rebuild(locate(str(tmp_path / "d")), replace=True)


def copied(name, tmp_path):
    shutil.copytree(GOLDEN / name / "data", tmp_path / "d")
    return tmp_path / "d", locate(str(tmp_path / "d"))


def test_folders_without_a_valid_dataset_are_reported(tmp_path):
    folder, at = copied("mds_many_shards", tmp_path)
    (folder / "index.json").unlink()
    (folder / "shard.00002.mds").rename(tmp_path / "away")
    with pytest.raises(FormatError) as caught:
        rebuild(at)
    last = len(index_of("mds_many_shards/data")["shards"]) - 1
    assert (
        str(caught.value)
        == f"{folder}: shard.00002.mds is missing, but shard.{last:05d}.mds exists"
    )
    shutil.copy(folder / "shard.00003.mds", folder / "shard.00002.mds.zstd")
    with pytest.raises(FormatError, match=r"shard.00002.mds.zstd: not valid zstd"):
        rebuild(at)
    (folder / "shard.00002.mds.zstd").unlink()
    (folder / "shard.00002.mds").write_bytes((tmp_path / "away").read_bytes()[:-1])
    with pytest.raises(
        FormatError,
        match=r"shard.00002.mds: file is \d+ bytes; its offset table requires \d+(?m:$)",
    ):
        rebuild(at)
    assert not (folder / "index.json").exists()
    with pytest.raises(MissingError, match="no shards in this folder(?m:$)"):
        (tmp_path / "empty").mkdir()
        (tmp_path / "empty" / "x").touch()
        rebuild(locate(str(tmp_path / "empty")))


@pytest.mark.parametrize("name", ["json_newline_lf", "csv_comp_gz"])
def test_a_shard_without_its_meta_is_not_listed(name, tmp_path):
    folder, at = copied(name, tmp_path)
    (folder / "index.json").unlink()
    next(folder.glob("shard.00001.*meta*")).unlink()
    with pytest.raises(MissingError, match=r"shard.00001.\w+.meta: no such file"):
        rebuild(at)


# -- merging


@pytest.mark.parametrize(
    "name", ["merged_root", "merged_root_zstd", "merged_list_json", "merged_list_csv_gz"]
)
def test_indexes_are_merged_as_the_original_merges_them(name, tmp_path):
    folder, at = copied(name, tmp_path)
    wanted = (folder / "index.json").read_bytes()
    parts = dict.fromkeys(
        shard["raw_data"]["basename"].partition("/")[0] for shard in json.loads(wanted)["shards"]
    )
    merge(at, [locate(str(folder / part / "index.json")) for part in parts])
    assert (folder / "index.json").read_bytes() == wanted
    merge(
        at, [at / part for part in parts] * 2
    )  # again, over the existing index; a repeated part is listed once
    assert (folder / "index.json").read_bytes() == wanted
    if "root" in name:
        merge(at)
        assert (folder / "index.json").read_bytes() == wanted


def test_parts_at_any_depth_keep_their_full_path(tmp_path):
    for part in ("a/b", "x/b", "x"):
        shutil.copytree(GOLDEN / "json_newline_lf" / "data", tmp_path / part, dirs_exist_ok=True)
    at = locate(str(tmp_path))
    merge(at / "x", [at / "x/b"])  # the shards of a merged index are listed once
    assert parts_below(at) == ["a/b", "x/b", "x"]
    merge(at)
    names = [
        shard["raw_meta"]["basename"]
        for shard in json.loads((tmp_path / "index.json").read_text())["shards"]
    ]
    assert names == [
        f"{part}/shard.0000{i}.json.meta" for part in ("a/b", "x/b") for i in range(len(names) // 2)
    ]
    assert len(read.open(str(tmp_path))) == 30
    assert [sample["a"] for sample in read.open(str(tmp_path))][:15] == [
        sample["a"] for sample in read.open(str(tmp_path / "x"))
    ]


def test_parts_that_cannot_be_merged_are_reported_and_nothing_is_written(tmp_path):
    for part, name in (
        ("a", "json_newline_lf"),
        ("b", "json_newline_lf"),
        ("c", "csv_plain"),
        ("d", "json_special"),
    ):
        shutil.copytree(GOLDEN / name / "data", tmp_path / "merged" / part)
    shutil.copytree(GOLDEN / "json_newline_lf" / "data", tmp_path / "outside")
    at = locate(str(tmp_path / "merged"))
    with pytest.raises(UnsafeError) as caught:
        merge(at, [locate(str(tmp_path / "outside"))])
    assert str(caught.value) == f"{tmp_path}/outside: not below {tmp_path}/merged"
    for part in (str(tmp_path / "merged"), str(tmp_path / "merged" / ".." / "outside")):
        with pytest.raises(UnsafeError):
            merge(at, [locate(part)])
    with pytest.raises(FormatError) as caught:
        merge(at, [at / "a", at / "c"])
    assert (
        str(caught.value)
        == f"{tmp_path}/merged/c/index.json: shards[0]: format csv differs from json in shards[0]"
    )
    with pytest.raises(FormatError) as caught:
        merge(at, [at / "a", at / "d"])
    assert (
        str(caught.value)
        == f"{tmp_path}/merged/d/index.json: shards[0]: columns differ from the columns in shards[0]"
    )
    (tmp_path / "merged" / "b" / "shard.00001.json").write_bytes(b"")
    with pytest.raises(
        FormatError,
        match=r"b/shard.00001.json: file is 0 bytes; .*b/index.json: shards\[1\] lists \d+(?m:$)",
    ):
        merge(at, [at / "a", at / "b"])
    (tmp_path / "merged" / "b" / "shard.00001.json").unlink()
    with pytest.raises(
        MissingError,
        match=r"b/shard.00001.json: no such file; .*b/index.json: shards\[1\] lists it(?m:$)",
    ):
        merge(at, [at / "a", at / "b"])
    with pytest.raises(MissingError, match=r"merged/no/index.json: "):
        merge(at, [at / "no"])
    with pytest.raises(MissingError, match="no index.json below this folder lists a shard$"):
        merge(at / "a")
    assert not (tmp_path / "merged" / "index.json").exists()


# -- caches of compressed datasets


@pytest.mark.parametrize(
    "name", ["mds_comp_zstd", "json_comp_gz", "csv_comp_snappy", "merged_root_zstd"]
)
def test_a_cache_of_the_original_is_read_with_either_file(name, tmp_path):
    folder, at = copied(name, tmp_path)
    form, _ = opened(at)
    wanted = list(read.open(str(folder)))
    for path in [
        path
        for path in folder.rglob("shard.*")
        if path.name.rpartition(".")[2] in ("zstd", "gz", "snappy")
    ]:
        raw, data = raw_of(path)
        (path.parent / raw).write_bytes(data)
    assert list(read.open(str(folder))) == wanted  # both files exist
    assert list(verify(str(folder))) == []
    zipped = sorted(
        path
        for path in folder.rglob("shard.*")
        if path.name.rpartition(".")[2] in ("zstd", "gz", "snappy")
    )
    zipped[-1].unlink()
    assert list(read.open(str(folder))) == wanted  # one shard exists only decompressed
    for path in zipped[:-1]:
        path.unlink()
    assert list(read.open(str(folder))) == wanted
    assert all(
        list(form.verify_shard(form.open_shard(chunk), values=True)) == []
        for chunk in opened(at)[1]
    )
    assert list(verify(str(folder))) == []
    first = next(
        path for path in sorted(folder.rglob("shard.00000.*")) if not path.name.endswith("meta")
    )
    first.write_bytes(first.read_bytes()[:-1])
    with pytest.raises((FormatError, IntegrityError), match=rf"{first.name}: "):
        read.open(str(folder))[0]
    first.unlink()
    with pytest.raises(MissingError):
        read.open(str(folder))[0]


@pytest.mark.parametrize(
    "name",
    [
        "json_comp_br/data/shard.00001.json.br",
        "tsv_plain/data/shard.00001.tsv",
        "xsv_multichar/data/shard.00000.xsv.bz2",
    ],
)
def test_a_shard_alone_is_read_and_verified_with_its_meta(name, tmp_path):
    shutil.copytree((GOLDEN / name).parent, tmp_path / "d")
    path = tmp_path / "d" / Path(name).name
    number = int(path.name[6:11])
    whole = list(read.open(str(tmp_path / "d")))
    found, first = (
        list(read.open(str(path))),
        sum(shard["samples"] for shard in index_of(str(Path(name).parent))["shards"][:number]),
    )
    assert list(map(str, found)) == list(map(str, whole[first : first + len(found)]))
    assert found
    assert list(verify(str(path))) == []
    path.write_bytes(path.read_bytes()[:-3])
    assert [one.kind for one in verify(str(path))] == ["size"]
    (tmp_path / "d" / "index.json").unlink()  # without an index, only the structure is known
    assert [one.kind for one in verify(str(path))] == ["format"]


@pytest.mark.parametrize(
    "name", ["json_newline_lf", "csv_comp_gz", "merged_list_json", "xsv_unicode", "mds_comp_br"]
)
def test_datasets_are_read_over_http(name, web):
    folder = GOLDEN / name / "data"
    for path in folder.rglob("*"):
        if path.is_file():
            web.file(f"/d/{path.relative_to(folder)}", path.read_bytes())
    data = read.open(web.url("/d/index.json"))
    wanted = read.open(str(folder))
    assert data.rows([len(data) - 1, 0, 1]) == wanted.rows([len(data) - 1, 0, 1])
    assert list(data.scan(exact=True)) == list(wanted.scan(exact=True))


# -- the index


def changed(name, edit):
    index = index_of(f"{name}/data")
    edit(index["shards"][0])
    return Location(MemoryStore({"index.json": json.dumps(index).encode()}), "")


@pytest.mark.parametrize(
    ("name", "edit", "message"),
    [
        (
            "json_newline_lf",
            lambda s: s.update(columns=["a"]),
            "shards[0]: `columns` is not an object",
        ),
        (
            "json_newline_lf",
            lambda s: s["columns"].update(a="bool"),
            "shards[0]: column 'a': expected str, int or float, got 'bool'",
        ),
        (
            "json_newline_lf",
            lambda s: s["columns"].update({"\ud800": "int"}),
            "shards[0]: column name is not UTF-8",
        ),
        (
            "json_newline_lf",
            lambda s: s.update(newline=7),
            "shards[0]: newline: expected a string, got 7",
        ),
        (
            "csv_plain",
            lambda s: s.update(newline=""),
            "shards[0]: newline is empty",
        ),
        (
            "xsv_pipe",
            lambda s: s.pop("separator"),
            "shards[0]: separator: expected a string, got None",
        ),
        (
            "xsv_pipe",
            lambda s: s["column_names"].append("x"),
            "shards[0]: column_names and column_encodings must be lists of the same length",
        ),
        ("csv_plain", lambda s: s.update(raw_meta=None), "shards[0].raw_meta: basename is missing"),
        (
            "csv_plain",
            lambda s: s["raw_meta"].update(basename="../x"),
            "shards[0].raw_meta: the name '../x' points outside the folder",
        ),
        (
            "csv_plain",
            lambda s: s.update(samples=1 << 40),
            "shards[0]: 256 bytes are too few for 1099511627776 samples",
        ),
        (
            "csv_plain",
            lambda s: s.update(size_limit="5g"),
            "shards[0].size_limit: expected a size, got '5g'",
        ),
        (
            "csv_comp_gz",
            lambda s: s.update(compression="gzip"),
            "shards[0]: unknown compression 'gzip'",
        ),
        ("csv_comp_gz", lambda s: s.update(compression=9), "shards[0]: unknown compression '9'"),
        (
            "csv_comp_gz",
            lambda s: s.update(compression="zstd"),
            "shards[0].zip_data: name 'shard.00000.csv.gz' does not match compression 'zstd'",
        ),
        (
            "csv_comp_gz",
            lambda s: s["zip_meta"].update(bytes=None),
            "shards[0].zip_meta.bytes: expected a count, got None",
        ),
    ],
)
def test_a_forged_index_of_lines_is_refused(name, edit, message):
    with pytest.raises(FlareError) as caught:
        open_dataset(changed(name, edit))
    assert str(caught.value) == f"index.json: {message}"


def test_an_unused_compression_is_accepted():
    stream = open_dataset(changed("csv_plain", lambda s: s.update(compression="gz")))
    assert stream.urls[0] == "shard.00000.csv"


SIZES = {
    None: None,
    "": None,
    0: None,
    "0": None,
    0.5: None,
    100: 100,
    100.7: 100,
    "100b": 100,
    "1kb": 1024,
    "1.5KB": 1536,
    " 1 kb ": 1024,
    "1e3kb": 1024000,
    "1_000kb": 1024000,
    "64mb": 1 << 26,
    "2tb": 1 << 41,
}


def test_size_limits_are_read_as_the_original_reads_them():
    assert {given: mds_config.size_limit(given, "x") for given in SIZES} == SIZES
    for given in (
        "1e3",
        "1.5b",
        "12 b",
        "1_000",
        "5g",
        "1kib",
        "1024.7",
        "-1kb",
        "nankb",
        "infkb",
        "kb",
        -1,
        True,
        [],
        {},
        "9" * 400 + "kb",
    ):
        with pytest.raises(FormatError, match="expected a size, got"):
            mds_config.size_limit(given, "x")
