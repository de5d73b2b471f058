"""verify of joined streams: they need the same number of rows, and the same keys."""

import json

import pytest

from flarecli import commands
from flarecli.model import Finding, Settings
from flarecli.write import Writer

HINT = "Pack both streams again from the same rows, or read each stream alone."


def packed(folder, keys, column, format="webdataset", key="__key__", encoding="str"):
    with Writer(
        str(folder),
        columns={key: encoding, column: "str"},
        format=format,
        settings=Settings(shard_rows=4),
    ) as writer:
        for one in keys:
            writer.write({key: one, column: f"{column} {one}"})


def listed(top, *streams, format="webdataset", key=None):
    """Write a playlist of several folders; a stream is (name, columns)."""
    ends = {"webdataset": "tar", "mds": "mds"}[format]
    output = {
        name: {
            "headers": {"format": format, "columns": columns, **({"key": key} if key else {})},
            "content": sorted(
                str(path.relative_to(top)) for path in (top / name).glob(f"*.{ends}")
            ),
        }
        for name, columns in streams
    }
    path = top / "both.yaml"
    path.write_text(json.dumps(output))
    return path


def findings_of(path, **options):
    return [one for one in commands.verify(str(path), **options) if one.kind == "streams"]


IMAGES, LABELS = (
    ("images", {"__key__": "str", "txt": "str"}),
    ("labels", {"__key__": "str", "cls": "str"}),
)
KEYS = [f"k{i}" for i in range(10)]


@pytest.mark.parametrize(
    ("other", "place", "message"),
    [
        (KEYS, None, None),
        (
            [*KEYS[:6], "other", *KEYS[7:]],
            ("00001.tar", 2),
            "key is 'other', row 6 of stream 'images' has key 'k6'",
        ),
        (
            [*KEYS[:3], *KEYS[4:], "k3"],
            ("00000.tar", 3),
            "key is 'k4', row 3 of stream 'images' has key 'k3'; 6 later rows also differ",
        ),
        (
            KEYS[:9],
            None,
            "stream 'labels' has 9 rows, stream 'images' has 10; joined streams need the same number of rows",
        ),
    ],
)
def test_joined_tars_need_the_same_keys_in_the_same_order(tmp_path, other, place, message):
    packed(tmp_path / "images", KEYS, "txt")
    packed(tmp_path / "labels", other, "cls")
    path = listed(tmp_path, IMAGES, LABELS)
    name, row = place or (None, None)
    at = str(path) if name is None else f"{tmp_path}/labels/{name}"
    findings = [] if message is None else [Finding(at, "streams", message, HINT, row=row)]
    assert findings_of(path) == findings


@pytest.mark.parametrize(
    ("encoding", "second"), [("int", "int64"), ("int", "str"), ("str", "str_int")]
)
def test_the_header_key_names_the_key_column_of_any_encoding(tmp_path, encoding, second):
    def value(i, kind):
        return i if "int" in kind else str(i)

    packed(tmp_path / "a", [value(i, encoding) for i in range(9)], "x", "mds", "id", encoding)
    packed(tmp_path / "b", [value(i, second) for i in range(9)], "y", "mds", "id", second)
    streams = ("a", {"id": encoding, "x": "str"}), ("b", {"id": second, "y": "str"})
    assert findings_of(listed(tmp_path, *streams, format="mds", key="id")) == []
    packed(tmp_path / "b2", [value(i + 5, second) for i in range(9)], "y", "mds", "id", second)
    path = listed(tmp_path, streams[0], ("b2", streams[1][1]), format="mds", key="id")
    message = "key is '5', row 0 of stream 'a' has key '0'; 8 later rows also differ"
    assert findings_of(path) == [
        Finding(f"{tmp_path}/b2/shard.00000.mds", "streams", message, HINT, row=0)
    ]


def test_streams_with_common_columns_and_partial_checks_compare_no_keys(tmp_path):
    packed(tmp_path / "train", KEYS, "txt")
    packed(tmp_path / "test", ["z"], "txt")
    columns = {"__key__": "str", "txt": "str"}
    assert findings_of(listed(tmp_path, ("train", columns), ("test", columns))) == []
    packed(tmp_path / "images", KEYS, "txt")
    packed(tmp_path / "labels", ["z", *KEYS[1:]], "cls")
    path = listed(tmp_path, IMAGES, LABELS)
    assert len(findings_of(path)) == 1
    assert findings_of(path, sample=0.5) == findings_of(path, quick=True) == []


@pytest.mark.parametrize(
    ("options", "why"),
    [
        ({"quick": True}, "--quick reads no rows"),
        ({"sample": 1}, "not all shards were read"),
        ({"part": (0, 2)}, "not all shards were read"),
        ({"state": "checked"}, "--state stores no keys"),
        ({}, None),
    ],
)
def test_keys_that_were_not_compared_are_noted(tmp_path, in_tmp_path, options, why):
    packed(tmp_path / "images", KEYS, "txt")
    packed(tmp_path / "labels", KEYS, "cls")
    packed(tmp_path / "apart", KEYS, "cls")
    done = commands.verify(str(listed(tmp_path, IMAGES, LABELS)), **options)
    assert list(done) == []
    assert [text for text in done.unprotected if text.startswith("keys of")] == (
        [] if why is None else [f"keys of streams 'images', 'labels' were not compared: {why}"]
    )
    alone = commands.verify(str(listed(tmp_path, LABELS, ("apart", LABELS[1]))), **options)
    assert (list(alone), [text for text in alone.unprotected if text.startswith("keys of")]) == (
        [],
        [],
    )
