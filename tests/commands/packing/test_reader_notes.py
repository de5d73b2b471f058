"""Notes about columns whose values have another type in readers of the original than in flare."""

import datetime
import decimal

import numpy as np
import pyarrow as pa
import pytest

import flarecli as flare
from flarecli import formats
from flarecli.errors import UsageError
from flarecli.write.columns import MAX_READER_NOTES
from tests.commands.packing.note_collector import NoteCollector

WHEN = pa.array([datetime.datetime(2024, 2, 29)], pa.timestamp("us", "UTC"))
TABLE = {
    "when": WHEN,
    "took": pa.array([5], pa.duration("s")),
    "price": pa.array([decimal.Decimal("1.10")], pa.decimal128(5, 2)),
    "yes": [True],
    "n": [1],
    "f": [0.5],
    "text": ["a"],
    "data": [b"a"],
    "kind": pa.array(["a"]).dictionary_encode(),
    "list": [[1]],
    "times": pa.array([[datetime.date(2024, 1, 1)]]),
    "box": [{"x": 1}],
    "tensor": pa.FixedShapeTensorArray.from_numpy_ndarray(np.ones((1, 1, 1), np.float32)),
}
TEXTS = {"when": "ISO text", "took": "the number as text", "yes": "0 or 1"}
LISTS = {"times": "lists with text in place of date32[day]"}
JSON = dict.fromkeys(("list", "times", "box", "tensor"), "JSON text")
SEEN = {  # what the documentation of the original describes
    "mds": TEXTS | LISTS,
    "json": TEXTS | JSON | {"price": "text"},
    "csv": TEXTS | JSON | {"price": "text"},
    "granular": TEXTS | {"price": "text", "times": "JSON text", "box": "JSON text"},
    "webdataset": TEXTS | LISTS | {"price": "text", "tensor": "bytes"},
    "tfrecord": TEXTS
    | {"price": "text", "f": "bytes", "times": "JSON text", "box": "JSON text", "tensor": "bytes"},
}


def notes_of(table, out, **options):
    progress = NoteCollector()
    flare.pack(table, out, progress=progress, **options)
    return progress.notes


@pytest.mark.parametrize("form", SEEN)
def test_a_note_names_the_types_that_readers_of_the_original_return(tmp_path, form):
    noted = {}
    for name, values in TABLE.items():
        if formats.find(form).store_as("bytes") is None and name == "data":
            continue
        options = {"format": form, "dry_run": True}
        table = pa.table({name: values})
        for note in notes_of(table, tmp_path / name, **options):
            column, _, rest = note.removeprefix("column ").partition(": ")
            seen, _, kind = rest.partition("; flare returns ")
            readers, _, value = seen.partition(" return ")
            assert (column, readers) == (repr(name), formats.find(form).readers)
            assert kind.startswith(str(table.schema.field(name).type)[:50])
            noted[name] = value
    assert noted == SEEN[form]


def test_a_record_is_bytes_for_readers_of_ffrecord(tmp_path):
    assert notes_of(pa.table({"n": [1]}), tmp_path / "n", format="ffrecord") == [
        "column 'n': FFRecord readers return bytes; flare returns int64"
    ]
    assert notes_of(pa.table({"t": ["a"]}), tmp_path / "t", format="ffrecord") == []


def test_notes_of_a_wide_table_are_counted(tmp_path):
    table = pa.table({f"t{i:02}": WHEN for i in range(MAX_READER_NOTES + 3)})
    notes = notes_of(table, tmp_path / "out")
    assert notes == [
        *(
            f"column 't{i:02}': MosaicML readers return ISO text; "
            "flare returns timestamp[us, tz=UTC]"
            for i in range(MAX_READER_NOTES)
        ),
        "3 more columns: MosaicML readers and flare return values of different types",
    ]
    assert notes_of(table, tmp_path / "parts", part_rows=1) == notes


def test_a_column_with_a_chosen_encoding_has_no_note(tmp_path):
    encode = {"when": "str", "yes": "int"}
    table = pa.table({name: TABLE[name] for name in encode})
    assert notes_of(table, tmp_path / "out", encode=encode) == []


def test_the_hint_names_formats_that_can_store_the_columns(tmp_path):
    table = pa.table({"data": TABLE["data"], "n": TABLE["n"]})
    for form, message, rest in (
        ("json", "column 'data': json cannot store bytes", "use -c to select the columns to pack."),
        (
            "ffrecord",
            "ffrecord has one column, got 2: data, n",
            "select one column to pack with -c.",
        ),
    ):
        with pytest.raises(UsageError) as caught:
            flare.pack(table, tmp_path / form, format=form)
        assert caught.value.message == message
        assert caught.value.hint == f"Use -f mds or -f granular, or {rest}"
    with pytest.raises(UsageError) as caught:
        flare.pack(pa.table({"a/b": [1]}), tmp_path / "name", format="granular")
    assert caught.value.hint == "Use -f mds or -f json."
