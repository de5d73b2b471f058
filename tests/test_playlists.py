"""Playlists: read without trust, written so that they read back the same."""

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import playlists
from flarecli.errors import FormatError
from flarecli.model import Column, File, Playlist, Stream
from flarecli.storage import Location, locate
from flarecli.storage.memory import MemoryStore

AT = Location(MemoryStore(), "d/playlist.yaml")


def fault(data: bytes) -> str:
    with pytest.raises(FormatError) as caught:
        playlists.parse(data, AT)
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (b"a: &a [x]\nb: *a\n", "d/playlist.yaml:1:4: an alias or anchor (a), which playlists do not take"),
        (b"a:\n  content: [*b]\n", "d/playlist.yaml:2:13: an alias or anchor (b), which playlists do not take"),
        (
            b'!!python/object/apply:os.system ["touch x"]\n',
            "d/playlist.yaml:1:1: a tag (tag:yaml.org,2002:python/object/apply:os.system), which playlists do not take",
        ),
        (b"a: {}\na: {}\n", "d/playlist.yaml:2:1: the name 'a' was used in line 1"),
        (b"1: {}\n", "d/playlist.yaml:1:1: the name 1 is not text; put it in quotes"),
        (b"[1]: 2\n", "d/playlist.yaml:1:1: the name ['1'] is not text; put it in quotes".replace("'1'", "1")),
        (b"[" * 20_000, "d/playlist.yaml:1:17: nested deeper than 16"),
        (b"", "d/playlist.yaml:1:1: no mapping of streams in it"),
        (b"\xff", "d/playlist.yaml:1:1: not UTF-8 at byte 0"),
        (b"--- {}\n--- {}\n", "d/playlist.yaml:2:1: a second document"),
        (b"\t- x\n", "d/playlist.yaml:1:1: not valid YAML: found character that cannot start any token"),
        (b"a: 3\n", "d/playlist.yaml:1:1: stream 'a' is not a mapping of headers and content"),
        (b"a:\n  contents: []\n", "d/playlist.yaml:2:3: stream 'a' has 'contents', only headers and content are known"),
        (b"a:\n  headers: []\n", "d/playlist.yaml:2:3: the headers of 'a' are not a mapping"),
        (b"a:\n  content: x\n", "d/playlist.yaml:2:3: the content of 'a' is not a list"),
        (b"a:\n  content: [x, 3]\n", "d/playlist.yaml:2:3: content[1] of 'a' is 3, not an address"),
        (b"a:\n  headers: {rows: [1]}\n  content: [x, y]\n", "d/playlist.yaml:2:13: rows has 1 values, content has 2"),
        (b"a:\n  headers: {bytes: [-1]}\n  content: [x]\n", "d/playlist.yaml:2:13: bytes[0] is -1, not a count"),
        (b"a:\n  headers: {bytes: [true]}\n  content: [x]\n", "d/playlist.yaml:2:13: bytes[0] is True, not a count"),
        (b"a:\n  headers: {md5: [0123]}\n  content: [x]\n", None),
        (b"a:\n  headers: {md5: [1234]}\n  content: [x]\n", "d/playlist.yaml:2:13: md5[0] is 1234, not text; put it in quotes"),
        (
            b"a:\n  headers:\n    columns:\n      c: nope\n",
            "d/playlist.yaml:4:7: column 'c': unknown encoding 'nope'",
        ),
        (b"a:\n  headers: {files: {x: 3}}\n", "d/playlist.yaml:2:21: the file 'x' has no size in bytes"),
        (b"a:\n  headers: {format: [x]}\n", "d/playlist.yaml:2:13: format ['x'] is not text"),
    ],
)
def test_faults_name_their_line(data, message):
    if message is None:
        playlists.parse(data, AT)
    else:
        assert fault(data) == message


def test_words_that_other_readers_turn_into_values_stay_texts():
    (stream,) = playlists.parse(b"a: {content: [no, 012, 1:30, yes, 0x1f, 1_000, .inf, 2024-01-01]}\n", AT)
    assert list(stream.urls) == ["no", "012", "1:30", "yes", "0x1f", "1_000", ".inf", "2024-01-01"]


def test_missing_and_null_parts_are_empty():
    one, two = playlists.parse(b"a:\n  headers:\nb: {headers: null, content: []}\n", AT)
    assert (len(one), len(two), one.headers, one.rows) == (0, 0, {}, None)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
HEX = st.text("0123456789abcdef", min_size=16, max_size=16)
SCALAR = st.none() | st.booleans() | st.integers(-(10**18), 10**18) | TEXT | st.floats(allow_nan=False, allow_infinity=False)


@st.composite
def streams(draw):
    urls = draw(st.lists(TEXT, max_size=20))
    n = len(urls)
    counts = st.lists(st.integers(0, 1 << 60), min_size=n, max_size=n)
    return Stream(
        draw(TEXT),
        AT.folder,
        draw(st.none() | st.just("mds")),
        urls,
        draw(st.none() | st.just((Column("é", "str"), Column("no", "int", 8)))),
        draw(st.none() | counts.map(lambda v: np.array(v, np.int64))),
        draw(st.none() | counts.map(lambda v: np.array(v, np.int64))),
        {"xxh3_64": draw(st.lists(HEX, min_size=n, max_size=n))},
        None,
        {},
        {
            f"x-{key}": value
            for key, value in draw(
                st.dictionaries(TEXT, SCALAR | st.lists(SCALAR, max_size=10) | st.dictionaries(TEXT, SCALAR, max_size=3), max_size=3)
            ).items()
        },
        {"index.json": File("index.json", 3, {"md5": "00"})},
    )


@settings(max_examples=150, deadline=None)
@given(st.lists(streams(), max_size=3, unique_by=lambda s: s.name))
def test_what_is_written_is_read_back(values):
    data = playlists.text(Playlist(tuple(values)))
    again = playlists.parse(data, AT)
    assert again.protected
    assert playlists.text(again) == data
    for one, two in zip(values, again.streams, strict=True):
        assert (one.name, list(one.urls), one.format, one.columns, one.hashes, one.files) == (
            two.name,
            list(two.urls),
            two.format,
            two.columns,
            two.hashes,
            two.files,
        )
        assert one.headers == two.headers
        assert (one.rows is None and two.rows is None) or (one.rows == two.rows).all()


@settings(max_examples=60, deadline=None)
@given(st.lists(streams(), min_size=1, max_size=2, unique_by=lambda s: s.name))
def test_another_yaml_reader_sees_the_flare_shape(values):
    read = yaml.safe_load(playlists.text(Playlist(tuple(values))))
    assert list(read) == [stream.name for stream in values]
    for stream in values:
        assert read[stream.name]["content"] == list(stream.urls)
        assert read[stream.name]["headers"]["xxh3_64"] == list(stream.hashes["xxh3_64"])


def test_every_flipped_bit_is_noticed():
    stream = Stream("data", AT.folder, "mds", ["a.mds"], (Column("c", "int", 8),), np.array([3]), np.array([99]), {"xxh3_128": ["0" * 32]})
    data = playlists.text(Playlist((stream,)))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        try:
            assert not playlists.parse(bytes(flipped), AT).protected, bit
        except FormatError:
            pass


@given(st.binary(max_size=200) | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass")))
def test_any_bytes_are_a_playlist_or_a_format_error(data):
    try:
        playlists.parse(data, AT)
    except FormatError:
        pass


@pytest.mark.parametrize(
    ("stream", "told"),
    [
        ("a: [1]", ["stream 'a' is not a mapping of headers and content"]),
        ("a: {headers: {parts: []}, content: [x.mds]}", ["parts has 0 values, content has 1"]),
        ("a: {headers: {parts: 5}, content: [x.mds]}", ["parts has no list, content has 1"]),
        (f"a: {{headers: {{rows: [{1 << 62}]}}, content: [x.mds]}}", [f"rows[0] is {1 << 62}, not a count"]),
        (f"a: {{headers: {{rows: [{(1 << 62) - 1}]}}, content: [x.mds]}}", []),
        ("a: {headers: {rows: [0, null]}, content: [x.mds, y.mds]}", []),
        ("a: {headers: {rows: [-1, null]}, content: [x.mds, y.mds]}", ["rows[0] is -1, not a count"]),
    ],
)
def test_lists_at_the_border_of_what_they_may_be(stream, told):
    assert [error.message for error in playlists.faults(stream.encode(), locate("p.yaml"))] == told


def test_the_first_line_counts_when_it_is_empty():
    (error,) = playlists.faults(b"\na: \xff", locate("p.yaml"))
    assert error.where.endswith("p.yaml:2:4")
