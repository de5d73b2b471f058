"""Conditions, compared with Python's own filter; their read-ahead; and access that is denied."""

import datetime
import decimal
import gc
import os
import signal
import subprocess
import sys

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import FormatError, UsageError
from flarecli.sql import Bound, bounds, select
from tests.properties import examples

SCHEMA = pa.schema(
    [pa.field("n", pa.int64()), pa.field("text", pa.large_string(), metadata={b"encoding": b"str"})]
)
CONDITION = "Use a form such as \"aes > 4 and lang = 'en'\"."


class CountedBatches:
    """Iterator of batches that counts the requested ones."""

    def __init__(self, batches: int, rows: int = 1000, width: int = 10) -> None:
        self.batches, self.rows, self.width, self.count = batches, rows, width, 0

    def __iter__(self):
        for i in range(self.batches):
            self.count += 1
            numbers = range(i * self.rows, (i + 1) * self.rows)
            yield pa.record_batch(
                [
                    pa.array(numbers, pa.int64()),
                    pa.array([f"{n:0{self.width}}" for n in numbers], pa.large_string()),
                ],
                schema=SCHEMA,
            )


def rows_of(batches) -> list[dict]:
    return [row for batch in batches for row in batch.to_pylist()]


def error_of(expression: str, schema: pa.Schema = SCHEMA, batches=()) -> UsageError:
    with pytest.raises(UsageError) as caught:
        list(select(schema, iter(batches), expression)[1])
    return caught.value


@settings(max_examples=examples(25), deadline=None)
@given(
    st.lists(
        st.lists(
            st.tuples(st.none() | st.integers(-5, 5), st.none() | st.text("ab'\"%é", max_size=3)),
            max_size=20,
        ),
        max_size=4,
    ),
    st.integers(-5, 5),
)
def test_a_condition_selects_the_same_rows_as_python(groups, bound):
    batches = [
        pa.record_batch(
            [
                pa.array([n for n, _ in group], pa.int64()),
                pa.array([t for _, t in group], pa.large_string()),
            ],
            schema=SCHEMA,
        )
        for group in groups
    ]
    kept = [
        {"n": n, "text": t}
        for group in groups
        for n, t in group
        if n is not None and n > bound and t is not None and "a" in t
    ]
    condition = f"n > {bound} and contains(text, 'a')"
    for expression in (
        condition,
        f"SELECT * FROM dataframe WHERE {condition}",
        f"SELECT * FROM dataframe WHERE {condition} LIMIT 1000000",
    ):
        assert rows_of(select(SCHEMA, batches, expression)[1]) == kept


def test_a_condition_preserves_types_and_metadata():
    values = {
        "i": pa.array([1, 2], pa.uint8()),
        "when": pa.array([1, 1_700_000_000_123_456_789], pa.timestamp("ns", "Europe/Paris")),
        "took": pa.array([datetime.timedelta(seconds=1), None]),
        "price": pa.array([decimal.Decimal("1.10"), decimal.Decimal("2.20")]),
        "text": pa.array(["a", "b"], pa.large_string()),
        "fixed": pa.array([b"12", b"34"], pa.binary(2)),
        "list": pa.array([[1], []], pa.list_(pa.int32())),
        "struct": pa.array([{"x": 1}, None]),
        "none": pa.nulls(2),
    }
    schema = pa.schema(
        [
            pa.field(name, array.type, metadata={b"encoding": b"bytes"})
            for name, array in values.items()
        ]
    )
    batch = pa.record_batch(list(values.values()), schema=schema)
    found, batches = select(schema, [batch], "i = 2")
    assert found.equals(schema, check_metadata=True)
    (kept,) = batches
    assert kept.equals(batch.slice(1), check_metadata=True)


def test_a_select_determines_its_columns():
    schema, batches = select(
        SCHEMA, CountedBatches(3), "SELECT n + 1 AS next, text FROM dataframe WHERE n % 1000 = 7"
    )
    assert schema == pa.schema([("next", pa.int64()), ("text", pa.string())])
    assert schema.field("text").metadata == {b"encoding": b"str"}
    assert rows_of(batches) == [{"next": n + 1, "text": f"{n:010}"} for n in (7, 1007, 2007)]


def test_a_select_may_sort_group_and_number():
    assert rows_of(
        select(SCHEMA, CountedBatches(3), "SELECT n FROM dataframe ORDER BY n DESC LIMIT 2")[1]
    ) == [{"n": 2999}, {"n": 2998}]
    assert rows_of(
        select(
            SCHEMA,
            CountedBatches(3),
            "SELECT n % 2 AS odd, count(*) AS c FROM dataframe GROUP BY ALL ORDER BY odd",
        )[1]
    ) == [
        {"odd": 0, "c": 1500},
        {"odd": 1, "c": 1500},
    ]
    once = "WITH d AS MATERIALIZED (SELECT * FROM dataframe) SELECT n FROM d WHERE n > (SELECT max(n) - 2 FROM d)"
    assert rows_of(select(SCHEMA, CountedBatches(3), once)[1]) == [{"n": 2998}, {"n": 2999}]


def test_enums_are_returned_as_text():
    schema, batches = select(
        SCHEMA, CountedBatches(1, 1), "SELECT 'x'::ENUM ('x', 'y') AS e FROM dataframe"
    )
    assert schema == pa.schema([("e", pa.string())])
    assert rows_of(batches) == [{"e": "x"}]


@pytest.mark.parametrize(
    "expression",
    [
        "n % 2 = 0",
        "n IN (0, 1, 2, 3, 4, 5, 6, 7, 8)",
        "SELECT n, text FROM dataframe WHERE n % 2 = 0",
    ],
)
def test_one_batch_is_pulled_when_the_first_rows_are_consumed(expression):
    source = CountedBatches(100)
    _, batches = select(SCHEMA, source, expression)
    assert source.count == 0
    next(batches)
    assert source.count == 1
    batches.close()
    assert source.count == 1


def test_a_select_with_a_limit_reads_a_bounded_number_of_batches_ahead():
    source = CountedBatches(1000)
    _, batches = select(SCHEMA, source, "SELECT * FROM dataframe WHERE n % 2 = 0 LIMIT 400000")
    next(batches)
    assert source.count <= 50
    batches.close()
    assert source.count <= 50


def test_a_limit_stops_the_source():
    source = CountedBatches(1000)
    assert len(rows_of(select(SCHEMA, source, "SELECT n FROM dataframe LIMIT 1500")[1])) == 1500
    assert source.count <= 50


def test_no_batch_exceeds_the_requested_size():
    for expression in ("SELECT n FROM dataframe", "SELECT n FROM dataframe ORDER BY n"):
        _, batches = select(SCHEMA, CountedBatches(2), expression, batch_rows=300)
        assert [batch.num_rows for batch in batches if batch.num_rows > 300] == []


def test_the_order_of_the_input_is_preserved_by_joins():
    wanted = list(range(0, 20000, 7))
    listed = ", ".join(str(n) for n in reversed(wanted))
    for expression in (f"n IN ({listed})", f"SELECT n FROM dataframe WHERE n IN ({listed})"):
        assert [
            row["n"] for row in rows_of(select(SCHEMA, CountedBatches(20), expression)[1])
        ] == wanted


@pytest.mark.parametrize(
    "expression", ["n >= 0", "SELECT * FROM dataframe", "SELECT * FROM dataframe ORDER BY n"]
)
def test_an_error_of_the_source_is_raised_unchanged(expression):
    def source():
        yield from CountedBatches(2)
        raise FormatError("cut short", where="x.parquet", hint="Fetch it again.")

    with pytest.raises(FormatError) as caught:
        list(select(SCHEMA, source(), expression)[1])
    assert (str(caught.value), caught.value.hint) == ("x.parquet: cut short", "Fetch it again.")


def test_an_interrupt_in_the_source_is_an_interrupt():
    def source():
        yield from CountedBatches(1)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        list(select(SCHEMA, source(), "SELECT * FROM dataframe ORDER BY n")[1])


@pytest.mark.parametrize(
    ("expression", "message", "hint"),
    [
        ("  ", "--where is empty", CONDITION),
        ("aes > 4", "--where: no column 'aes'", "Choose from n, text."),
        ("n >", "--where: syntax error: unexpected end", CONDITION),
        ("n > 3)", '--where: syntax error at or near ")"', CONDITION),
        (
            'text = "row"',
            "--where: no column 'row'",
            "Choose from n, text. For text, use single quotes: 'row'.",
        ),
        (
            "text = row",
            "--where: no column 'row'",
            "Choose from n, text. For text, use single quotes: 'row'.",
        ),
        ("row = 'text'", "--where: no column 'row'", "Choose from n, text."),
        (
            "SELECT * FROM rows",
            "--where: Table with name rows does not exist!",
            "The table is named dataframe: SELECT … FROM dataframe …",
        ),
        (
            "SELECT n AS x",
            "--where: no column 'n'",
            "Write SELECT … FROM dataframe …, or a condition.",
        ),
        ("SELECT * FROM dataframe WHER n", '--where: syntax error at or near "n"', CONDITION),
        (
            "SELECT 1; SELECT * FROM dataframe",
            "--where must be one condition or one SELECT",
            CONDITION,
        ),
        (
            "WITH d AS (SELECT 1) INSERT INTO dataframe SELECT * FROM d",
            "--where must be one condition or one SELECT",
            CONDITION,
        ),
        ("count(*) > 1", "--where: WHERE clause cannot contain aggregates!", CONDITION),
        (
            "SELECT 1 AS n",
            "--where: the query does not read the table `dataframe`",
            "Write SELECT … FROM dataframe …, or a condition.",
        ),
        (
            "SELECT * FROM range(1000000000000)",
            "--where: the query does not read the table `dataframe`",
            "Write SELECT … FROM dataframe …, or a condition.",
        ),
        (
            "SELECT n, n FROM dataframe",
            "--where returns two columns named 'n'",
            "Rename one of the columns: SELECT … AS name.",
        ),
        (
            "n > (SELECT avg(n) FROM dataframe)",
            "--where: the query reads the table `dataframe` more than once",
            "Start with WITH d AS MATERIALIZED (SELECT * FROM dataframe), and read from d.",
        ),
    ],
)
def test_an_invalid_condition_is_refused_in_one_line(expression, message, hint):
    error = error_of(expression)
    assert (str(error), error.hint) == (message, hint)


def test_a_source_column_may_have_the_name_of_the_hidden_column():
    names = ["position in its batch", "Position in its batch'", "n"]
    batch = pa.record_batch(
        [pa.array([0, 0, 0]), pa.array([9, 9, 9]), pa.array([1, 2, 3])], names=names
    )
    _, batches = select(batch.schema, [batch], "n > 1")
    assert [row for one in batches for row in one.to_pylist()] == [
        dict(zip(names, (0, 9, n), strict=True)) for n in (2, 3)
    ]


@pytest.mark.parametrize(
    ("expression", "names", "wanted"),
    [
        ("a > 5", ["a", "b"], (Bound("a", ">", (5,)),)),
        ("SELECT * FROM dataframe WHERE A > 5", ["a", "b"], (Bound("a", ">", (5,)),)),
        ("SELECT * FROM dataframe AS d(b, a) WHERE a > 5", ["a", "b"], ()),  # the names are swapped
        ("WITH dataframe AS (SELECT 9 AS a) SELECT * FROM dataframe WHERE a > 5", ["a", "b"], ()),
        ("a > 5", ["a", "A"], ()),
        ("a > 5 OR b > 5", ["a", "b"], ()),
        ("NOT (a > 5)", ["a", "b"], ()),
    ],
)
def test_bounds_refer_to_the_right_column_or_are_omitted(expression, names, wanted):
    assert bounds(expression, names) == wanted


def test_duplicate_column_names_are_refused():
    batch = pa.record_batch([pa.array([1]), pa.array([2])], names=["a", "a"])
    with pytest.raises(
        UsageError, match="^--where: the columns 'a' and 'a' have the same name in SQL(?m:$)"
    ):
        select(batch.schema, [batch], "a = 1")


def test_columns_that_differ_only_in_case_are_refused():
    error = error_of("id > 1", pa.schema([("id", pa.int64()), ("ID", pa.int64())]))
    assert (str(error), error.hint) == (
        "--where: the columns 'id' and 'ID' have the same name in SQL",
        "Rename one of the columns in the source.",
    )


@pytest.mark.parametrize(
    "expression",
    ["CAST(text AS INTEGER) = 1", "SELECT CAST(text AS INTEGER) AS i FROM dataframe ORDER BY i"],
)
def test_a_value_on_which_the_condition_fails_is_reported(expression):
    batch = pa.record_batch(
        [pa.array([1], pa.int64()), pa.array(["x\x1b[2J"], pa.large_string())], schema=SCHEMA
    )
    error = error_of(expression, batches=[batch])
    assert str(error).startswith("--where failed on a row: Could not convert string 'x")
    assert error.hint == "Exclude rows that fail, or convert values with try_cast."
    assert "\n" not in str(error)


@pytest.mark.parametrize(
    "expression",
    [
        "random() < 0.5",
        "SELECT n, random() AS r, uuid() AS u FROM dataframe",
        "SELECT n FROM dataframe ORDER BY random()",
    ],
)
def test_random_values_in_a_condition_are_reproducible(expression):
    one, two = (rows_of(select(SCHEMA, iter(CountedBatches(3)), expression)[1]) for _ in range(2))
    assert one == two
    assert one


def test_conditions_do_not_depend_on_the_time_zone_of_the_machine():
    queries = [
        "z >= '2020-01-01'",
        "SELECT z, CAST(z AS VARCHAR) AS text, hour(z) AS hour FROM dataframe",
    ]
    code = """
import datetime, sys, pyarrow as pa
from flarecli.sql import select
batch = pa.record_batch({"z": pa.array([datetime.datetime(2020, 1, 1)], pa.timestamp("us", "UTC"))})
for query in sys.argv[1:]:
    schema, batches = select(batch.schema, iter([batch]), query)
    print(schema, [batch.to_pylist() for batch in batches])
"""
    told = {
        subprocess.run(
            [sys.executable, "-c", code, *queries],
            env={**os.environ, "TZ": zone},
            capture_output=True,
            text=True,
            timeout=60,
            check=True,
        ).stdout
        for zone in ("UTC", "America/New_York", "Asia/Kolkata")
    }
    assert len(told) == 1
    assert told.pop().count("2020, 1, 1, 0, 0") == 2


@pytest.mark.parametrize(
    "expression",
    [
        "SELECT * FROM read_csv('{file}')",
        "SELECT * FROM '{file}'",
        "SELECT d.* FROM dataframe d, read_text('{file}')",
        "n > (SELECT count(*) FROM glob('{folder}/*'))",
        "SELECT * FROM secret_table",
        "SELECT getenv('HOME') AS h FROM dataframe",
        "COPY dataframe TO '{folder}/out.csv'",
        "ATTACH '{folder}/x.db'",
        "INSTALL httpfs",
        "SET enable_external_access = true",
    ],
)
def test_conditions_cannot_access_files_network_or_python(tmp_path, expression):
    secret_table = pa.table(
        {"n": [1]}
    )  # by default, DuckDB finds a table by the name of a Python variable
    (tmp_path / "secret.csv").write_text("n,text\n1,secret\n")
    error = error_of(
        expression.format(file=tmp_path / "secret.csv", folder=tmp_path), batches=CountedBatches(1)
    )
    assert "secret\n" not in str(error)
    assert [path.name for path in tmp_path.iterdir()] == ["secret.csv"]
    assert secret_table.num_rows == 1


@pytest.mark.parametrize(
    ("array", "condition"),
    [
        (pa.array([0.5, 2.0], pa.float16()), "v > 1"),
        (pa.array([[0.5], [2.0]], pa.list_(pa.float16())), "v[1] > 1"),
        (pa.array([{"x": 0.5}, {"x": 2.0}], pa.struct([("x", pa.float16())])), "v.x > 1"),
        (pa.array([[("x", 0.5)], [("x", 2.0)]], pa.map_(pa.utf8(), pa.float16())), "v['x'] > 1"),
        (pa.array([0.5, 2.0], pa.float16()).dictionary_encode(), "v > 1"),
        (pa.array([decimal.Decimal(1), decimal.Decimal(10) ** 30], pa.decimal256(60, 5)), "v > 5"),
        (pa.array([decimal.Decimal(100), decimal.Decimal(900)], pa.decimal128(5, -2)), "v > 500"),
    ],
)
def test_types_that_duckdb_cannot_read_are_compared_and_kept(array, condition):
    batch = pa.record_batch({"v": array})
    schema, rows = select(batch.schema, iter([batch]), condition)
    assert schema == batch.schema
    assert [one.column("v") for one in rows] == [array[1:]]


def test_a_decimal_with_too_many_digits_is_refused():
    array = pa.array([decimal.Decimal(10) ** 50], pa.decimal256(60, 0))
    batch = pa.record_batch({"v": array})
    with pytest.raises(UsageError) as caught:
        list(select(batch.schema, iter([batch]), "v > 1")[1])
    assert caught.value.message.startswith(
        "--where: a decimal has more than 38 digits, which SQL cannot read: "
    )
    assert caught.value.hint == "Store the column as text with --encode COLUMN=str."


@pytest.mark.parametrize(
    "expression",
    [
        "n > 3",
        "SELECT n + 1 AS m FROM dataframe",
        "SELECT n, count(*) AS c FROM dataframe GROUP BY n ORDER BY n",
    ],
)
def test_a_forked_child_does_not_close_an_unfinished_query_of_its_parent(expression):
    class Cycle:
        pass

    batches = CountedBatches(20)
    cycle, rows = Cycle(), iter(select(SCHEMA, batches, expression)[1])
    cycle.itself, cycle.rows = cycle, iter(select(SCHEMA, batches, expression)[1])
    cycle.unread = select(SCHEMA, batches, expression)
    next(cycle.rows)
    del cycle
    first = next(rows).num_rows
    child = os.fork()
    if not child:
        signal.alarm(60)
        code = 1
        try:
            gc.collect()
            del rows
            code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert first + sum(batch.num_rows for batch in rows) == sum(
        batch.num_rows for batch in select(SCHEMA, batches, expression)[1]
    )
