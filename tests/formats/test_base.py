"""Substitutes of encodings: every format stores or refuses every encoding, as the documentation
lists.
"""

import re
from pathlib import Path

import pytest

from flarecli import formats
from flarecli.encodings import column, lookup
from flarecli.encodings.names import NAMES
from flarecli.errors import UsageError
from flarecli.model import Column

WRITTEN = formats.names(writable=True)
ENCODINGS = [*NAMES, "ndarray:", "ndarray:int32", "ndarray:int32:2,3"]
ENCODINGS += [f"{name}[]" for name in ENCODINGS]
PAGE = Path(__file__).parents[2] / "docs" / "formats.md"


@pytest.mark.parametrize("form", WRITTEN)
def test_every_encoding_is_stored_or_refused_and_substitutes_are_stable(form):
    for encoding in ENCODINGS:
        instead = formats.find(form).store_as(encoding)
        if instead is not None:
            assert lookup(instead).name == instead, encoding
            assert formats.find(form).store_as(instead) == instead, encoding
            continue
        with pytest.raises(UsageError) as caught:
            formats.find(form).stored_column(column("x", encoding))
        assert str(caught.value) == f"column 'x': {form} cannot store {encoding}"
        assert caught.value.hint == "Use -c to select the columns to pack.", encoding


def test_formats_store_the_encodings_of_their_originals():
    mds = [name for name in NAMES if formats.find("mds").store_as(name) == name]
    assert len(mds) == 28
    granular = ("str", "varint", "uint64", "int", "msgpack", "array", "tree")
    assert {name: formats.find("granular").store_as(name) for name in granular} == {
        name: name for name in granular
    }
    assert formats.find("granular-refs").store_as("str[]") == "str[]"
    ours = ("json_str", "json_int", "json_float")
    assert {name: formats.find("json").store_as(name) for name in ours} == {
        name: name for name in ours
    }


def test_a_column_that_a_format_cannot_store_is_named_in_the_error():
    with pytest.raises(UsageError, match="^column 'x': tsv cannot store jpeg(?m:$)"):
        formats.find("tsv").stored_column(column("x", "jpeg"))
    assert formats.find("csv").stored_column(column("x", "int")) == column("x", "str_int")
    assert formats.find("mds").stored_column(column("x", "ndarray:int8:4")).size == 4


def test_an_unknown_encoding_is_refused():
    with pytest.raises(UsageError, match="^column 'x': unknown encoding 'text'(?m:$)"):
        formats.find("mds").stored_column(Column("x", "text"))


def _documented():
    lines = PAGE.read_text().splitlines()
    first = next(i for i, line in enumerate(lines) if line.startswith("| encoding | mds |"))
    names, *rows = (
        [cell.strip() for cell in line.strip("|").split("|")]
        for line in lines[first : lines.index("", first)]
    )
    return names[1:], rows[1:]


def test_the_documentation_lists_the_substitute_of_each_encoding():
    columns, rows = _documented()
    assert {name for names in columns for name in names.split()} == set(WRITTEN)
    asked = set()
    groups = {
        "bytes[] and other lists of bytes": ["bytes[]", "pkl[]", "mp4[]", "list[jpeg][]"],
        "all other lists": ["str[]", "int[]", "json[]", "msgpack[]", "float32[]"],
    }
    for title, *cells in rows:
        encodings = groups.get(title, re.findall(r"`([^`]+)`", title))
        asked.update(encodings)
        for names, cell in zip(columns, cells, strict=True):
            for form in names.split():
                for encoding in encodings:
                    instead = formats.find(form).store_as(encoding)
                    if cell == "`X[]`":
                        item = formats.find(form).store_as(encoding[:-2])
                        assert instead == (encoding if item.endswith("[]") else f"{item}[]")
                    else:
                        wanted = {"=": encoding, "–": None}.get(cell, cell.strip("`"))
                        assert instead == wanted, (form, encoding)
    assert set(NAMES) <= asked


def test_the_documentation_lists_every_encoding_and_format():
    named = set(re.findall(r"`([^`]+)`", PAGE.read_text()))
    known = {*formats.names(), *NAMES}
    assert known - named == {"int16", "int32", "uint16", "uint32", "uint8"} - named
