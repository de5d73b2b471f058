"""Every kind of table, compared with DuckDB, which reads the same bytes with its own code; skipped
row groups, compared with all rows.
"""

import datetime
import decimal
import json
import math

import duckdb
import pyarrow as pa
import pyarrow.csv
import pyarrow.feather
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.formats.tables import parquet_metadata
from flarecli.formats.tables.parquet import Parquet
from flarecli.formats.tables.parquet_metadata import valid_leaves
from flarecli.ingest import open_index
from flarecli.sql import bounds, select
from flarecli.storage import locate
from tests.properties import examples

TEXT = st.text(
    st.characters(exclude_categories=["Cs"], exclude_characters="\0\r"), max_size=6
) | st.sampled_from(["", "007", "NULL", "a,b", 'say "x"', "é\n"])
COLUMNS = {
    "int": (pa.int64(), st.integers(-(2**63), 2**63 - 1)),
    "small": (pa.uint8(), st.integers(0, 255)),
    "float": (pa.float64(), st.floats(allow_nan=False)),
    "text": (pa.string(), TEXT),
    "dict": (pa.dictionary(pa.int32(), pa.string()), st.sampled_from(["red", "green", "é"])),
    "flag": (pa.bool_(), st.booleans()),
    "price": (pa.decimal128(9, 2), st.decimals(-9999, 9999, places=2)),
    "day": (pa.date32(), st.dates(datetime.date(1900, 1, 1), datetime.date(2200, 1, 1))),
    "when": (
        pa.timestamp("us"),
        st.datetimes(datetime.datetime(1900, 1, 1), datetime.datetime(2200, 1, 1)),
    ),
    "list": (pa.list_(pa.int32()), st.lists(st.integers(-9, 9), max_size=3)),
    "nest": (
        pa.struct([("x", pa.int64()), ("y", pa.list_(pa.string()))]),
        st.fixed_dictionaries({"x": st.integers(0, 9), "y": st.lists(TEXT, max_size=2)}),
    ),
    "blob": (pa.binary(), st.binary(max_size=5)),
    "large": (pa.large_string(), TEXT),
}
IN_JSON = ("int", "float", "text", "flag", "list", "nest")


@st.composite
def tables(draw, names=tuple(COLUMNS), nulls=True):
    chosen = draw(st.lists(st.sampled_from(names), min_size=1, max_size=5, unique=True))
    rows = draw(st.integers(1, 12))
    columns = {}
    for name in chosen:
        kind, values = COLUMNS[name]
        values = st.none() | values if nulls else values
        columns[name] = pa.array(draw(st.lists(values, min_size=rows, max_size=rows)), kind)
    return pa.table(columns)


def flare_rows(paths) -> list[dict]:
    return [
        row
        for batch in open_index([str(path) for path in paths]).batches()
        for row in batch.to_pylist()
    ]


def duckdb_rows(query: str) -> list[dict]:
    with duckdb.connect(":memory:", config={"threads": "1"}) as con:
        return con.sql(query).to_arrow_table().to_pylist()


@settings(max_examples=examples(30), deadline=None)
@given(
    table=tables(),
    groups=st.integers(1, 5),
    version=st.sampled_from(["1.0", "2.6"]),
    page=st.sampled_from(["1.0", "2.0"]),
)
def test_parquet_has_the_rows_that_duckdb_reads(tmp_path_factory, table, groups, version, page):
    path = tmp_path_factory.mktemp("x") / "x.parquet"
    pq.write_table(
        table,
        path,
        row_group_size=groups,
        version=version,
        data_page_version=page,
        write_page_checksum=True,
    )
    found = flare_rows([path])
    assert found == table.to_pylist()
    assert found == duckdb_rows(f"SELECT * FROM read_parquet('{path}')")


@settings(max_examples=examples(40), deadline=None)
@given(
    table=tables(),
    groups=st.integers(1, 5),
    is_file=st.booleans(),
    compression=st.sampled_from([None, "zstd", "lz4"]),
)
def test_arrow_has_the_rows_that_duckdb_reads(
    tmp_path_factory, table, groups, is_file, compression
):
    path = tmp_path_factory.mktemp("x") / ("x.arrow" if is_file else "x.arrows")
    options = pa.ipc.IpcWriteOptions(compression=compression)
    with (pa.ipc.new_file if is_file else pa.ipc.new_stream)(
        str(path), table.schema, options=options
    ) as out:
        out.write_table(table.unify_dictionaries(), max_chunksize=groups)
    assert flare_rows([path]) == table.to_pylist()


@settings(max_examples=examples(30), deadline=None)
@given(
    table=tables(IN_JSON), compression=st.sampled_from(["", ".gz", ".zst"]), is_array=st.booleans()
)
def test_json_has_the_rows_that_duckdb_reads(tmp_path_factory, table, compression, is_array):
    rows = table.to_pylist()
    for row in rows:
        if isinstance(row.get("float"), float) and not math.isfinite(row["float"]):
            row["float"] = None
    path = tmp_path_factory.mktemp("x") / f"x.json{compression}"
    data = json.dumps(rows) if is_array else "\n".join(json.dumps(row) for row in rows)
    with (
        pa.CompressedOutputStream(str(path), {".gz": "gzip", ".zst": "zstd"}[compression])
        if compression
        else pa.OSFile(str(path), "wb") as out
    ):
        out.write(data.encode())
    found = flare_rows([path])
    assert found == rows
    kinds = {
        "int": "BIGINT",
        "float": "DOUBLE",
        "text": "VARCHAR",
        "flag": "BOOLEAN",
        "list": "INTEGER[]",
        "nest": "STRUCT(x BIGINT, y VARCHAR[])",
    }
    columns = ", ".join(f"'{name}': '{kinds[name]}'" for name in table.column_names)
    assert found == duckdb_rows(
        f"SELECT * FROM read_json('{path}', columns={{{columns}}}, format='{'array' if is_array else 'newline_delimited'}')"
    )


@settings(max_examples=examples(30), deadline=None)
@given(
    table=tables(("int", "float", "text", "flag")), compression=st.sampled_from(["", ".gz", ".zst"])
)
def test_csv_has_the_rows_that_duckdb_reads(tmp_path_factory, table, compression):
    path = tmp_path_factory.mktemp("x") / f"x.csv{compression}"
    table = table.append_column(
        "row", pa.array(range(table.num_rows))
    )  # otherwise a row with one null is a blank line, which is not a row
    with (
        pa.CompressedOutputStream(str(path), {".gz": "gzip", ".zst": "zstd"}[compression])
        if compression
        else pa.OSFile(str(path), "wb") as out
    ):
        pa.csv.write_csv(table, out)
    found = pa.Table.from_batches(open_index(str(path)).batches())
    columns = ", ".join(f"'{name}': 'VARCHAR'" for name in table.column_names)
    second = duckdb_rows(
        f"SELECT * FROM read_csv('{path}', columns={{{columns}}}, delim=',', quote='\"', escape='\"', header=true, nullstr='', strict_mode=true)"
    )
    told = {
        pa.int64(): int,
        pa.float64(): lambda text: repr(float(text)),
        pa.bool_(): lambda text: {"true": True, "false": False}[text.lower()],
    }
    for name in table.column_names:
        kind = found.schema.field(name).type
        values = found.column(name).to_pylist()
        if kind == pa.string():  # no value looks like a number
            assert [value or None for value in values] == [row[name] for row in second]
        else:  # all texts may be numbers, such as INF
            values = [repr(value) if isinstance(value, float) else value for value in values]
            assert values == [
                None if row[name] is None else told[kind](row[name]) for row in second
            ]


@settings(max_examples=examples(40), deadline=None)
@given(st.lists(tables(("int", "small", "text", "day", "nest")), min_size=2, max_size=3))
def test_several_files_with_missing_columns_have_the_rows_that_duckdb_reads(
    tmp_path_factory, parts
):
    folder = tmp_path_factory.mktemp("x")
    for number, part in enumerate(parts):
        pq.write_table(part, folder / f"{number}.parquet")
    found = open_index(
        [str(folder / f"{number}.parquet") for number in range(len(parts))], allow_missing=True
    )
    rows = [row for batch in found.batches() for row in batch.to_pylist()]
    assert rows == duckdb_rows(
        f"SELECT * FROM read_parquet('{folder}/*.parquet', union_by_name=true)"
    )


LITERALS = {
    "int": st.integers(-5, 5).map(str)
    | st.sampled_from(["2.5", "1e0", "-3.0", "9007199254740993", "9.007199254740992e15"]),
    "small": st.integers(-1, 6).map(str),
    "float": st.sampled_from(["0", "2.5", "-1.5", "1e300", "0.1", "3"]),
    "single": st.sampled_from(["0", "0.1", "2.5", "16777217", "1e-3"]),
    "text": st.sampled_from(["'a'", "'b'", "''", "'é'", "'ab'"]),
    "price": st.sampled_from(["1.10", "1.1", "0", "-2.345", "3"]),
    "day": st.sampled_from(
        ["'2024-01-02'", "DATE '2024-01-03'", "TIMESTAMP '2024-01-02 12:00:00'"]
    ),
    "moment": st.sampled_from(
        ["'2024-01-02 00:00:01'", "TIMESTAMP '2024-01-02 00:00:00'", "DATE '2024-01-02'"]
    ),
}
POOLS = {
    "int": (pa.int64(), st.integers(-5, 5) | st.sampled_from([2**53 + 1, -(2**53) - 1])),
    "small": (pa.uint8(), st.integers(0, 5)),
    "float": (
        pa.float64(),
        st.sampled_from([0.0, -0.0, 0.1, 2.5, -1.5, 1e300, math.nan, math.inf, -math.inf]),
    ),
    "single": (pa.float32(), st.sampled_from([0.0, 0.1, 2.5, 16777216.0, 0.001, math.nan])),
    "text": (pa.string(), st.sampled_from(["", "a", "ab", "b", "é", "z"])),
    "price": (
        pa.decimal128(9, 3),
        st.sampled_from([decimal.Decimal(one) for one in ("1.1", "0", "-2.345", "3", "2.999")]),
    ),
    "day": (pa.date32(), st.dates(datetime.date(2024, 1, 1), datetime.date(2024, 1, 4))),
    "moment": (
        pa.timestamp("us"),
        st.datetimes(
            datetime.datetime(2024, 1, 1, 23, 59, 59), datetime.datetime(2024, 1, 2, 0, 0, 2)
        ),
    ),
}


@st.composite
def conditions(draw, names):
    out = []
    for _ in range(draw(st.integers(1, 3))):
        name = draw(st.sampled_from(names))
        one, two = draw(LITERALS[name]), draw(LITERALS[name])
        sign = draw(st.sampled_from(["=", "<", "<=", ">", ">="]))
        out.append(
            draw(
                st.sampled_from(
                    [
                        f"{name} {sign} {one}",
                        f"{one} {sign} {name}",
                        f"{name} IN ({one}, {two})",
                        f"{name} BETWEEN {one} AND {two}",
                    ]
                )
            )
        )
    return " AND ".join(out)


@settings(max_examples=examples(60), deadline=None)
@given(st.data())
def test_skipped_row_groups_have_no_row_that_the_condition_selects(tmp_path_factory, data):
    names = data.draw(st.lists(st.sampled_from(list(POOLS)), min_size=1, max_size=3, unique=True))
    rows = data.draw(st.integers(1, 12))
    columns = {
        name: pa.array(
            data.draw(st.lists(st.none() | POOLS[name][1], min_size=rows, max_size=rows)),
            POOLS[name][0],
        )
        for name in names
    }
    path = tmp_path_factory.mktemp("x") / "x.parquet"
    pq.write_table(pa.table(columns), path, row_group_size=data.draw(st.integers(1, 4)))
    where = data.draw(conditions(names))
    found = open_index(str(path))
    whole, some = (
        list(select(found.schema, batches, where)[1])
        for batches in (found.batches(), found.batches(where=where))
    )
    assert repr([row for batch in some for row in batch.to_pylist()]) == repr(
        [row for batch in whole for row in batch.to_pylist()]
    )


def test_only_the_columns_of_a_condition_are_read(tmp_path):
    pq.write_table(
        pa.table({"n": range(1000), "t": [f"{n:05}" for n in range(1000)]}),
        tmp_path / "x.parquet",
        row_group_size=100,
    )
    found = open_index(str(tmp_path / "x.parquet"))
    for where, rows in {
        "n >= 250 AND n < 320": 200,
        "n = 5 OR n = 6": 1000,
        "t > '00899'": 100,
        "SELECT t FROM dataframe WHERE n IN (1, 999)": 200,
        "n > 5000": 0,
        "n + 1 > 5000": 1000,
    }.items():
        batches = list(found.batches(where=where, row="at"))
        assert sum(batch.num_rows for batch in batches) == rows, where
        assert all(batch.column("at").equals(batch.column("n")) for batch in batches)
    assert found.count("n > 5000") == 0
    assert found.count("n % 2 = 0 AND n < 11") == 6
    assert found.count() == 1000


@pytest.mark.parametrize(
    ("where", "count"),
    [
        ("n > 3 AND lang = 'en'", 2),
        ("n > 3 OR lang = 'en'", 0),
        ("NOT n > 3", 0),
        ("n > m", 0),
        ("abs(n) > 3", 0),
        ("n > 3 AND", 0),
        ("n > NULL", 0),
    ],
)
def test_only_comparisons_with_literals_joined_by_and_are_bounds(where, count):
    assert len(bounds(where, ["n", "m", "lang"])) == count


def test_statistics_of_a_footer_that_crashes_arrow_are_not_read(tmp_path):
    """The footers have a wrong type in a chunk, too many levels in a histogram, or a minimum that
    is too short.
    """
    table, path = pa.table({"n": range(40)}), tmp_path / "x.parquet"
    pq.write_table(table, path, row_group_size=10, compression="none", store_schema=False)
    data = path.read_bytes()
    length = int.from_bytes(data[-8:-4], "little")
    body, footer = data[: -8 - length], data[-8 - length : -8]
    least = (39).to_bytes(8, "little")
    assert footer.count(b"\x18\x08" + least) == 1
    type_of_chunk = footer.index(
        b"\x1c\x15\x04\x19"
    )  # the metadata of a chunk starts with its type and its encodings
    for damaged in (
        footer[: type_of_chunk + 2] + b"\x08" + footer[type_of_chunk + 3 :],
        footer.replace(b"\x18\x08" + least, b"\x18\x03" + least[:3]),
    ):
        path.write_bytes(body + damaged + len(damaged).to_bytes(4, "little") + b"PAR1")
        part = Parquet(locate(str(path)))
        assert valid_leaves(part.at, part.metadata()) == frozenset()
        found = part.select_row_groups(bounds("n > 30", ["n"]), 0, 40)
        assert found == [(0, range(4))]  # all row groups are read, which reports the error


def test_statistics_of_valid_footers_are_read(tmp_path):
    columns = {name: pa.array([None] * 3, kind) for name, (kind, _) in COLUMNS.items()}
    pq.write_table(pa.table(columns), tmp_path / "x.parquet", row_group_size=2)
    part = Parquet(locate(str(tmp_path / "x.parquet")))
    assert len(valid_leaves(part.at, part.metadata())) == part.metadata().num_columns


LISTS_IN_LISTS = b"\x19" * 100_000
EMPTY_STRUCTS = b"\x29\xfc\xcc\x08" + bytes(1101)  # 1100 values of one byte


@pytest.mark.parametrize(
    "inside", [LISTS_IN_LISTS, EMPTY_STRUCTS], ids=["lists in lists", "empty structs"]
)
def test_statistics_of_a_footer_beyond_the_limits_are_not_read(tmp_path, monkeypatch, inside):
    parquet_metadata._Reader(EMPTY_STRUCTS).read_struct()
    monkeypatch.setattr(parquet_metadata, "MAX_VALUES", 1000)
    with pytest.raises(ValueError, match="too many or too deeply nested values"):
        parquet_metadata._Reader(inside).read_struct()
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"n": [1]}), path)
    part = Parquet(locate(str(path)))
    footer = part.metadata()
    path.write_bytes(b"PAR1" + inside + len(inside).to_bytes(4, "little") + b"PAR1")
    assert valid_leaves(part.at, footer) == frozenset()
