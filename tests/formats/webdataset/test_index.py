"""The index of a tar, and the shardindex of wids."""

import hashlib
import json

import numpy as np
import pytest

from flarecli.errors import (
    FormatError,
)
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.model import Settings
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from tests.formats.webdataset.samples import (
    batch_of,
    columns_of,
    open_files,
    webdataset,
    write_batches,
    write_rows,
)

SAMPLES = [(f"k{i}", b"x" * i, None if i == 2 else "t") for i in range(4)]

INDEXED = columns_of(__key__="str", b="bytes", t="str")


def test_an_index_replaces_the_scan_of_headers():
    files = write_rows(INDEXED, SAMPLES).at.store.files
    blind = {**files, "00000.tar": bytes(len(files["00000.tar"]))}  # a tar without members
    assert (
        open_files(blind, INDEXED).layout["starts"].tolist()
        == open_files({"00000.tar": files["00000.tar"]}, INDEXED).layout["starts"].tolist()
    )


def test_a_damaged_or_foreign_index_is_not_used_and_reported():
    files = write_rows(INDEXED, SAMPLES).at.store.files
    index = files["00000.idx.json"]
    wanted = webdataset.read_rows(open_files(files, INDEXED), range(4))
    others = write_rows(INDEXED, SAMPLES[:3]).at.store.files["00000.idx.json"]
    for bad in (
        b"",
        b"{}",
        index[:-1],
        index + b" ",
        others,
        index.replace(b'"rows": 4', b'"rows": 5'),
    ):
        shard = open_files({**files, "00000.idx.json": bad}, INDEXED)
        assert webdataset.read_rows(shard, range(4)) == wanted
        (finding,) = webdataset.verify_shard(shard)
        assert (finding.where, finding.kind, finding.message) == (
            "00000.idx.json",
            "index",
            "index does not match its tar; flare reads the tar headers instead",
        )
    for byte in range(len(index)):
        assert (
            webdataset_index.parse(
                index[:byte] + bytes([index[byte] ^ 4]) + index[byte + 1 :], len(files["00000.tar"])
            )
            is None
        )


def resigned(index, **changes):
    body = {**json.loads(index), **changes}
    del body["xxh3_128"]
    data = json.dumps(body, sort_keys=True).encode()[:-1]
    return b'%s, "xxh3_128": "%s"}\n' % (data, webdataset_index._checksum(data))


def test_an_index_with_a_valid_checksum_is_compared_with_the_size_of_the_tar():
    files = write_rows(INDEXED, SAMPLES).at.store.files
    index, size = files["00000.idx.json"], len(files["00000.tar"])
    table = webdataset_index.parse(resigned(index), size)
    assert table.rows == 4

    def bad(**changes):
        return webdataset_index.parse(resigned(index, **changes), size) is None

    def packed(values):
        return webdataset_index._packed(np.ascontiguousarray(values))

    for row, value in (
        (0, 0),
        (0, 513),
        (0, -5),
        (0, size + 512),
        (1, int(table.starts[0, 0])),
        (0, 1 << 62),
    ):
        starts = table.starts.copy()
        starts[0, row] = value
        assert bad(starts=packed(starts))
    for value in (-1, size, 1 << 62, (1 << 63) - 1):
        sizes = table.sizes.copy()
        sizes[0, 0] = value
        assert bad(sizes=packed(sizes))
    assert bad(starts=packed(table.starts[:1]))
    assert bad(rows=1 << 60)
    assert bad(rows=-1)
    assert bad(columns=["b", "b"])
    assert bad(columns=["b", "__key__"])
    assert bad(columns="bt")
    assert bad(bytes=size + 1)
    assert bad(keys="?")
    assert bad(ends=packed(table.ends[::-1]))
    assert bad(
        starts=packed(table.starts[:, ::-1]), sizes=packed(table.sizes[:, ::-1])
    )  # rows of a batch would be past the end
    assert bad(keys=packed(np.frombuffer(b"k0k1k2k\xff", np.uint8)))
    assert bad(
        keys=packed(np.frombuffer("k0\u00e9k2k3".encode(), np.uint8)),
        ends=packed(np.array([2, 3, 6, 8])),
    )  # a key ends within a character
    swapped = resigned(index, sizes=packed(np.where(table.sizes > 1, table.sizes - 1, table.sizes)))
    (finding,) = webdataset.verify_shard(open_files({**files, "00000.idx.json": swapped}, INDEXED))
    assert (finding.kind, finding.message) == (
        "index",
        "the members in the index differ from the members in the tar",
    )


COLUMNS = columns_of(__key__="str", b="bytes", t="str")

FILES = write_batches(
    COLUMNS, batch_of(COLUMNS, [(f"k{i}", b"x" * i, None if i == 2 else "t") for i in range(4)])
)

INDEX = json.loads(FILES["00000.idx.json"])


def changed(name, row, value, place=None):
    """Return the changed array of an index in which one number differs."""
    array = np.frombuffer(webdataset_index.base64.b64decode(INDEX[name]), "<i8").copy()
    (array if place is None else array.reshape(2, 4)[place])[row] = value
    return {name: webdataset_index._packed(array)}


def index_with(**changes):
    body = {name: value for name, value in (INDEX | changes).items() if name != "xxh3_128"}
    data = json.dumps(body, sort_keys=True).encode()[:-1]
    return b'%s, "xxh3_128": "%s"}\n' % (data, webdataset_index._checksum(data))


def test_an_index_with_a_recomputed_checksum_is_unchanged():
    assert index_with() == FILES["00000.idx.json"]
    assert np.frombuffer(webdataset_index.base64.b64decode(INDEX["starts"]), "<i8").tolist() == [
        512,
        2048,
        4096,
        5120,
        1024,
        3072,
        -1,
        6144,
    ]


@pytest.mark.parametrize(
    "changes",
    [
        {"format": "flare tar index 2"},
        {"rows": 4.0},
        {"rows": "4"},
        {"columns": ["b", 1]},
        changed("ends", 0, 0),
        changed("ends", 0, -1),
        changed("ends", 1, 2),
        changed("ends", 1, 7),
        changed("ends", 3, 7),
        changed("ends", 3, 9),
        changed("starts", 0, 0, place=0),
        changed("starts", 3, 6145, place=1),  # not at the start of a block
        changed("starts", 0, 512, place=1),  # no space for its header
        changed("starts", 3, 7168, place=1)
        | {"bytes": len(FILES["00000.tar"])}
        | changed("sizes", 3, 1025, place=1),
        changed("starts", 2, -1, place=0)
        | changed("sizes", 2, -1, place=0),  # a sample without members
        changed("starts", 2, -1, place=0),
        changed("sizes", 2, -1, place=0),
    ],
)
def test_an_index_with_one_invalid_field_is_not_used(changes):
    assert webdataset_index.parse(index_with(), len(FILES["00000.tar"])) is not None
    assert webdataset_index.parse(index_with(**changes), len(FILES["00000.tar"])) is None


def test_an_index_above_the_maximum_size_is_not_read(monkeypatch):
    index = FILES["00000.idx.json"]
    blind = FILES | {"00000.tar": bytes(len(FILES["00000.tar"]))}
    monkeypatch.setattr(webdataset_index, "_MAX_INDEX_BYTES", len(index))
    assert open_files(blind, COLUMNS).rows == 4
    monkeypatch.setattr(webdataset_index, "_MAX_INDEX_BYTES", len(index) - 1)
    assert open_files(blind).rows == 0


@pytest.mark.parametrize(
    ("name", "row", "value"), [("ends", 0, 1), ("starts", 3, 5120), ("keys", None, None)]
)
def test_verify_compares_every_part_of_an_index_with_the_tar(name, row, value):
    other = (
        changed(name, row, value, place=None)
        if row is not None
        else {"keys": webdataset_index._packed(np.frombuffer(b"k0k1k2k4", np.uint8))}
    )
    if name == "starts":
        other = {"columns": ["t.txt", "b"]}
    (found,) = webdataset.verify_shard(open_files(FILES | {"00000.idx.json": index_with(**other)}))
    assert (found.where, found.kind, found.message) == (
        "00000.idx.json",
        "index",
        "the members in the index differ from the members in the tar",
    )


# -- shardindex.json


def test_the_shardindex_equals_that_of_widsindex():
    columns = columns_of(t="str")
    chunk = write_rows(columns, [("a",)], hashes=("md5",))
    at = chunk.at.folder
    (name, file), *_ = webdataset.write_index(
        at, [chunk], columns, Settings(hashes=("md5",))
    ).items()
    data = at.store.files["00000.tar"]
    assert (name, file.size) == ("shardindex.json", len(at.store.files[name]))
    assert json.loads(at.store.files[name]) == {
        "__kind__": "wids-shard-index-v1",
        "wids_version": 1,
        "shardlist": [
            {
                "url": "00000.tar",
                "md5sum": hashlib.md5(data).hexdigest(),
                "nsamples": 1,
                "filesize": len(data),
            }
        ],
    }


SHARD = {
    "url": "00000.tar",
    "nsamples": 3,
    "filesize": 2048,
    "md5sum": "0123456789ABCDEF0123456789ABCDEF",
}


def listed(shard=SHARD, **changes):
    index = {"__kind__": "wids-shard-index-v1", "wids_version": 1, "shardlist": [shard]} | changes
    data = json.dumps(index).encode()
    return webdataset_index.read_shards(
        Location(MemoryStore({"ds/shardindex.json": data}), "ds/shardindex.json")
    )


def test_a_shardindex_is_read():
    stream = listed()
    assert (list(stream.urls), list(stream.rows), list(stream.sizes)) == (
        ["00000.tar"],
        [3],
        [2048],
    )
    assert stream.hashes["md5"] == ["0123456789abcdef0123456789abcdef"]
    less = listed({"url": "00000.tar", "nsamples": (1 << 63) - 1})
    assert (list(less.rows), list(less.sizes), less.hashes) == ([(1 << 63) - 1], [-1], {})
    assert len(listed(shardlist=[])) == 0


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wids_version": True}, "unsupported wids_version True; expected 1"),
        ({"wids_version": "1"}, "unsupported wids_version '1'; expected 1"),
        ({"wids_version": 2}, "unsupported wids_version 2; expected 1"),
        (
            {"__kind__": "wids-shard-index-v2"},
            "unsupported __kind__ 'wids-shard-index-v2'; expected 'wids-shard-index-v1'",
        ),
        ({"__kind__": None}, "unsupported __kind__ None; expected 'wids-shard-index-v1'"),
        ({"shardlist": {}}, "shardlist is missing, or not a list"),
        ({"shard": "00000.tar"}, "shardlist[0]: url is missing, or not a string"),
        ({"shard": SHARD | {"url": ""}}, "shardlist[0]: url is missing, or not a string"),
        ({"shard": SHARD | {"url": 1}}, "shardlist[0]: url is missing, or not a string"),
        (
            {"shard": SHARD | {"nsamples": True}},
            "shardlist[0].nsamples: expected a count, got True",
        ),
        (
            {"shard": SHARD | {"nsamples": 1 << 63}},
            f"shardlist[0].nsamples: expected a count, got {1 << 63}",
        ),
        ({"shard": SHARD | {"nsamples": -1}}, "shardlist[0].nsamples: expected a count, got -1"),
        ({"shard": SHARD | {"nsamples": 3.0}}, "shardlist[0].nsamples: expected a count, got 3.0"),
        (
            {"shard": SHARD | {"filesize": None}},
            "shardlist[0].filesize: expected a count, got None",
        ),
        ({"shard": SHARD | {"md5sum": None}}, "shardlist[0]: md5sum is not a string"),
        (
            {"shard": {"url": "a", "nsamples": 1, "filesise": 2}},
            "shardlist[0]: unknown key 'filesise'; did you mean 'filesize'?",
        ),
    ],
)
def test_an_invalid_shardindex_is_refused(changes, message):
    with pytest.raises(FormatError) as caught:
        listed(**changes)
    assert str(caught.value) == f"ds/shardindex.json: {message}"
    assert (
        caught.value.hint
        == "Fetch the index again, or delete it so that flare lists the folder instead."
    )
