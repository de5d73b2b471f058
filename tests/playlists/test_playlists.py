"""Playlists are validated when they are read, and are read back unchanged after writing."""

import importlib
from dataclasses import replace

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
from tests.properties import examples

READ = importlib.import_module("flarecli.playlists.read")  # `playlists.read` is the function

AT = Location(MemoryStore(), "d/playlist.yaml")


def fault(data: bytes) -> str:
    with pytest.raises(FormatError) as caught:
        playlists.parse(data, AT)
    assert caught.value.exit_code == 4
    return str(caught.value)


@pytest.mark.parametrize(
    ("data", "message"),
    [
        (
            b"a: &a [x]\nb: *a\n",
            "d/playlist.yaml:1:4: playlists cannot contain an alias or anchor (a)",
        ),
        (
            b"a:\n  content: [*b]\n",
            "d/playlist.yaml:2:13: playlists cannot contain an alias or anchor (b)",
        ),
        (
            b'!!python/object/apply:os.system ["touch x"]\n',
            "d/playlist.yaml:1:1: playlists cannot contain a tag (tag:yaml.org,2002:python/object/apply:os.system)",
        ),
        (b"a: {}\na: {}\n", "d/playlist.yaml:2:1: the name 'a' was used in line 1"),
        (b"1: {}\n", "d/playlist.yaml:1:1: the name 1 is not text; put it in quotes"),
        (
            b"[1]: 2\n",
            "d/playlist.yaml:1:1: the name ['1'] is not text; put it in quotes".replace("'1'", "1"),
        ),
        (b"[" * 900, "d/playlist.yaml:1:17: nested more than 16 levels deep"),
        (b"", "d/playlist.yaml:1:1: expected a mapping of streams"),
        (b"\xff", "d/playlist.yaml:1:1: not UTF-8 at byte 0"),
        (b"--- {}\n--- {}\n", "d/playlist.yaml:2:1: expected one YAML document, found a second"),
        (
            b"\t- x\n",
            "d/playlist.yaml:1:1: not valid YAML: found character that cannot start any token",
        ),
        (b"a: 3\n", "d/playlist.yaml:1:1: stream 'a' is not a mapping of headers and content"),
        (
            b"a:\n  contents: []\n",
            "d/playlist.yaml:2:3: stream 'a' has 'contents'; only headers and content are allowed",
        ),
        (b"a:\n  headers: []\n", "d/playlist.yaml:2:3: the headers of 'a' are not a mapping"),
        (b"a:\n  content: x\n", "d/playlist.yaml:2:3: the content of 'a' is not a list"),
        (
            b"a:\n  content: [x, 3]\n",
            "d/playlist.yaml:2:3: content[1] of 'a' is 3; expected an address",
        ),
        (
            b"a:\n  headers: {rows: [1]}\n  content: [x, y]\n",
            "d/playlist.yaml:2:13: rows has 1 values, content has 2",
        ),
        (
            b"a:\n  headers: {bytes: [-1]}\n  content: [x]\n",
            "d/playlist.yaml:2:13: bytes[0] is -1, not a count",
        ),
        (
            b"a:\n  headers: {bytes: [true]}\n  content: [x]\n",
            "d/playlist.yaml:2:13: bytes[0] is True, not a count",
        ),
        (b"a:\n  headers: {md5: [0123]}\n  content: [x]\n", None),
        (
            b"a:\n  headers: {md5: [1234]}\n  content: [x]\n",
            "d/playlist.yaml:2:13: md5[0] is 1234, not text; put it in quotes",
        ),
        (
            b"a:\n  headers:\n    columns:\n      c: nope\n",
            "d/playlist.yaml:4:7: column 'c': unknown encoding 'nope'",
        ),
        (
            b"a:\n  headers: {files: {x: 3}}\n",
            "d/playlist.yaml:2:21: the file 'x' is invalid; expected sizes in bytes and checksums",
        ),
        (b"a:\n  headers: {format: [x]}\n", "d/playlist.yaml:2:13: format ['x'] is not text"),
        (b"a: {}\nb: !x {}\n", "d/playlist.yaml:2:4: playlists cannot contain a tag (!x)"),
        (
            b"a: {}\nb: {}\nc: \x01\n",
            "d/playlist.yaml:3:4: not valid YAML: unacceptable character #x0001: control characters are not allowed",
        ),
        (
            "é: {}\nb: éééééé\nc: é\x01\n".encode(),
            "d/playlist.yaml:3:5: not valid YAML: unacceptable character #x0001: control characters are not allowed",
        ),
        (
            b"a: {}\nb: 3\n",
            "d/playlist.yaml:2:1: stream 'b' is not a mapping of headers and content",
        ),
        (
            b'a:\n  content: [x, ""]\n',
            "d/playlist.yaml:2:3: content[1] of 'a' is ''; expected an address",
        ),
        (
            b"a:\n  headers: {rows: [1, 2]}\n  content: [x]\n",
            "d/playlist.yaml:2:13: rows has 2 values, content has 1",
        ),
        (
            b"a:\n  headers: {rows: []}\n  content: [x]\n",
            "d/playlist.yaml:2:13: rows has 0 values, content has 1",
        ),
        (
            b"a:\n  headers: {rows: null, md5: null}\n  content: [x]\n",
            "d/playlist.yaml:2:25: md5 is not a list; content has 1",
        ),
        (
            b"a:\n  headers: {rows: [10000000000000000001]}\n  content: [x]\n",
            "d/playlist.yaml:2:13: rows[0] is 10000000000000000001, not a count",
        ),
        (
            b"a:\n  headers: {raw_bytes: [1.0]}\n  content: [x]\n",
            "d/playlist.yaml:2:13: raw_bytes[0] is 1.0, not a count",
        ),
        (
            b"a:\n  headers: {columns: [c]}\n",
            "d/playlist.yaml:2:13: columns is not a mapping of name to encoding",
        ),
        (
            b"a:\n  headers: {columns: {c: null}}\n",
            "d/playlist.yaml:2:23: column 'c': unknown encoding 'None'",
        ),
        (
            b"a:\n  headers: {files: [x]}\n",
            "d/playlist.yaml:2:13: files is not a mapping of name to size and checksums",
        ),
        (
            b"a:\n  headers: {files: {x: {bytes: -1}}}\n",
            "d/playlist.yaml:2:21: the file 'x' is invalid; expected sizes in bytes and checksums",
        ),
        (
            b"a:\n  headers: {files: {x: {bytes: 1, raw_bytes: y}}}\n",
            "d/playlist.yaml:2:21: the file 'x' is invalid; expected sizes in bytes and checksums",
        ),
        (
            b"a:\n  headers: {files: {x: {bytes: 1, md5: 12}}}\n",
            "d/playlist.yaml:2:21: a checksum of the file 'x' is not text; put it in quotes",
        ),
        (
            b"a:\n  headers: {parts: [[]]}\n  content: [x]\n",
            "d/playlist.yaml:2:13: parts[0] is not a mapping of name to size and checksums",
        ),
        (
            b"a:\n  headers: {parts: [{y: 1}]}\n  content: [x]\n",
            "d/playlist.yaml:2:22: the file 'y' is invalid; expected sizes in bytes and checksums",
        ),
        (
            b"a:\n  " + b"h" * 70 + b": []\n",
            f"d/playlist.yaml:2:3: stream 'a' has '{'h' * 59}; only headers and content are allowed",
        ),
    ],
)
def test_faults_are_reported_with_their_line(data, message):
    if message is None:
        playlists.parse(data, AT)
    else:
        assert fault(data) == message


def test_nesting_beyond_the_limit_of_libyaml_is_refused():
    with pytest.raises(FormatError) as caught:  # PyYAML 6.0.4 stops at 1,000 levels by itself
        playlists.parse(b"[" * 20_000, AT)
    assert str(caught.value) in (
        "d/playlist.yaml:1:17: nested more than 16 levels deep",
        "d/playlist.yaml:1:1001: not valid YAML: exceeded maximum nesting depth",
    )


def test_words_that_are_values_in_yaml_1_1_are_read_as_text():
    (stream,) = playlists.parse(
        b"a: {content: [no, 012, 1:30, yes, 0x1f, 1_000, .inf, 2024-01-01]}\n", AT
    )
    assert list(stream.urls) == ["no", "012", "1:30", "yes", "0x1f", "1_000", ".inf", "2024-01-01"]


def test_missing_and_null_parts_are_empty():
    one, two = playlists.parse(b"a:\n  headers:\nb: {headers: null, content: []}\n", AT)
    assert (len(one), len(two), one.headers, one.rows) == (0, 0, {}, None)


TEXT = st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=12)
HEX = st.text("0123456789abcdef", min_size=16, max_size=16)
SCALAR = (
    st.none()
    | st.booleans()
    | st.integers(-(10**18), 10**18)
    | TEXT
    | st.floats(allow_nan=False, allow_infinity=False)
)


@st.composite
def streams(draw):
    urls = draw(
        st.lists(TEXT.filter(lambda url: not url.startswith("./")), max_size=20)
    )  # `./a` is read as `a`
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
                st.dictionaries(
                    TEXT,
                    SCALAR
                    | st.lists(SCALAR, max_size=10)
                    | st.dictionaries(TEXT, SCALAR, max_size=3),
                    max_size=3,
                )
            ).items()
        },
        {"index.json": File("index.json", 3, {"md5": "00"})},
    )


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(streams(), max_size=3, unique_by=lambda s: s.name))
def test_a_written_playlist_is_read_back_unchanged(values):
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


@settings(max_examples=examples(60), deadline=None)
@given(st.lists(streams(), min_size=1, max_size=2, unique_by=lambda s: s.name))
def test_pyyaml_reads_headers_and_content_of_each_stream(values):
    read = yaml.safe_load(playlists.text(Playlist(tuple(values))))
    assert list(read) == [stream.name for stream in values]
    for stream in values:
        assert read[stream.name]["content"] == list(stream.urls)
        assert read[stream.name]["headers"]["xxh3_64"] == list(stream.hashes["xxh3_64"])


def test_every_flipped_bit_is_detected():
    stream = Stream(
        "data",
        AT.folder,
        "mds",
        ["a.mds"],
        (Column("c", "int", 8),),
        np.array([3]),
        np.array([99]),
        {"xxh3_128": ["0" * 32]},
    )
    data = playlists.text(Playlist((stream,)))
    for bit in range(8 * len(data)):
        flipped = bytearray(data)
        flipped[bit // 8] ^= 1 << bit % 8
        with pytest.raises(FormatError):
            playlists.parse_intact(bytes(flipped), AT)
    assert playlists.parse_intact(data, AT).protected


@given(
    st.binary(max_size=200)
    | st.text(max_size=200).map(lambda t: t.encode("utf-8", "surrogatepass"))
)
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
        ("a: {headers: {parts: 5}, content: [x.mds]}", ["parts is not a list; content has 1"]),
        (
            f"a: {{headers: {{rows: [{1 << 62}]}}, content: [x.mds]}}",
            [f"rows[0] is {1 << 62}, not a count"],
        ),
        (f"a: {{headers: {{rows: [{(1 << 62) - 1}]}}, content: [x.mds]}}", []),
        ("a: {headers: {rows: [0, null]}, content: [x.mds, y.mds]}", []),
        (
            "a: {headers: {rows: [-1, null]}, content: [x.mds, y.mds]}",
            ["rows[0] is -1, not a count"],
        ),
    ],
)
def test_lists_of_another_length_or_type_are_faults(stream, told):
    assert [error.message for error in playlists.faults(stream.encode(), locate("p.yaml"))] == told


def test_an_empty_first_line_is_counted():
    (error,) = playlists.faults(b"\na: \xff", locate("p.yaml"))
    assert error.where.endswith("p.yaml:2:4")


def test_a_playlist_above_the_maximum_size_is_not_read(monkeypatch):
    data = playlists.text(Playlist(()))
    at = Location(MemoryStore({"playlist.yaml": data}), "playlist.yaml")
    monkeypatch.setattr(READ, "MAX_BYTES", len(data))
    assert playlists.stored(at) == data
    monkeypatch.setattr(READ, "MAX_BYTES", len(data) - 1)
    with pytest.raises(FormatError) as caught:
        playlists.stored(at)
    assert (
        str(caught.value)
        == f"playlist.yaml: file is {len(data)} bytes; the maximum is {len(data) - 1}"
    )


def test_text_before_or_after_the_checksummed_text_is_not_protected():
    data = playlists.text(Playlist((Stream("a", AT.folder, None, ["x"]),)))
    assert playlists.parse(data, AT).protected
    for more in (b"#\n", b"b: {}\n", b"\n", b" "):
        assert not playlists.parse(data + more, AT).protected
        assert not playlists.parse(more + data, AT).protected
    assert not playlists.parse(data[:-1], AT).protected


def test_sizes_and_checksums_of_all_files_are_read():
    (stream,) = playlists.parse(
        b"a:\n  headers:\n    rows: [null, 3]\n    bytes: [5, null]\n    raw_bytes: [null, 7]\n"
        b"    files: {./i.json: {bytes: 1, raw_bytes: 2, md5: aa}}\n    parts: [{./x.meta: {raw_bytes: 4}}, {}]\n"
        b"  content: [x, ./y]\n",
        AT,
    )
    assert (
        list(stream.urls),
        stream.rows.tolist(),
        stream.sizes.tolist(),
        stream.raw_sizes.tolist(),
    ) == (["x", "y"], [-1, 3], [5, -1], [-1, 7])
    assert (stream.files, stream.parts) == (
        {"i.json": File("i.json", 1, {"md5": "aa"}, 2)},
        [(File("x.meta", None, {}, 4),), ()],
    )
    data = playlists.text(Playlist((stream,)))
    read = yaml.safe_load(data)["a"]["headers"]
    assert (read["rows"], read["bytes"], read["raw_bytes"]) == ([None, 3], [5, None], [None, 7])
    assert (read["files"], read["parts"]) == (
        {"i.json": {"bytes": 1, "raw_bytes": 2, "md5": "aa"}},
        [{"x.meta": {"bytes": None, "raw_bytes": 4}}, {}],
    )
    assert playlists.text(playlists.parse(data, AT)) == data


@pytest.mark.parametrize(
    "number", [2**63, -(2**64), 12345678901234567890, 10**38, -(10**38) - 1, 0, -1]
)
def test_integers_of_more_than_64_bits_are_kept(number):
    (stream,) = playlists.parse(b"a: {headers: {x: %d, y: [%d]}}\n" % (number, number), AT)
    data = playlists.text(Playlist((stream,)))
    assert yaml.safe_load(data)["a"]["headers"] == {"x": number, "y": [number]}
    assert playlists.parse(data, AT).streams[0].headers == {"x": number, "y": [number]}


@pytest.mark.parametrize("word", ["1e999", "-1e400", "9" * 40, "0." + "1" * 40])
def test_numbers_that_a_float_cannot_represent_are_read_as_text(word):
    (stream,) = playlists.parse(f"a: {{headers: {{x: {word}}}}}\n".encode(), AT)
    assert stream.headers == {"x": word}
    assert yaml.safe_load(playlists.text(Playlist((stream,))))["a"]["headers"] == {"x": word}


WORDS = [
    *(
        "y",
        "N",
        "Yes",
        "oFF",
        "null",
        "Null",
        "~",
        "true",
        "NaN",
        ".nan",
        ".Inf",
        "-.inf",
        "inf",
        ".5",
        "._5",
        "._",
        "..",
        "0x1F",
        "1:30",
        "=",
        "<<",
    ),
    *(
        "2024-01-01",
        "-",
        "- a",
        "?",
        "a: b",
        "a:",
        "#a",
        "a #b",
        " a",
        "a ",
        "",
        "'",
        '"',
        "\\",
        "[a",
        "{",
        "}",
        ",",
        "&a",
        "*a",
        "!a",
        "|",
        "%a",
        "@a",
    ),
    *(
        "\t",
        "\n",
        "\r",
        "\x00",
        "\x1b",
        "\x7f",
        "\x85",
        "\xa0",
        "\u2028",
        "\ufeff",
        "\ufffe",
        "\U000e0001",
        "é",
        "\U0001f600",
        "12345678",
        "1e5",
        "...",
        "---",
    ),
]


@pytest.mark.parametrize(("length", "step"), [(1, 1), (130, 9), (1100, 9)])
def test_pyyaml_reads_every_word_unchanged_in_every_position(length, step):
    """Includes names longer than 1,024 characters, the maximum length of an implicit key in
    YAML.
    """
    words = [word * length for word in WORDS[1::step]]
    columns = tuple(Column(word, "str") for word in words if word)
    files = {word: File(word, 1, {"md5": word}) for word in words}
    first = Stream(
        "",
        AT.folder,
        None,
        words,
        columns,
        None,
        None,
        {"md5": words},
        None,
        {},
        {"x": {word: [word] for word in words}},
        files,
    )
    first = replace(
        first, urls=[word or "x" for word in words], parts=[(File(word, 2),) for word in words]
    )
    data = playlists.text(
        Playlist((first, *(Stream(word, AT.folder, None, []) for word in words if word)))
    )
    assert yaml.safe_load(data) == {
        "": {
            "headers": {
                "columns": {one.name: "str" for one in columns},
                "md5": words,
                "x": {word: [word] for word in words},
                "files": {word: {"bytes": 1, "md5": word} for word in words},
                "parts": [{word: {"bytes": 2}} for word in words],
            },
            "content": [word or "x" for word in words],
        }
    } | {word: {"headers": {}, "content": []} for word in words if word}
    again = playlists.parse(data, AT)
    assert again.protected
    assert playlists.text(again) == data


def test_infinity_and_nan_in_headers_are_written_as_text():
    stream = Stream(
        "a",
        AT.folder,
        None,
        [],
        headers={"x": float("inf"), "y": float("nan"), "z": {}, "hex": "deadbeef", "short": "0"},
    )
    read = yaml.safe_load(playlists.text(Playlist((stream,))))["a"]
    assert read == {
        "headers": {"x": "inf", "y": "nan", "z": {}, "hex": "deadbeef", "short": "0"},
        "content": [],
    }
    assert yaml.safe_load(playlists.text(Playlist((Stream("a", AT.folder, None, []),)))) == {
        "a": {"headers": {}, "content": []}
    }


@pytest.mark.parametrize(
    ("data", "told"),
    [
        (
            "a: {headers: {rows: [x], bytes: [1, y]}, content: [x, 3]}\nb: 3\n",
            [
                "p.yaml:1:15: rows has 1 values, content has 2",
                "p.yaml:1:22: rows[0] is 'x', not a count",
                "p.yaml:1:37: bytes[1] is 'y', not a count",
                "p.yaml:1:55: content[1] of 'a' is 3; expected an address",
                "p.yaml:2:1: stream 'b' is not a mapping of headers and content",
            ],
        ),
        (
            "a: {}\na: {headers: 1}\nb: {content: [*x, &y z], headers: {format: 2}}\n- c\n",
            [
                "p.yaml:2:1: the name 'a' was used in line 1",
                "p.yaml:3:15: playlists cannot contain an alias or anchor (x)",
                "p.yaml:3:19: playlists cannot contain an alias or anchor (y)",
                "p.yaml:4:1: not valid YAML: did not find expected key",
            ],
        ),
    ],
)
def test_all_faults_are_reported_in_line_order(data, told):
    assert [str(error) for error in playlists.faults(data.encode(), locate("p.yaml"))] == told


def test_a_comment_above_the_last_line_is_not_a_checksum():
    data = b"# flare playlist of days, by hand\na:\n  content: [x]\n"
    playlist = playlists.parse_intact(data, AT)
    assert (playlist.protected, playlist.has_checksum) == (False, False)
    assert playlists.parse(data + b"# flare xxh3_128 0\n\n", AT).has_checksum
