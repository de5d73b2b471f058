"""Small playlists are read without the YAML library: what comes of it is what the library would give, and whatever is unusual is left to it."""

import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import playlists
from flarecli.errors import FormatError
from flarecli.model import Column, File, Playlist, Stream
from flarecli.playlists import reading
from flarecli.playlists.plainly import plain_map
from flarecli.storage import locate

AT = locate("/nowhere/playlist.yaml")

WHOLE = """\
# flare xxh3_128 of nothing
data:
  headers:
    format: mds
    columns: {data: bytes, id: int}
    rows: [
      1, 2,
      null]
    bytes: [10, 20, 30]
    xxh3_128: ["00", "12", ""]
    nothing: {}
    none: []
    ratio: 1.5
    note: "a: b, [c] {d} # e"
    files:
      index.json: {bytes: 5, xxh3_128: "aa"}
    parts: [
      {a.meta: {bytes: 1, xxh3_128: "bb"}},
      {b.meta: {bytes: 1}},
      {"c d.meta": {}}]
  content:
    - a.mds
    - "https://host.example/b.mds"

    - 00/c.mds
"""
ODD = [
    "a: b\n",
    "a:\n- b\n",
    "a:\n  b\n",
    "a:\n  - b\n   c\n",
    "a:\n  - b: c\n",
    "a:\n  - - b\n",
    "a: [b, c: d]\n",
    "a: [b,\n c]\n",
    "a: [b,\nc]\n",
    'a: "b,\n  c"\n',
    'a: "b[\n  c"\n',
    'a: ["b,\n  c"]\n',
    "a: [b, # c\n  d]\n",
    "a: [\n  b,\n# c\n  d]\n",
    "a: {b: c, b: d}\n",
    "a: {b: c,}\n",
    "a: [b, ]\n",
    "a: [b,,c]\n",
    "a: {b}\n",
    "a: b c\n",
    "a: b #c\n",
    "a: b#c\n",
    "a: 'b'\n",
    "a: &x b\n",
    "a: *x\n",
    "a: !!str b\n",
    "a: |\n  b\n",
    "a: b\na: c\n",
    "1: b\n",
    "true: b\n",
    '"1": b\n',
    "a:b\n",
    "a: b:c\n",
    "a: -1\n",
    "a: -b\n",
    "---\na: b\n",
    "a: b\n...\n",
    "a: b\n---\nc: d\n",
    "%YAML 1.1\n---\na: b\n",
    "a:\n  b: c\n d: e\n",
    "a:\n    b: c\n  d: e\n",
    "a:\n",
    "a: \n",
    "a: b",
    "",
    "# nothing\n",
    "{}\n",
    "a: b\r\n",
    "a: b\x85c: d\n",
    "# a\x85b: c\n",
    "a: \u2028b\n",
    'a: "b\u2028c"\n',
    'a: "\\x41"\n',
    "\ufeffa: b\n",
    "a:\tb\n",
    "\ta: b\n",
    "a: [[[[[[[[[[[[[[[[[[b]]]]]]]]]]]]]]]]]]\n",
    "a:\n b:\n  c:\n   d:\n    e:\n     f:\n      g: [[[[[[[[[[1]]]]]]]]]]\n",
    f"{'a' * 1100}: b\n",
    f"a: {{{'b' * 1100}: c}}\n",
    "a: ? b\n",
    "a: 012\n",
    "a: 1:30\n",
    "a: 2020-01-01\n",
    "a: 1_000\n",
]


def outcome(call, *args):
    try:
        return call(*args)
    except FormatError as error:
        return str(error)


def library(text):
    """What the YAML library gives."""
    return outcome(reading.read_yaml, text, AT, {})


def plainly(text):
    return plain_map(text, reading._plain)


def test_all_that_flare_writes_is_read():
    assert plainly(WHOLE) == library(WHOLE) and plainly(WHOLE)["data"]["headers"]["rows"] == [
        1,
        2,
        None,
    ]


@pytest.mark.parametrize("text", ODD)
def test_what_is_unusual_means_the_same_or_is_left_to_the_library(text):
    assert plainly(text) in (None, library(text))


@settings(max_examples=300)
@given(st.integers())
def test_a_changed_text_means_the_same_or_is_left_to_the_library(seed):
    chance, text = random.Random(seed), WHOLE
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(text))
        text = (
            text[:at]
            + chance.choice(
                [
                    "",
                    " ",
                    "\n",
                    ",",
                    ": ",
                    "[",
                    "]",
                    "{",
                    "}",
                    '"',
                    "#",
                    "- ",
                    "a",
                    "0",
                    "\n  ",
                    "\\",
                    "'",
                ]
            )
            + text[at + chance.randint(0, 2) :]
        )
    assert plainly(text) in (None, library(text))


NAMES = st.text(
    st.characters(codec="utf-8", exclude_characters="\0/"), min_size=1, max_size=12
).filter(lambda name: name not in (".", ".."))


@settings(max_examples=100)
@given(
    st.lists(
        st.tuples(
            NAMES,
            st.integers(-1, 1 << 60),
            st.one_of(st.just(""), st.text("0123456789abcdef", min_size=32, max_size=32)),
        ),
        max_size=20,
    )
)
def test_a_playlist_that_flare_writes_reads_as_through_the_library(shards):
    names = [f"x{name}" for name, _, _ in shards]
    counts = [count for _, count, _ in shards]
    stream = Stream(
        "data",
        AT.folder,
        "mds",
        names,
        (Column("id", "int", 8),),
        np.array(counts, np.int64),
        None,
        {"xxh3_128": [sum for _, _, sum in shards]},
    )
    found = Playlist(
        (
            Stream(
                **{name: getattr(stream, name) for name in stream.__slots__}
                | {"files": {"index.json": File("index.json", 5, {"sha1": "0a"})}}
            ),
        )
    )
    text = playlists.text(found).decode()
    assert plainly(text) in (None, library(text))
    assert plainly(text) is not None or not all(
        name.isascii() and name.isprintable() and '"' not in name and "\\" not in name
        for name in names
    )


def test_a_fault_is_told_with_its_place_all_the_same():
    with pytest.raises(FormatError, match=r"rows\[1\] is 'x', not a count") as caught:
        playlists.parse(b"data:\n  headers:\n    rows: [1, x]\n  content:\n    - a\n    - b\n", AT)
    assert caught.value.where == "/nowhere/playlist.yaml:3:5"
