"""The fast path of single rows returns the same as reading many rows, and falls back to it."""

import io
import os
import pickle
import tarfile

import numpy as np
import pytest

import flarecli as flare
from flarecli.errors import FormatError, IntegrityError, RowsError, ValueFitError
from flarecli.model import Settings

ROWS = 25
COLUMNS = {"a": "int", "b": "str", "c": "float64", "d": "json", "e": "bytes"}


def sample(n):
    return {"a": n - 9, "b": "ä" * n, "c": n / 3, "d": {"n": [n]}, "e": bytes([n]) * n}


def packed(path, format, compression=None, columns=COLUMNS):
    columns = {"e": "bytes"} if format == "ffrecord" else columns
    settings = Settings(shard_rows=10, compression=compression)
    with flare.Writer(str(path), format=format, columns=columns, settings=settings) as writer:
        for n in range(ROWS):
            writer.write({name: sample(n)[name] for name in columns})
    return flare.open(str(path))


FORMATS = ["mds", "ffrecord", "granular", "webdataset", "json", "csv"]


@pytest.mark.parametrize("format", FORMATS)
def test_single_rows_equal_rows_read_together(tmp_path, format):
    columns = {name: COLUMNS[name] for name in ("a", "b", "c")}
    data = packed(tmp_path / "d", format, columns=COLUMNS if format[0] in "mgw" else columns)
    expected = data[list(range(ROWS))]
    for _ in range(2):  # the first round opens the shards
        assert [data[n] for n in range(ROWS)] == expected
        assert [data[n - ROWS] for n in range(ROWS)] == expected
        assert data[np.int64(7)] == expected[7]
    names = list(data.schema.names)
    assert [list(data[n]) for n in range(ROWS)] == [names] * ROWS
    reversed_columns = data.select(names[::-1])
    assert [list(reversed_columns[n]) for n in (0, 0, 13, 13)] == [names[::-1]] * 4
    assert [reversed_columns[n] for n in range(ROWS)] == expected
    first = data.select(names[:1])
    assert [first[n] for n in range(ROWS)] == [{names[0]: one[names[0]]} for one in expected]
    empty = data.select([])
    assert [empty[n] for n in (0, 0, 24, 24)] == [{}] * 4
    copy = pickle.loads(pickle.dumps(data))
    assert [copy[n] for n in range(ROWS)] == expected
    for row in (ROWS, -ROWS - 1, 1 << 62):
        with pytest.raises(RowsError):
            data[row]


def test_selections_have_their_own_rows_and_values(tmp_path):
    data = packed(tmp_path / "d", "mds")
    assert data[3] == sample(3)
    chosen, stored = data.where("a > 0"), data.decoded({"a": False, "b": len})
    assert [chosen[n] for n in range(len(chosen))] == [sample(n) for n in range(10, ROWS)]
    assert stored[3] == sample(3) | {"a": (-6).to_bytes(8, "little", signed=True), "b": 6}
    assert data[3] == sample(3)


@pytest.mark.parametrize("compression", [None, "zstd"])
def test_streams_joined_by_column_and_compressed_shards_are_read(tmp_path, compression):
    data = packed(tmp_path / "d", "mds", compression)
    assert [data[n] for n in [*range(ROWS), *range(ROWS)]] == [*map(sample, range(ROWS))] * 2


def test_closed_shards_are_opened_again(tmp_path):
    data = packed(tmp_path / "d", "mds")
    (series,) = data._table.series
    for _ in range(3):
        assert data[4] == data[4] == sample(4)
        assert list(series.row_readers(None)) == [0]
        series.close_shard(0)
        assert not series.row_readers(None)


def test_missing_values_are_none(tmp_path):
    with tarfile.open(tmp_path / "d.tar", "w") as tar:
        for name, body in (("0.cls", b"5"), ("1.txt", b"x"), ("2.cls", b"6"), ("2.txt", b"y")):
            member = tarfile.TarInfo(name)
            member.size = len(body)
            tar.addfile(member, io.BytesIO(body))
    data = flare.open(str(tmp_path / "d.tar")).select(["cls", "txt"])
    expected = [{"cls": 5, "txt": None}, {"cls": None, "txt": "x"}, {"cls": 6, "txt": "y"}]
    for _ in range(2):
        assert [data[n] for n in range(3)] == expected


@pytest.mark.parametrize(
    ("format", "change", "kind", "message"),
    [
        ("ffrecord", lambda body: body[:-1] + b"?", IntegrityError, None),
        ("mds", lambda body: body.replace("ä".encode() * 3, b"\xff" * 6), ValueFitError, "'b'"),
    ],
)
def test_a_damaged_row_has_the_same_error_as_when_many_are_read(
    tmp_path, format, change, kind, message
):
    folder = tmp_path / "d"
    data = packed(folder, format)
    last = sorted(name for name in os.listdir(folder) if name.endswith((".mds", ".ffr")))
    path = folder / (last[-1] if format == "ffrecord" else last[0])
    body = path.read_bytes()
    assert len(change(body)) == len(body)
    path.write_bytes(change(body))
    data = flare.open(str(folder))
    row = ROWS - 1 if format == "ffrecord" else 3
    assert data[0 if format == "mds" else ROWS - 2]
    errors = []
    for read in (lambda: data[row], lambda: data[row], lambda: data[[row, row]]):
        with pytest.raises((kind, FormatError)) as caught:
            read()
        errors.append((str(caught.value), caught.value.row, caught.value.column))
    assert len({*errors}) == 1
    assert message is None or message in errors[0][0]
