"""What formats hold: every encoding has an answer for every format, and the documentation prints the same table."""

import re
from pathlib import Path

import pytest

from flarecli import formats
from flarecli.encodings import column, held, held_as, lookup
from flarecli.encodings.holds import FORMATS, KEPT, REFUSED, TABLE
from flarecli.encodings.names import NAMES
from flarecli.errors import UsageError

ALL = [name for names in FORMATS for name in names.split()]
ENCODINGS = [*NAMES, "ndarray:", "ndarray:int32", "ndarray:int32:2,3"]
ENCODINGS += [f"{name}[]" for name in ENCODINGS]
PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


def test_there_is_an_answer_for_every_format_there_is():
    assert set(formats.names()) <= set(ALL)
    assert sorted(ALL) == sorted(
        [
            "mds",
            "json",
            "csv",
            "tsv",
            "xsv",
            "ffrecord",
            "granular",
            "granular-refs",
            "webdataset",
            "files",
        ]
    )


@pytest.mark.parametrize("form", ALL)
@pytest.mark.parametrize("encoding", ENCODINGS)
def test_every_encoding_is_held_or_refused_and_what_is_held_stays(encoding, form):
    try:
        instead = held_as(encoding, form)
    except UsageError as error:
        assert str(error) == f"{form} cannot hold {encoding}"
        assert error.hint == "Choose another --format, or the columns to pack with -c."
        return
    assert lookup(instead).name == instead
    assert held_as(instead, form) == instead


def test_formats_hold_their_own():
    mds = [name for name in NAMES if held_as(name, "mds") == name]
    assert len(mds) == 28
    assert [
        name
        for name in NAMES
        if name in ("str", "varint", "uint64", "int", "msgpack", "array", "tree")
        and held_as(name, "granular") != name
    ] == []
    assert held_as("str[]", "granular-refs") == "str[]"
    assert {name: held_as(name, "json") for name in ("json_str", "json_int", "json_float")} == {
        name: name for name in ("json_str", "json_int", "json_float")
    }


def test_a_column_is_named_that_a_format_cannot_hold():
    with pytest.raises(UsageError, match="^column 'x': tsv cannot hold jpeg$"):
        held(column("x", "jpeg"), "tsv")
    assert held(column("x", "int"), "csv") == column("x", "str_int")
    assert held(column("x", "ndarray:int8:4"), "mds").size == 4


@pytest.mark.parametrize(
    ("encoding", "form", "message"),
    [("text", "mds", "unknown encoding 'text'"), ("str", "parquet", "unknown format 'parquet'")],
)
def test_unknown_words_are_said(encoding, form, message):
    with pytest.raises(UsageError, match=f"^{message}$"):
        held_as(encoding, form)


def test_the_documentation_prints_the_table():
    lines = PAGE.read_text().splitlines()
    first = lines.index(f"| encoding | {' | '.join(FORMATS)} |")
    found = [
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[first + 2 : first + 2 + len(TABLE)]
    ]
    signs = {KEPT: "=", REFUSED: "–"}
    wanted = [
        [
            names if "lists" in names else " ".join(f"`{name}`" for name in names.split()),
            *(signs.get(cell, f"`{cell}`") for cell in cells),
        ]
        for names, *cells in TABLE
    ]
    assert found == wanted
    assert not lines[first + 2 + len(TABLE)].startswith("|")


def test_the_documentation_names_every_encoding_and_format():
    text = PAGE.read_text()
    named = set(re.findall(r"`([^`]+)`", text))
    assert {*ALL, *NAMES} - named == {"int16", "int32", "uint16", "uint32", "uint8"} - named
