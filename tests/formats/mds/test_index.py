"""Entries of an `index.json` that are valid, unusual or unsafe, and merged indexes."""

import json
import shutil
import tracemalloc
from pathlib import Path

import pytest

from flarecli import encodings
from flarecli.errors import FlareError, FormatError, IntegrityError, MissingError
from flarecli.formats import find
from flarecli.formats.mds import config as mds_config
from flarecli.formats.mds import index as mds_index
from flarecli.formats.mds.index import open_dataset, read_shards, scan_shards
from flarecli.formats.mds.repair_index import merge, parts_below, write_version
from flarecli.model import Settings, Stream
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

GOLDEN = Path(__file__).parents[3] / "fixtures" / "mds"
PLAIN = {
    "column_encodings": ["int"],
    "column_names": ["a"],
    "column_sizes": [8],
    "compression": None,
    "format": "mds",
    "size_limit": None,
    "version": 2,
}


def listed(name="shard.00000.mds", size=1000, zipped=None, rows=3, **more):
    raw = {"basename": name, "bytes": size, "hashes": {}}
    return {
        **PLAIN,
        "samples": rows,
        "raw_data": raw,
        "raw_meta": None,
        "zip_data": zipped,
        "zip_meta": None,
        **more,
    }


def stream_of(*shards):
    return open_dataset(
        Location(
            MemoryStore({"index.json": json.dumps({"shards": shards, "version": 2}).encode()}), ""
        )
    )


def refusal(do):
    with pytest.raises(FlareError) as caught:
        do()
    return str(caught.value)


# -- an index that is read in blocks


def index_at(data):
    return Location(MemoryStore({"index.json": data}), "index.json")


def shards_text(count):
    shards = [listed(f"shard.{i:05d}.mds", rows=i % 7) for i in range(count)]
    return json.dumps({"shards": shards, "version": 2})


def test_an_index_of_several_blocks_is_read_like_the_whole_file():
    at = index_at(shards_text(8000).encode())
    assert at.size() > 2 << 20  # the store reads blocks of 1 MiB
    found = list(scan_shards(at))
    assert [shard for shard, _ in found] == read_shards(at)[0]
    assert [json.loads(text) for _, text in found] == read_shards(at)[0]


@pytest.mark.parametrize(
    "text",
    [
        '{"version": 2, "shards": []}',
        '\n{ "shards" :\t[ ] , "other": [1, {"a": "]}"}], "version": 2 }\n',
        '{"shards": [{"é": "}, {"}, {"a": [{}, 1.5e3]}], "version": 2}',
        json.dumps({"version": 2, "shards": [listed(), listed("a/shard.00001.mds")]}, indent=1),
    ],
)
def test_an_index_in_another_layout_is_read_in_blocks(text):
    at = index_at(text.encode())
    found = list(scan_shards(at))
    assert [shard for shard, _ in found] == json.loads(text)["shards"]
    assert [json.loads(one) for _, one in found] == json.loads(text)["shards"]


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"{}",
        b"[]",
        b'{"shards": {}, "version": 2}',
        b'{"shards": [], "version": 1}',
        b'{"shards": [], "version": true}',
        b'{"shards": []}',
        b'{"shards": [{}, 3], "version": 2}',
        b'{"shards": [{"a": 1, "a": 1}], "version": 2}',
        b'{"shards": [], "shards": [], "version": 2}',
        b'{"shards": [{"a": NaN}], "version": 2}',
        b'{"shards": [{}] "version": 2}',
        b'{"shards": [{},], "version": 2}',
        b'{"shards": [{}], "version": 2} 1',
        b'{"shards": [{"a": "\xff"}], "version": 2}',
        b'{"shards": [' + b"[" * 100_000,
        *(shards_text(1)[:length].encode() for length in range(1, len(shards_text(1)), 9)),
    ],
)
def test_an_invalid_index_that_is_read_in_blocks_has_the_error_of_the_whole_file(data):
    at = index_at(data)
    assert refusal(lambda: list(scan_shards(at))) == refusal(lambda: read_shards(at))


def test_the_index_of_a_version_lists_the_shards_in_the_order_of_the_version():
    old = {f"{name}.mds": listed(f"{name}.mds") for name in "abcd"}
    new = {f"{name}.mds": listed(f"{name}.mds", rows=5) for name in "xy"}
    moved = {f"part/{name}": listed(f"part/{name}", rows=5) for name in new}
    files = {
        "index.json": [old["a.mds"], old["c.mds"], old["d.mds"]],
        "index.000001.json": list(old.values()),
        "part/index.json": list(new.values()),
    }
    urls = ["d.mds", "c.mds", "part/y.mds", "b.mds", "part/x.mds", "a.mds"]
    store = MemoryStore(
        {
            name: json.dumps({"shards": shards, "version": 2}, sort_keys=True).encode()
            for name, shards in files.items()
        }
    )
    at = Location(store, "")
    write_version(at, Stream("data", at, "mds", urls))
    by_name = json.loads(json.dumps(old | moved, sort_keys=True))
    expected = json.dumps({"version": 2, "shards": [by_name[url] for url in urls]})
    assert (at / "index.json").read().decode() == expected


def test_a_shard_that_no_index_lists_is_not_added_to_the_index_of_a_version():
    at = Location(MemoryStore({"index.json": shards_text(2).encode()}), "")
    stream = Stream("data", at, "mds", ["shard.00001.mds", "part/shard.00000.mds"])
    message = "no index lists the shard 'part/shard.00000.mds'"
    assert refusal(lambda: write_version(at, stream)).endswith(message)
    assert (at / "index.json").read().decode() == shards_text(2)


# -- the index


def test_an_index_that_is_not_utf8_is_reported_with_its_byte():
    at = Location(MemoryStore({"index.json": b'{"shards": [], "version": 2, "x": "\xff"}'}), "")
    assert refusal(lambda: open_dataset(at)) == "index.json: not UTF-8 at byte 35"


def test_an_index_of_the_maximum_size_is_read(monkeypatch):
    size = len(json.dumps({"shards": [listed()], "version": 2}))
    monkeypatch.setattr(mds_index, "_MAX_INDEX_BYTES", size)
    assert len(stream_of(listed())) == 1
    monkeypatch.setattr(mds_index, "_MAX_INDEX_BYTES", size - 1)
    assert (
        refusal(lambda: stream_of(listed()))
        == f"index.json: file is {size} bytes; the maximum is {size - 1}"
    )


def zip_of(name="shard.00000.mds.gz", **more):
    return {"basename": name, "bytes": 500, "hashes": {}, **more}


@pytest.mark.parametrize(
    ("shard", "message"),
    [
        (listed(rows=1 << 63), ".samples: expected a count, got 9223372036854775808"),
        (listed(rows=None), ".samples: expected a count, got None"),
        (listed(size=19, rows=3), ": 19 bytes are too few for 3 samples"),
        (
            listed(size=(1 << 40) + 1),
            ".raw_data: listed size is 1099511627777 bytes; the maximum is 1099511627776",
        ),
        (
            listed(compression="gz", zipped=zip_of(bytes=1 << 62)),
            f".zip_data: listed size is {1 << 62} bytes; the maximum is 1099511627776",
        ),
        (
            listed(raw_data=zip_of("a.mds", hashes={"sha1": 7})),
            ".raw_data: hashes are not strings",
        ),
        (listed(raw_data=zip_of("a.mds", hashes=[])), ".raw_data: hashes are not strings"),
        (
            listed(raw_data={"basename": "a.mds", "bytes": 99}),
            ".raw_data: hashes are not strings",
        ),
        (listed(compression="gz", zipped={}), ".zip_data: basename is missing"),
        (
            listed(zipped=zip_of("a.mds.None")),
            ".zip_data: name 'a.mds.None' does not match compression 'None'",
        ),
        (
            listed(zipped=zip_of("a.mds.gz")),
            ".zip_data: name 'a.mds.gz' does not match compression 'None'",
        ),
        (
            listed(compression="br:5", zipped=zip_of("a.mds.gz")),
            ".zip_data: name 'a.mds.gz' does not match compression 'br:5'",
        ),
        (
            listed(compression="br:12", zipped=zip_of("a.mds.br")),
            ": invalid level 12 for br: expected 0 to 11",
        ),
        (listed(column_names=["b"]), ": columns differ from the columns in shards[0]"),
        (listed(size_limit=1 << 63), ".size_limit: expected a size, got 9223372036854775808"),
    ],
)
def test_impossible_entries_are_refused(shard, message):
    assert refusal(lambda: stream_of(listed(), shard)) == f"index.json: shards[1]{message}"


def test_a_compression_level_is_not_part_of_the_suffix():
    stream = stream_of(listed(compression="br:5", zipped=zip_of("shard.00000.mds.br")))
    assert (stream.urls, stream.headers) == (["shard.00000.mds.br"], {"compression": "br:5"})
    two = stream_of(listed(), listed("b.mds", compression="gz", zipped=zip_of("b.mds.gz")))
    assert (two.urls, two.headers) == (["shard.00000.mds", "b.mds.gz"], {})


def test_hashes_of_some_shards_stay_with_these_shards():
    shards = [listed(f"{i}.mds", compression="gz", zipped=zip_of(f"{i}.mds.gz")) for i in range(5)]
    shards[1]["zip_data"]["hashes"] = {"sha1": "one"}
    shards[3]["zip_data"]["hashes"] = {"sha1": "three", "md5": "MD"}
    shards[2]["raw_data"]["hashes"] = {"md5": "raw"}
    stream = stream_of(*shards)
    assert stream.hashes == {"sha1": ["", "one", "", "three", ""], "md5": ["", "", "", "MD", ""]}
    assert stream.raw_hashes == {"md5": ["", "", "raw", "", ""]}
    assert [chunk.files[0].hashes for chunk in stream] == [
        {},
        {"sha1": "one"},
        {},
        {"sha1": "three", "md5": "MD"},
        {},
    ]


def test_the_number_of_hash_kinds_is_bounded():
    shards = [listed(f"{i}.mds") for i in range(2000)]
    for i, shard in enumerate(shards):
        shard["raw_data"]["hashes"] = {f"h{i}": ""}
    tracemalloc.start()
    try:
        assert (
            refusal(lambda: stream_of(*shards))
            == "index.json: shards[100]: too many hash types: the maximum is 100, and 'h100' is the next type"
        )
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
    shards[99]["raw_data"]["hashes"] = {f"h{i}": "" for i in range(100)}
    assert len(stream_of(*shards[:100]).hashes) == 100


def test_an_empty_decompressed_file_has_a_known_size():
    config = {"columns": {"a": "int"}, "format": "json", "newline": "\n", "compression": "gz"}
    files = {
        key: {"basename": f"shard.00000.json{end}", "bytes": size, "hashes": {}}
        for key, end, size in (
            ("raw_data", "", 0),
            ("raw_meta", ".meta", 200),
            ("zip_data", ".gz", 20),
            ("zip_meta", ".meta.gz", 90),
        )
    }
    stream = stream_of({**config, "samples": 0, **files})
    assert [(file.size, file.raw_size) for file in stream.chunk(0).files] == [(20, 0), (90, 200)]


def test_newlines_and_separators_must_be_strings():
    golden = json.loads((GOLDEN / "xsv_pipe" / "data" / "index.json").read_text())["shards"][0]
    for key in ("newline", "separator"):
        for text, message in (
            ("\ud800", " is not UTF-8"),
            (None, ": expected a string, got None"),
            (["|"], ": expected a string, got ['|']"),
            ("", " is empty"),
        ):
            assert (
                refusal(lambda shard={**golden, key: text}: stream_of(shard))
                == f"index.json: shards[0]: {key}{message}"
            )


def test_size_limits_that_are_too_long_are_refused():
    for text in (
        "9" * 5000,
        "9" * 5000 + "b",
        "9" * 5000 + "kb",
        "٣",
        "1e999kb",
        float("inf"),
        float("nan"),
        1 << 63,
    ):
        with pytest.raises(FormatError, match=r"^x: .{1,60}"):
            mds_config.size_limit(text, "x")
    assert mds_config.size_limit((1 << 63) - 1, "x") == (1 << 63) - 1


def test_a_config_lists_hashes_in_order():
    columns = (encodings.column("a", "int"),)
    assert mds_config.config("mds", columns, Settings(hashes=("xxh64", "md5", "sha1")))[
        "hashes"
    ] == ["md5", "sha1", "xxh64"]


def test_an_index_of_json_shards_is_compared_with_the_shards():
    golden = open_dataset(locate(str(GOLDEN / "json_newline_lf" / "data")))
    more = (*golden.columns, encodings.column("more", "json_int"))
    with pytest.raises(IntegrityError) as caught:
        find("json").open_shard(golden.chunk(0), more)
    assert caught.value.message == "columns in the config differ from the columns in the index"


def test_a_truncated_index_has_a_hint_to_rebuild_it(tmp_path):
    (tmp_path / "index.json").write_text("{")
    with pytest.raises(FormatError) as caught:
        open_dataset(locate(str(tmp_path)))
    assert (
        caught.value.hint
        == f"Fetch it again, or delete it and run `flare playlist {tmp_path} --reindex`."
    )
    store = MemoryStore({"index.json": b""})
    store.is_local = False  # a remote index cannot be deleted or rebuilt
    with pytest.raises(FormatError) as caught:
        open_dataset(Location(store, ""))
    assert (caught.value.message, caught.value.hint) == ("file is empty", "Fetch it again.")


# -- merging


def merging(root, *parts):
    for part in parts:
        shutil.copytree(GOLDEN / "mds_comp_zstd" / "data", root / part)
    return locate(str(root))


def edited(path, edit):
    index = json.loads(path.read_text())
    edit(index["shards"][0])
    path.write_text(json.dumps(index))


def test_a_sibling_folder_with_the_same_prefix_is_not_below_the_root(tmp_path):
    merging(tmp_path / "set", "a")
    merging(tmp_path / "set2", "a")
    for part in (tmp_path / "set2" / "a", tmp_path / "set2"):
        assert (
            refusal(lambda part=part: merge(locate(str(tmp_path / "set")), [locate(str(part))]))
            == f"{part}: not below {tmp_path}/set"
        )


def test_the_same_path_in_another_store_is_not_below_the_root():
    root, other = Location(MemoryStore(), "set"), Location(MemoryStore(), "set/a")
    assert refusal(lambda: merge(root, [other])) == "set/a: not below set"


def test_an_unfinished_pack_is_not_a_part(tmp_path):
    at = merging(tmp_path, "a", ".flare/old", "b/.flare", "c.flare/d", "e.flare")
    assert parts_below(at) == ["a", "c.flare/d", "e.flare"]


def test_a_shard_listed_twice_in_one_index_stays_listed_twice(tmp_path):
    at = merging(tmp_path, "x/b")
    path = tmp_path / "x" / "b" / "index.json"
    index = json.loads(path.read_text())
    path.write_text(json.dumps({**index, "shards": [*index["shards"], index["shards"][0]]}))
    merge(at / "x")
    wanted = [shard["samples"] for shard in index["shards"]] + [index["shards"][0]["samples"]]
    for folder in ("x/b", "x"):
        assert open_dataset(at / folder).rows.tolist() == wanted
    merge(at)  # a shard in two indexes is listed once
    assert open_dataset(at).rows.tolist() == wanted


def test_parts_that_list_a_shard_differently_are_not_merged(tmp_path):
    at = merging(tmp_path, "x/b")
    merge(at / "x", [at / "x/b"])
    edited(
        tmp_path / "x" / "b" / "index.json",
        lambda shard: shard["zip_data"]["hashes"].update(sha1="00"),
    )
    name = f"x/b/{json.loads((tmp_path / 'x/b/index.json').read_text())['shards'][0]['raw_data']['basename']}"
    with pytest.raises(FormatError) as caught:
        merge(at)
    assert (
        str(caught.value)
        == f"{tmp_path}/x/index.json: shards[0]: entry for {name} differs from the entry in {tmp_path}/x/b/index.json"
    )
    assert not (tmp_path / "index.json").exists()


def test_the_size_of_the_existing_file_of_a_cache_is_compared(tmp_path):
    at = merging(tmp_path, "a")
    raw = tmp_path / "a" / "shard.00000.mds"
    raw.write_bytes(b"of another size")  # the compressed file exists and is preferred
    merge(at)
    zipped = tmp_path / "a" / "shard.00000.mds.zstd"
    size = zipped.stat().st_size
    zipped.write_bytes(zipped.read_bytes()[:-1])
    wanted = f"{zipped}: file is {size - 1} bytes; {tmp_path}/a/index.json: shards[0] lists {size}"
    assert refusal(lambda: merge(at, [at / "a"])) == wanted


def test_a_part_with_an_unsafe_index_is_refused(tmp_path):
    at = merging(tmp_path, "a")
    where = f"{tmp_path}/a/index.json: shards[0]"
    for key, value, message in (
        ("raw_data", 7, f"{where}.raw_data: basename is missing"),
        ("raw_data", {"basename": ["x"]}, f"{where}.raw_data: basename is missing"),
        (
            "raw_data",
            {"basename": "../a/x"},
            f"{where}.raw_data: the name '../a/x' points outside the folder",
        ),
        ("zip_data", {"basename": "/x"}, f"{where}.zip_data: the name '/x' is not relative"),
        (
            "raw_meta",
            {"basename": "../x"},
            f"{where}.raw_meta: the name '../x' points outside the folder",
        ),
    ):
        edited(tmp_path / "a" / "index.json", lambda shard: shard.update({key: value}))  # noqa: B023
        assert refusal(lambda: merge(at)) == message
        shutil.copy(GOLDEN / "mds_comp_zstd" / "data" / "index.json", tmp_path / "a" / "index.json")


def test_null_meta_entries_of_mds_are_accepted(tmp_path):
    at = merging(tmp_path, "a")
    edited(
        tmp_path / "a" / "index.json",
        lambda shard: shard.update(raw_meta={"basename": shard["zip_data"]["basename"]}),
    )
    merge(at)
    assert int(open_dataset(at).rows.sum()) == int(open_dataset(at / "a").rows.sum())


def test_a_part_without_a_meta_is_not_merged(tmp_path):
    shutil.copytree(GOLDEN / "json_newline_lf" / "data", tmp_path / "a")
    (tmp_path / "a" / "shard.00001.json.meta").unlink()
    with pytest.raises(MissingError) as caught:
        merge(locate(str(tmp_path)))
    assert (
        str(caught.value)
        == f"{tmp_path}/a/shard.00001.json.meta: no such file; {tmp_path}/a/index.json: shards[1] lists it"
    )


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (
            lambda index, shard: index.update(shard=index.pop("shards")),
            "index.json: missing key 'shards'; found 'shard'",
        ),
        (
            lambda index, shard: index.update(Version=index.pop("version")),
            "index.json: missing key 'version'; found 'Version'",
        ),
        (
            lambda index, shard: shard.update(sampels=shard.pop("samples")),
            "index.json: shards[0]: missing key 'samples'; found 'sampels'",
        ),
        (
            lambda index, shard: shard.update(compresion=shard.pop("compression")),
            "index.json: shards[0]: missing key 'compression'; found 'compresion'",
        ),
        (
            lambda index, shard: shard.update(hashs=shard.pop("hashes")),
            "index.json: shards[0]: missing key 'hashes'; found 'hashs'",
        ),
        (
            lambda index, shard: shard.update(zip_dat=shard.pop("zip_data")),
            "index.json: shards[0]: missing key 'zip_data'; found 'zip_dat'",
        ),
        (
            lambda index, shard: shard.update(size_limits=shard.pop("size_limit")),
            "index.json: shards[0]: missing key 'size_limit'; found 'size_limits'",
        ),
        (
            lambda index, shard: shard["raw_data"].update(hashs=shard["raw_data"].pop("hashes")),
            "index.json: shards[0].raw_data: missing key 'hashes'; found 'hashs'",
        ),
        (
            lambda index, shard: shard["raw_data"].update(
                basname=shard["raw_data"].pop("basename")
            ),
            "index.json: shards[0].raw_data: missing key 'basename'; found 'basname'",
        ),
    ],
)
def test_a_misspelt_key_is_reported(change, message):
    shard = listed(hashes=[])
    index = {"shards": [shard], "version": 2}
    change(index, shard)
    at = Location(MemoryStore({"index.json": json.dumps(index).encode()}), "")
    assert refusal(lambda: open_dataset(at)) == message


def test_unknown_keys_are_accepted():
    shard = listed(size_in_bytes=5, schema_version=3, file_hashes={}, **{"hashes" * 20: 1})
    assert len(stream_of(shard)) == 1  # without `hashes`
