"""Ordinary tables and folders, packed into every format and read back.

    python tests/interop/ordinary_sources.py [--only NAME,…] [--formats NAME,…] [--keep DIR]

The tables are the data of vega_datasets and scikit-learn, and exports of pandas and Polars; the
folders contain photographs with the names that cameras and people use. Each source is packed by
`flare pack SOURCE OUT -f FORMAT`. If that fails, it is packed again with the options of the source
in this file, provided that the error message or its hint named each of them. The rows are read back
by `flare cat OUT --to arrow` and compared with what another library reads from the source: the same
columns in the same order, the same values and the same types. Texts and bytes of any Arrow layout
count as one type, and so do lists whose items have other names, and dictionaries whose indices have
other widths.

A line is a source, and a column a format: `=` is equal without an option, `o` with the option that
the message named, `-` is a table that the format cannot store, where the message names a format
that can, and `x` is anything else, with the reason below. The exit code is 1 if there is an `x`.
Needs scikit-learn, vega_datasets, pandas and Polars.
"""

from __future__ import annotations

import argparse
import contextlib
import datetime
import decimal
import io
import json
import math
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pandas as pd
import polars
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import sklearn.datasets
import vega_datasets

from flarecli.__main__ import main as flare
from flarecli.formats import names

# `xsv` is `csv` with another separator, and `granular-refs` an older layout of `granular`.
FORMATS = tuple(one for one in names(writable=True) if one not in ("xsv", "granular-refs"))
_SEPARATORS = {"csv": ",", "tsv": "\t"}  # values must not contain it, or a newline
_LINES = ("json", *_SEPARATORS)  # lines of text, which cannot contain bytes


class Source(NamedTuple):
    """A source and its table.

    path      file, folder or pattern
    expected  what another library reads from it; of a folder, its columns of media
    options   options without which it cannot be packed, if it has any
    ordered   whether the rows have an order
    """

    path: Path
    expected: pa.Table
    options: tuple[str, ...] = ()
    ordered: bool = True


Maker = Callable[[Path], Source]
MAKERS: dict[str, Maker] = {}


def source(maker: Maker) -> Maker:
    """Register a function that makes a source in a new folder; its name is the name of the
    source.
    """
    MAKERS[maker.__name__] = maker
    return maker


def table_of(frame: pd.DataFrame) -> pa.Table:
    """Return a frame as a table, with nulls in place of missing values."""
    return pa.Table.from_pandas(frame, preserve_index=False).replace_schema_metadata()


def has_null(table: pa.Table) -> bool:
    """Return whether any value of a table is null."""
    return any(column.null_count for column in table.columns)


# -- example data of other packages


def _vega(file: Path) -> Maker:
    def make(folder: Path) -> Source:
        path = Path(shutil.copy(file, folder))
        if path.suffix == ".json":
            return _nulls(path, pa.Table.from_pylist(_rows(json.loads(path.read_text()))))
        frame = pd.read_csv(
            path, keep_default_na=False, na_values=[""], dtype_backend="numpy_nullable"
        )
        return _nulls(path, table_of(frame))

    return make


def _rows(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    names = list(dict.fromkeys(name for row in rows for name in row))
    return [{name: row.get(name) for name in names} for row in rows]


def _nulls(path: Path, expected: pa.Table) -> Source:
    return Source(path, expected, ("--null", "fill") if has_null(expected) else ())


for _file in sorted((Path(vega_datasets.__file__).parent / "_data").iterdir()):
    if _file.suffix in (".csv", ".json"):
        MAKERS[f"vega_{_file.name}"] = _vega(_file)


def _frame(name: str) -> pd.DataFrame:
    return getattr(sklearn.datasets, f"load_{name}")(as_frame=True).frame


@source
def iris_csv(folder: Path) -> Source:
    frame = _frame("iris")
    frame.to_csv(folder / "iris.csv", index=False)
    return Source(folder / "iris.csv", table_of(frame))


@source
def wine_parquet(folder: Path) -> Source:
    frame = _frame("wine")
    frame.to_parquet(folder / "wine.parquet", index=False)
    return Source(folder / "wine.parquet", table_of(frame))


@source
def breast_cancer_feather(folder: Path) -> Source:
    frame = _frame("breast_cancer")
    frame.to_feather(folder / "breast_cancer.feather")
    return Source(folder / "breast_cancer.feather", table_of(frame))


@source
def diabetes_jsonl(folder: Path) -> Source:
    frame = _frame("diabetes")
    frame.to_json(folder / "diabetes.jsonl", orient="records", lines=True, double_precision=15)
    expected = polars.read_ndjson(folder / "diabetes.jsonl")
    return Source(folder / "diabetes.jsonl", expected.to_arrow())


@source
def digits_csv_gz(folder: Path) -> Source:
    """The file as scikit-learn ships it: the first line has values, and no line has names."""
    file = Path(sklearn.datasets.__file__).parent / "data" / "digits.csv.gz"
    path = Path(shutil.copy(file, folder))
    frame = pd.read_csv(path, header=None)
    frame.columns = [f"column_{i}" for i in range(frame.shape[1])]
    return Source(path, table_of(frame))


@source
def linnerud_json(folder: Path) -> Source:
    frame = _frame("linnerud")
    frame.to_json(folder / "linnerud.json", orient="records")
    return Source(folder / "linnerud.json", polars.read_json(folder / "linnerud.json").to_arrow())


# -- exports of pandas and Polars


def _people() -> pd.DataFrame:
    return pd.DataFrame(
        {
            "name": ["Ada", "Zoë", "Łukasz", "O'Neil, Jr.", 'Quote "Q"', "Line\nbreak"],
            "age": [36, 41, 29, 57, 63, 18],
            "height": [1.7, 1.65, 1.805, 1.9, 1.55, 1.72],
            "member": [True, False, True, True, False, False],
        }
    )


def _separated(name: str, **options: Any) -> Maker:
    def make(folder: Path) -> Source:
        frame = _people()
        frame.to_csv(folder / name, index=False, **options)
        return Source(folder / name, table_of(frame))

    return make


MAKERS["comma_csv"] = _separated("people.csv")
MAKERS["semicolon_csv"] = _separated("people.csv", sep=";")
MAKERS["bom_csv"] = _separated("people.csv", encoding="utf-8-sig")
MAKERS["utf16_csv"] = _separated("people.csv", encoding="utf-16")
MAKERS["tab_tsv"] = _separated("people.tsv", sep="\t")
MAKERS["tab_txt"] = _separated("people.txt", sep="\t")
MAKERS["tab_tab"] = _separated("people.tab", sep="\t")
MAKERS["pipe_psv"] = _separated("people.psv", sep="|")
MAKERS["windows_csv"] = _separated("people.csv", lineterminator="\r\n")
MAKERS["gzip_csv"] = _separated("people.csv.gz")
MAKERS["zstd_csv"] = _separated("people.csv.zst")


@source
def decimal_comma_csv(folder: Path) -> Source:
    frame = _people()
    frame.to_csv(folder / "people.csv", index=False, sep=";", decimal=",")
    return Source(folder / "people.csv", table_of(frame), ("--csv", "decimal=,"))


@source
def latin1_csv(folder: Path) -> Source:
    frame = _people().iloc[[0, 1, 3]]
    frame.to_csv(folder / "people.csv", index=False, encoding="latin-1")
    return Source(folder / "people.csv", table_of(frame), ("--csv", "encoding=latin-1"))


@source
def missing_values_csv(folder: Path) -> Source:
    frame = _people()
    frame["age"] = frame["age"].astype("Int64")
    frame.loc[2, "age"] = pd.NA
    frame.loc[3, "height"] = None
    frame.to_csv(folder / "people.csv", index=False)
    return _nulls(folder / "people.csv", table_of(frame))


def _parquet(**columns: Any) -> Maker:
    def make(folder: Path) -> Source:
        expected = pa.table(columns)
        pq.write_table(expected, folder / "table.parquet")
        return _nulls(folder / "table.parquet", pq.read_table(folder / "table.parquet"))

    return make


_INSTANTS = [datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000), datetime.datetime(1969, 7, 20)]
MAKERS["dates_parquet"] = _parquet(
    day=pa.array([one.date() for one in _INSTANTS]),
    at=pa.array(_INSTANTS, pa.timestamp("us")),
    zoned=pa.array(_INSTANTS, pa.timestamp("ms", "Europe/Berlin")),
    nanoseconds=pa.array([1, 1_700_000_000_123_456_789], pa.timestamp("ns")),
    time=pa.array([one.time() for one in _INSTANTS], pa.time64("us")),
    took=pa.array([datetime.timedelta(hours=5), datetime.timedelta(0)], pa.duration("us")),
)
MAKERS["decimals_parquet"] = _parquet(
    price=pa.array([decimal.Decimal("1.10"), decimal.Decimal("-99999.99")], pa.decimal128(9, 2)),
    count=pa.array([2**64 - 1, 0], pa.uint64()),
    small=pa.array([-128, 127], pa.int8()),
    half=pa.array(np.array([0.5, 65504], np.float16)),
)
MAKERS["lists_parquet"] = _parquet(
    tokens=pa.array([[1, 2, 3], []], pa.list_(pa.int32())),
    tags=pa.array([["a", "b"], ["ü"]]),
    point=pa.array([[0.5, 1.5], [2.0, 4.0]], pa.list_(pa.float32(), 2)),
    nested=pa.array([[[1], [2, 3]], [[]]], pa.list_(pa.list_(pa.int64()))),
)
MAKERS["structs_parquet"] = _parquet(
    place=pa.array([{"lat": 52.5, "names": ["Berlin"]}, {"lat": -1.0, "names": []}]),
    attributes=pa.array([[("a", 1)], []], pa.map_(pa.string(), pa.int64())),
)
MAKERS["categories_parquet"] = _parquet(
    colour=pa.array(["red", "blue", "red"]).dictionary_encode(), number=pa.array([1, 2, 3])
)
MAKERS["bytes_parquet"] = _parquet(
    data=pa.array([b"\x00\xff", b""]), digest=pa.array([b"abcd", b"efgh"], pa.binary(4))
)
MAKERS["nulls_parquet"] = _parquet(
    number=pa.array([1, None, 3]),
    text=pa.array(["a", None, ""]),
    flag=pa.array([True, None, False]),
    list=pa.array([[1], None, []], pa.list_(pa.int64())),
)
MAKERS["no_value_parquet"] = _parquet(number=pa.array([1, 2]), nothing=pa.nulls(2))
MAKERS["names_parquet"] = _parquet(
    **{"Größe (cm)": pa.array([1.5, 2.5]), "a.b": pa.array([1, 2]), "x y": pa.array(["q", "r"])}
)


@source
def polars_parquet(folder: Path) -> Source:
    frame = polars.DataFrame(
        {
            "text": ["a", "b", "c"],
            "number": [1, 2, 3],
            "day": [one.date() for one in _INSTANTS] + [datetime.date(2000, 1, 1)],
            "list": [[1.5], [], [2.5, 3.5]],
        }
    )
    frame.write_parquet(folder / "polars.parquet")
    return Source(folder / "polars.parquet", pq.read_table(folder / "polars.parquet"))


@source
def polars_ipc(folder: Path) -> Source:
    frame = polars.DataFrame({"text": ["a", "a longer text than twelve bytes"], "number": [1, 2]})
    frame.write_ipc(folder / "polars.arrow")
    return Source(folder / "polars.arrow", pa.feather.read_table(folder / "polars.arrow"))


@source
def arrow_stream(folder: Path) -> Source:
    expected = table_of(_people())
    with pa.ipc.new_stream(folder / "people.arrows", expected.schema) as writer:
        writer.write_table(expected)
    return Source(folder / "people.arrows", expected)


@source
def nested_jsonl(folder: Path) -> Source:
    rows = [
        {"id": 1, "user": {"name": "Ada", "tags": ["x"]}, "scores": [1.5, 2.0]},
        {"id": 2, "user": {"name": "Zoë", "tags": []}, "scores": []},
    ]
    lines = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows)
    (folder / "events.jsonl").write_text(lines)
    return Source(folder / "events.jsonl", pa.Table.from_pylist(rows))


@source
def missing_members_jsonl(folder: Path) -> Source:
    rows = [{"id": 1, "text": "a"}, {"id": 2}, {"id": 3, "text": None}]
    (folder / "events.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return _nulls(folder / "events.jsonl", pa.Table.from_pylist(_rows(rows)))


@source
def several_parquet(folder: Path) -> Source:
    expected = table_of(_people())
    for i in range(3):
        pq.write_table(expected.slice(2 * i, 2), folder / f"part-{i}.parquet")
    return Source(folder / "part-*.parquet", expected)


# -- folders of photographs


def _photo(name: str) -> bytes:
    return (Path(sklearn.datasets.__file__).parent / "images" / name).read_bytes()


def _png(seed: int) -> bytes:
    from PIL import Image

    out = io.BytesIO()
    pixels = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), np.uint8)
    Image.fromarray(pixels).save(out, "PNG")
    return out.getvalue()


def _folder(files: dict[str, bytes], **columns: list[Any]) -> Maker:
    def make(folder: Path) -> Source:
        for name, data in files.items():
            path = folder / "photos" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
        return Source(folder / "photos", pa.table(columns), ordered=False)

    return make


_CHINA, _FLOWER = _photo("china.jpg"), _photo("flower.jpg")
MAKERS["photos"] = _folder({"china.jpg": _CHINA, "flower.jpg": _FLOWER}, image=[_CHINA, _FLOWER])
MAKERS["photos_of_several_kinds"] = _folder(
    {"a.jpg": _CHINA, "b.JPEG": _FLOWER, "c.png": _png(1), "d.PNG": _png(2)},
    image=[_CHINA, _FLOWER, _png(1), _png(2)],
)
MAKERS["photos_named_after_dates"] = _folder(
    {"IMG_2023.01.01.jpg": _CHINA, "IMG_2024.01.01.jpg": _FLOWER}, image=[_CHINA, _FLOWER]
)
MAKERS["photos_with_captions"] = _folder(
    {"1.jpg": _CHINA, "1.txt": b"a house", "2.jpg": _FLOWER, "2.txt": b"a flower"},
    image=[_CHINA, _FLOWER],
    text=[b"a house", b"a flower"],
)
MAKERS["photos_in_class_folders"] = _folder(
    {"house/1.jpg": _CHINA, "flower/1.jpg": _FLOWER, "flower/2.png": _png(3)},
    image=[_CHINA, _FLOWER, _png(3)],
)
MAKERS["photos_beside_a_desktop_file"] = _folder(
    {"a.jpg": _CHINA, "Thumbs.db": b"x", ".DS_Store": b"y"}, image=[_CHINA]
)


# -- comparison


def _plain_type(kind: pa.DataType) -> pa.DataType:
    """Return a type without the layout of texts, bytes, lists and indices, and the names of
    items.
    """
    if pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind):
        return pa.binary()
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return pa.list_(_plain_type(kind.value_type))
    if pa.types.is_fixed_size_list(kind):
        return pa.list_(_plain_type(kind.value_type), kind.list_size)
    if pa.types.is_struct(kind):
        return pa.struct([(field.name, _plain_type(field.type)) for field in kind])
    if pa.types.is_map(kind):
        return pa.map_(_plain_type(kind.key_type), _plain_type(kind.item_type))
    if pa.types.is_dictionary(kind):
        return pa.dictionary(pa.int32(), _plain_type(kind.value_type))
    return kind


def _is_equal(one: Any, other: Any) -> bool:
    if isinstance(one, float) and isinstance(other, float):
        return one == other or (math.isnan(one) and math.isnan(other))
    if isinstance(one, (list, tuple)) and isinstance(other, (list, tuple)):
        return len(one) == len(other) and all(map(_is_equal, one, other))
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_is_equal(one[k], other[k]) for k in one)
    return type(one) is type(other) and bool(one == other)


def difference(source: Source, found: pa.Table, filled: bool) -> str:
    """Return how the table that was read back differs from the source; empty if it is equal.

    filled  nulls were replaced by `--null fill`, so only the other values are compared
    """
    expected = source.expected
    if not source.ordered:
        missing = [name for name in expected.column_names if name not in found.column_names]
        if missing:
            return f"columns are {found.column_names}, not {expected.column_names}"
        for name in expected.column_names:
            values = [
                bytes(value, "utf-8") if isinstance(value, str) else value
                for value in found.column(name).to_pylist()
            ]
            if sorted(values) != sorted(expected.column(name).to_pylist()):
                return f"{name} has other files"
        return ""
    if found.column_names != expected.column_names:
        return f"columns are {found.column_names}, not {expected.column_names}"
    if found.num_rows != expected.num_rows:
        return f"{found.num_rows} rows, not {expected.num_rows}"
    for name in expected.column_names:
        one, other = expected.column(name), found.column(name)
        has_no_type = filled and pa.types.is_null(one.type)
        if _plain_type(one.type) != _plain_type(other.type) and not has_no_type:
            return f"{name} is {other.type}, not {one.type}"
        for row, (old, new) in enumerate(zip(one.to_pylist(), other.to_pylist(), strict=True)):
            if not _is_equal(old, new) and not (filled and old is None):
                return f"{name}[{row}] is {new!r:.60}, not {old!r:.60}"
    return ""


def _holds(name: str, source: Source) -> bool:
    """Return whether a format can store a source. The rows of a folder have a key and media."""
    table = source.expected
    if name == "ffrecord":
        return source.ordered and table.num_columns == 1
    if name == "granular":
        return not any("/" in column for column in table.column_names)
    if name not in _LINES:
        return True
    if any(_has_bytes(kind) for kind in table.schema.types):
        return False
    return name == "json" or not any(
        end in text
        for column in table.columns
        for text in map(_line_text, column.to_pylist())
        for end in (_SEPARATORS[name], "\n")
    )


def _has_bytes(kind: pa.DataType) -> bool:
    return bool(pa.types.is_fixed_size_binary(kind) or _plain_type(kind) == pa.binary())


def _line_text(value: Any) -> str:
    """Return a value as a line of text contains it: documents are JSON."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


# -- the runs


class _Run(NamedTuple):
    """What one command line printed, and its exit code."""

    code: int
    stdout: bytes
    stderr: str


def _flare(*args: str) -> _Run:
    """Run one command line of flare in this process, which takes much less time than a new one."""
    out, err = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = flare(args)
    out.flush()
    err.flush()
    return _Run(code, out.buffer.getvalue(), err.buffer.getvalue().decode())  # type: ignore[attr-defined]


def _packed(source: Source, name: str, out: Path, options: tuple[str, ...]) -> tuple[str, str]:
    """Return what failed or differs after a pack with options, and the messages of the pack."""
    pack = _flare("pack", str(source.path), str(out), "-f", name, *options)
    message = pack.stderr
    if pack.code:
        return message or f"exit code {pack.code}", message
    cat = _flare("cat", str(out), "--to", "arrow")
    if cat.code:
        return f"cat: {cat.stderr}", message
    found = pa.ipc.open_stream(cat.stdout).read_all()
    return difference(source, found, "fill" in options), message


def outcome(source: Source, name: str, folder: Path) -> tuple[str, str]:
    """Return the mark of a source and a format, and the reason of an `x`."""
    differs, message = _packed(source, name, folder / "1", ())
    if not differs:
        return "=", ""
    if source.options and not _names_a_format(message, source):
        if not all(option in message for option in source.options if option.startswith("--")):
            return "x", f"the message does not name {' '.join(source.options)}: {message}"
        differs, message = _packed(source, name, folder / "2", source.options)
        if not differs:
            return "o", ""
    if _holds(name, source):
        return "x", differs
    if not _names_a_format(message, source):
        return "x", f"the message does not name a format that can hold it: {message}"
    return "-", ""


class Line(NamedTuple):
    """The marks of a source, one for each format, and the reason of each `x`: format -> reason."""

    name: str
    has_nulls: bool
    marks: list[str]
    reasons: dict[str, str]


def outcomes(names: Sequence[str], formats: Sequence[str], folder: Path) -> Iterator[Line]:
    """Make each source in a folder, and yield its marks."""
    for name in names:
        made = folder / name
        made.mkdir(parents=True)
        one = MAKERS[name](made)
        found = [outcome(one, form, folder / f"{name}.{form}") for form in formats]
        reasons = {
            form: reason for form, (mark, reason) in zip(formats, found, strict=True) if mark == "x"
        }
        yield Line(name, has_null(one.expected), [mark for mark, _ in found], reasons)


def _names_a_format(message: str, source: Source) -> bool:
    """Return whether a message names formats, and all of these formats can store a source."""
    named = [one for one in re.findall(r"-f (\w+)", message) if one in FORMATS]
    return bool(named) and all(_holds(one, source) for one in named)


def main() -> int:
    """Print the table of sources and formats, the reasons, and the shares."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--only", default="")
    parser.add_argument("--formats", default=",".join(FORMATS))
    parser.add_argument("--keep", type=Path)
    args = parser.parse_args()
    chosen = [one for one in args.only.split(",") if one] or list(MAKERS)
    formats = args.formats.split(",")
    lines = []
    with tempfile.TemporaryDirectory() as temporary:
        print(f"{'source':32}", *(f"{one[:6]:>6}" for one in formats))
        for line in outcomes(chosen, formats, args.keep or Path(temporary)):
            lines.append(line)
            print(f"{line.name:32}", *(f"{mark:>6}" for mark in line.marks), flush=True)
    for line in lines:
        for name, reason in line.reasons.items():
            print(f"{line.name} as {name}: {' '.join(reason.split())[:300]}")
    full = [line.marks for line in lines if not line.has_nulls]
    plain = sum(all(mark in "=-" for mark in found) for found in full)
    named = sum("o" in line.marks and not line.reasons for line in lines)
    failed = sum(bool(line.reasons) for line in lines)
    print(
        f"{len(lines)} sources in {len(formats)} formats: {plain} of {len(full)} without nulls "
        f"need no option, {named} need the one that the message named, {failed} fail"
    )
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
