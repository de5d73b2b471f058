"""Convert any format to any other and back: values that both store are equal, other values are
refused by name.
"""

import itertools
import json
import math

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import flarecli
from flarecli import commands, encodings, formats
from flarecli.errors import FlareError, UnsafeError, UsageError, ValueFitError
from flarecli.model import Settings
from flarecli.write import Writer
from tests.properties import examples

FORMATS = [name for name in formats.names(writable=True) if name != "files"]
SEPARATED = {"csv": ",", "tsv": "\t", "xsv": "|"}
ONE_COLUMN = ("ffrecord",)
KINDS = {  # kind of a column: its Arrow type and its values
    "text": (pa.string(), st.text(max_size=40)),
    "bytes": (pa.binary(), st.binary(max_size=60)),
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.int8(), st.integers(-128, 127)),
    "float": (pa.float64(), st.floats(width=64)),
    "words": (pa.list_(pa.string()), st.lists(st.text(max_size=8), max_size=4)),
    "numbers": (pa.list_(pa.int64()), st.lists(st.integers(-(2**63), 2**63 - 1), max_size=4)),
    "nested": (
        pa.struct([("a", pa.int64()), ("b", pa.string())]),
        st.fixed_dictionaries({"a": st.integers(-9, 9), "b": st.text(max_size=9)}),
    ),
}
NAMES = ("a", "b2", "Zed", "é", "with space")


@st.composite
def tables(draw, kinds=tuple(KINDS), most=4):
    chosen = draw(st.lists(st.sampled_from(kinds), min_size=1, max_size=most))
    rows = draw(st.integers(1, 6))
    names = draw(st.permutations(NAMES))
    return {
        name: (kind, draw(st.lists(KINDS[kind][1], min_size=rows, max_size=rows)))
        for name, kind in zip(names, chosen, strict=False)
    }


def arrow(columns):
    return pa.table(
        {name: pa.array(values, KINDS[kind][0]) for name, (kind, values) in columns.items()}
    )


def options(form):
    return {"separator": SEPARATED[form]} if form == "xsv" else {}


def holds_type(form, encoding):
    return formats.find(form).store_as(encoding) is not None


def holds_values(form, columns):
    """Return whether a format can store the values, by the rules in the documentation."""
    for name, (kind, values) in columns.items():
        if form in SEPARATED:
            texts = [
                name,
                *(
                    value
                    if kind == "text"
                    else json.dumps(value)
                    if kind in ("words", "numbers", "nested")
                    else ""
                    for value in values
                ),
            ]
            if any(SEPARATED[form] in text or "\n" in text for text in texts):
                return False
        if form == "granular-refs" and kind in ("text", "bytes") and not all(values):
            return False
        if form == "granular-refs" and kind == "words" and not all(all(value) for value in values):
            return False
    return True


def value(got):
    """Return a value in a form that does not depend on the format."""
    if isinstance(got, (list, tuple)):
        return [value(one) for one in got]
    if isinstance(got, dict):
        return {key: value(one) for key, one in got.items()}
    if isinstance(got, float) and math.isnan(got):
        return "NaN"
    if hasattr(got, "item"):
        return value(got.item())
    return got


def read(path, names):
    return [{name: value(sample[name]) for name in names} for sample in flarecli.open(str(path))]


def expected(columns):
    count = len(next(iter(columns.values()))[1])
    return [{name: value(values[i]) for name, (_, values) in columns.items()} for i in range(count)]


@settings(
    max_examples=examples(150),
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
)
@given(columns=tables(), pair=st.sampled_from(list(itertools.product(FORMATS, FORMATS))))
def test_every_pair_of_formats_converts_there_and_back(tmp_path_factory, columns, pair):
    if any(form in ONE_COLUMN for form in pair):
        columns = dict(list(columns.items())[:1])
    target, back = pair
    folder = tmp_path_factory.mktemp("convert")
    pq.write_table(arrow(columns), folder / "index.parquet")
    source = str(folder / "index.parquet")
    for step, form in enumerate((target, back, target)):
        chosen = {
            field.name: encodings.infer_encoding(field)
            if not pa.types.is_binary(field.type)
            else "bytes"
            for field in arrow(columns).schema
        }
        can = holds_values(form, columns) and all(
            holds_type(form, encoding) for encoding in chosen.values()
        )
        try:
            flarecli.pack(
                source, str(folder / str(step)), format=form, columns=list(columns), **options(form)
            )
        except (ValueFitError, UsageError, FlareError) as error:
            assert not can, f"{form} refuses {columns}: {error}"
            assert str(error)
            return
        assert read(folder / str(step), columns) == expected(columns), form
        source = str(folder / str(step))


@pytest.mark.parametrize("target", [name for name in FORMATS if name not in ONE_COLUMN])
@pytest.mark.parametrize("width", [1, 2, 3])
def test_columns_of_one_numeric_type_are_not_mixed_up(tmp_path, target, width):
    types = (pa.int8(), pa.uint8(), pa.bool_(), pa.int16(), pa.uint32(), pa.int64(), pa.float32())
    for dtype in types:
        values = np.arange(3 * width).reshape(width, 3) % (2 if dtype == pa.bool_() else 120)
        columns = {f"c{k}": pa.array(values[k]).cast(dtype) for k in range(width)}
        out = str(tmp_path / str(dtype))
        flarecli.pack(pa.table(columns), out, format=target, **options(target))
        read = [[row[name] for name in columns] for row in flarecli.open(out)]
        assert read == values.T.tolist(), dtype


@pytest.mark.parametrize("target", FORMATS)
def test_nulls_are_kept_or_reported(tmp_path, target):
    pq.write_table(pa.table({"a": ["x", None, "z"], "n": [1, 2, 3]}), tmp_path / "index.parquet")
    columns = ["a"] if target in ONE_COLUMN else None
    try:
        flarecli.pack(
            str(tmp_path / "index.parquet"),
            str(tmp_path / "out"),
            format=target,
            columns=columns,
            **options(target),
        )
    except FlareError as error:
        assert str(error) == f"{tmp_path}/index.parquet[1]: a is null"
    else:
        assert target in ("webdataset", "tfrecord", "parquet")
        assert [(row["a"], row["n"]) for row in flarecli.open(str(tmp_path / "out"))] == [
            ("x", 1),
            (None, 2),
            ("z", 3),
        ]


@pytest.mark.parametrize("kind", ["mds", "json", "tsv", "webdataset"])
def test_a_new_pack_has_no_findings_even_if_its_index_has_fewer_types(tmp_path, kind):
    table = pa.table(
        {
            "id": ["a", "b"],
            "nested": [{"k": [1, None]}, None],
            "day": pa.array([1, None], pa.date32()),
            "n": [1.5, None],
        }
    )
    if kind != "webdataset":
        table = table.slice(0, 1)  # null is for tars
    pq.write_table(table, tmp_path / "index.parquet")
    flarecli.pack(str(tmp_path / "index.parquet"), str(tmp_path / "out"), format=kind)
    assert list(flarecli.verify(str(tmp_path / "out"), decode=True)) == []


def test_the_first_row_that_a_format_cannot_store_is_reported_for_any_column(tmp_path):
    pq.write_table(
        pa.table({"a": [["x"], ["x"], [""]], "b": [["x"], [""], ["x"]]}), tmp_path / "index.parquet"
    )
    with pytest.raises(ValueFitError) as caught:
        flarecli.pack(
            str(tmp_path / "index.parquet"), str(tmp_path / "out"), format="granular-refs"
        )
    assert (
        str(caught.value)
        == f"{tmp_path}/index.parquet[1]: column 'b' has an empty record, which granular-refs cannot store"
    )


def test_a_key_that_is_invalid_in_a_tar_is_reported_with_its_source_row_and_can_be_skipped(
    tmp_path,
):
    keys = ["a", "b.c", "d", "../e"]
    pq.write_table(pa.table({"key": keys, "txt": keys}), tmp_path / "i.parquet")
    with pytest.raises(UnsafeError) as caught:
        flarecli.pack(
            str(tmp_path / "i.parquet"), str(tmp_path / "out"), format="webdataset", key="key"
        )
    message = f"{tmp_path}/i.parquet[3]: ../e: the name '../e' points outside the folder"
    assert str(caught.value) == message
    done = flarecli.pack(
        str(tmp_path / "i.parquet"),
        str(tmp_path / "out"),
        format="webdataset",
        key="key",
        on_error="skip",
        overwrite=True,
    )
    assert (done.rows, done.failed) == (3, 1)
    assert [row["__key__"] for row in flarecli.open(str(tmp_path / "out"))] == ["a", "b_c", "d"]


def test_a_pack_of_selected_rows_and_streams_has_only_these_rows(tmp_path, in_tmp_path):
    for name, columns in (("a", {"n": "int", "t": "str"}), ("b", {"x": "float32"})):
        with Writer(name, columns=columns, settings=Settings(shard_rows=7)) as writer:
            for i in range(40):
                writer.write({"n": i, "t": f"t{i}"} if name == "a" else {"x": i / 4})
    (tmp_path / "set.yaml").write_text(commands.playlist(["one=a", "two=b"]))
    for i, (spec, rows) in enumerate(
        [
            ("3,1,4", [3, 1, 4]),
            ("::9", [0, 9, 18, 27, 36]),
            ("-3:,0", [37, 38, 39, 0]),
            ("30:10:-7", [30, 23, 16]),
        ]
    ):
        assert commands.pack("set.yaml", f"all{i}", rows=spec).rows == len(rows)
        want = [{"n": row, "t": f"t{row}", "x": row / 4} for row in rows]
        assert flarecli.open(f"all{i}")[:] == want
        commands.pack(
            "set.yaml",
            f"one{i}",
            rows=spec,
            streams=["one"],
            part_rows=2,
            format="webdataset",
            where="n < 38",
        )
        assert [(one["n"], one["t"]) for one in flarecli.open(f"one{i}")[:]] == [
            (row, f"t{row}") for row in rows if row < 38
        ]
    with pytest.raises(UsageError, match="^set.yaml: no stream 'three'(?m:$)"):
        commands.pack("set.yaml", "none", streams=["three"])
    with pytest.raises(UsageError, match="^row 40 is outside the data, which has 40 rows(?m:$)"):
        commands.pack("set.yaml", "none", rows="40")
    with pytest.raises(UsageError, match="a different source or with different options"):
        commands.pack("set.yaml", "all0", rows="3,1", resume=True)
    (tmp_path / "i.csv").write_text("a\n1\n")
    (tmp_path / "files").mkdir()
    (tmp_path / "files" / "x.txt").write_text("x")
    for index, kind in (("i.csv", "table"), ("files", "folder")):
        with pytest.raises(UsageError) as caught:
            commands.pack(index, "none", rows="0")
        assert (str(caught.value), caught.value.hint) == (
            f"{index}: rows of a {kind} cannot be selected by number",
            "Use --where or --limit.",
        )
        with pytest.raises(UsageError) as caught:
            commands.pack(index, "none", streams=["x"])
        assert (str(caught.value), caught.value.hint) == (
            f"{index}: a {kind} has no streams",
            "Omit --stream.",
        )


@pytest.mark.parametrize("form", ["mds", "json", "csv", "webdataset", "tfrecord", "parquet"])
def test_a_column_without_a_name_is_packed(tmp_path, form):
    # pandas writes the index of a DataFrame as a column without a name
    (tmp_path / "in.csv").write_text(",when,n\n0,2024-01-02,5\n0,,6\n")
    commands.pack(tmp_path / "in.csv", tmp_path / "out", format=form)
    assert list(flarecli.open(tmp_path / "out")) == [
        {"": 0, "when": "2024-01-02", "n": 5},
        {"": 0, "when": "", "n": 6},
    ]
    commands.pack(tmp_path / "in.csv", tmp_path / "selected", format=form, columns=["n"])
    assert list(flarecli.open(tmp_path / "selected")) == [{"n": 5}, {"n": 6}]
    dates = pa.table({"": pa.array([1, 2], pa.date32())})
    commands.pack(dates, tmp_path / "dates", format=form)
    assert flarecli.open(tmp_path / "dates").to_arrow() == dates
    assert not list(flarecli.verify([tmp_path / "out", tmp_path / "dates"]))
