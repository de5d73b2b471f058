"""A failed row is listed with its file and its row in that file, for any selection, order, parts
and resume.
"""

import csv
import json
from pathlib import Path

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from flarecli import commands
from flarecli.errors import FormatError, ReachError, ValueFitError
from flarecli.progress import Progress
from flarecli.write.journal import Journal
from tests.outputs import failed_rows

ROWS = 120
FORMATS = ("mds", "json", "csv", "tsv", "granular", "granular-refs", "webdataset")


def is_bad(number):
    return number % 7 == 3


@pytest.fixture(scope="module")
def addresses(tmp_path_factory):
    """Write three files of 50, 40 and 30 rows; `n` of some rows exceeds uint8, `key` is the number
    of the row.
    """
    folder = tmp_path_factory.mktemp("failed")
    table = pa.table(
        {
            "key": [f"k{i}" for i in range(ROWS)],
            "n": [1000 + i if is_bad(i) else i for i in range(ROWS)],
            "even": [i % 2 for i in range(ROWS)],
        }
    )
    pq.write_table(table[:50], folder / "a.parquet", row_group_size=9)
    pyarrow.csv.write_csv(table[50:90], folder / "b.csv")
    (folder / "c.jsonl").write_text(
        "".join(json.dumps(row) + "\n" for row in table[90:].to_pylist())
    )
    return [str(folder / name) for name in ("a.parquet", "b.csv", "c.jsonl")]


def key_at(file, row):
    """Return the key of a row of a file, read without flare."""
    path = Path(file)
    if path.suffix == ".parquet":
        return pq.read_table(path).column("key")[row].as_py()
    lines = path.read_text().splitlines()
    return (
        json.loads(lines[row])["key"]
        if path.suffix == ".jsonl"
        else list(csv.DictReader(lines))[row]["key"]
    )


SKIP = {"on_error": "skip", "encode": {"n": "uint8"}, "key": "key"}


@pytest.mark.parametrize(
    "chosen",
    [
        {},
        {"where": "even = 1"},
        {"limit": 77},
        {"shuffle": 5},
        {"where": "even = 0", "limit": 51, "shuffle": 9},
        {"where": "SELECT * FROM dataframe WHERE even = 1"},
        {"where": "SELECT n, key, even AS parity FROM dataframe WHERE even = 1"},
        {"where": "SELECT n, key, even FROM dataframe ORDER BY key DESC LIMIT 90"},
        {"part_rows": 16},
        {"part_rows": 16, "where": "even = 1"},
        {"on_duplicate": "keep", "shard_rows": 5},
    ],
    ids=str,
)
def test_failed_rows_are_listed_with_their_file_and_row_in_the_index(addresses, tmp_path, chosen):
    done = commands.pack(addresses, str(tmp_path / "out"), **(SKIP | chosen))
    output = failed_rows(tmp_path / "out")
    assert done.failed == len(output) > 3
    folder = Path(addresses[0]).parent
    assert {str(folder / one["file"]) for one in output} <= set(addresses)
    assert len({one["file"] for one in output}) > 1
    assert [key_at(folder / one["file"], one["row"]) for one in output] == [
        one["key"] for one in output
    ]
    assert all(is_bad(int(one["key"][1:])) for one in output)


def test_a_row_created_by_a_query_has_no_file(addresses, tmp_path):
    query = "SELECT even AS key, sum(n)::BIGINT AS n FROM dataframe GROUP BY even ORDER BY even"
    with pytest.raises(Exception, match="no rows|cannot be stored as"):
        commands.pack(addresses, str(tmp_path / "out"), where=query, encode={"n": "uint8"})
    commands.pack(
        addresses, str(tmp_path / "skip"), where=query, on_error="skip", encode={"n": "uint8"}
    )
    assert [(one["file"], one["row"]) for one in failed_rows(tmp_path / "skip")] == [
        (None, 0),
        (None, 1),
    ]


@pytest.mark.parametrize(
    "query",
    [
        "SELECT *, hash(dataframe) AS h FROM dataframe",
        "SELECT DISTINCT * FROM dataframe ORDER BY key",
        "SELECT COLUMNS(*) FROM dataframe",
    ],
)
def test_the_result_of_a_query_does_not_depend_on_row_numbers(addresses, tmp_path, query):
    import duckdb

    dataframe = pa.concat_tables([pq.read_table(addresses[0]), pyarrow.csv.read_csv(addresses[1])])  # noqa: F841 - DuckDB looks for it
    commands.pack(addresses[:2], str(tmp_path / "out"), where=query, format="json")
    result = [
        json.loads(line)
        for line in (tmp_path / "out" / "shard.00000.json").read_text().splitlines()
    ]
    expected = duckdb.sql(query).to_arrow_table().to_pylist()
    assert sorted(result, key=lambda row: row["key"]) == sorted(
        expected, key=lambda row: row["key"]
    )


@pytest.mark.parametrize(
    "chosen",
    [{}, {"where": "even = 1", "shuffle": 4}, {"where": "SELECT * FROM dataframe WHERE even = 1"}],
    ids=str,
)
def test_a_resumed_pack_lists_the_same_bytes(addresses, tmp_path, monkeypatch, chosen):
    options = SKIP | {"shard_rows": 6} | chosen
    commands.pack(addresses, str(tmp_path / "whole"), **options)
    note = Journal.record_shard

    def interrupting(self, *args):
        note(self, *args)
        if len(self.shards) % 3 == 0:
            raise KeyboardInterrupt

    monkeypatch.setattr(Journal, "record_shard", interrupting)
    for _ in range(20):
        try:
            commands.pack(addresses, str(tmp_path / "out"), resume=True, **options)
            break
        except KeyboardInterrupt:
            pass
    monkeypatch.undo()
    commands.pack(addresses, str(tmp_path / "out"), resume=True, **options)
    assert (tmp_path / "out" / "failed.jsonl").read_bytes() == (
        tmp_path / "whole" / "failed.jsonl"
    ).read_bytes()


class FailureCollector(Progress):
    def __init__(self):
        self.told = []

    def failed(self, key, reason):
        self.told.append((key, reason))


def test_failures_are_printed_with_their_key_or_their_row(addresses, tmp_path):
    collector = FailureCollector()
    commands.pack(
        addresses,
        str(tmp_path / "out"),
        on_error="skip",
        encode={"n": "uint8"},
        where="n = 1052",
        allow_empty=True,
        progress=collector,
    )
    assert collector.told == [(f"{addresses[1]}[2]", "n 1052 cannot be stored as uint8 (0 to 255)")]
    with pytest.raises(ValueFitError) as caught:
        commands.pack(
            addresses, str(tmp_path / "fail"), encode={"n": "uint8"}, where="n > 1100", key="key"
        )
    assert (
        str(caught.value)
        == f"{addresses[2]}[11]: k101: n 1101 cannot be stored as uint8 (0 to 255)"
    )


def test_a_failed_link_of_a_shuffled_pack_is_reported_with_its_source_row(tmp_path):
    for i in range(40):
        if i % 9:
            (tmp_path / f"{i}.bin").write_bytes(b"x%d" % i)
    (tmp_path / "x.csv").write_text("id,path\n" + "".join(f"{i},{i}.bin\n" for i in range(40)))
    commands.pack(
        str(tmp_path / "x.csv"),
        str(tmp_path / "out"),
        fetch=["path:data"],
        key="id",
        shuffle=3,
        where="id::INT > 4",
        on_error="skip",
    )
    assert sorted((one["row"], one["key"]) for one in failed_rows(tmp_path / "out")) == [
        (9, "9"),
        (18, "18"),
        (27, "27"),
        (36, "36"),
    ]
    with pytest.raises(ReachError) as caught:
        commands.pack(
            str(tmp_path / "x.csv"),
            str(tmp_path / "stop"),
            fetch=["path:data"],
            where="id::INT = 27",
        )
    assert str(caught.value).startswith(f"{tmp_path}/x.csv[27]: ")


def test_a_failed_row_of_a_dataset_is_listed_with_its_shard(addresses, tmp_path):
    commands.pack(addresses, str(tmp_path / "in"), shard_rows=50)
    commands.pack(str(tmp_path / "in"), str(tmp_path / "out"), **(SKIP | {"where": "even = 1"}))
    output = failed_rows(tmp_path / "out")
    expected = [
        (f"shard.{i // 50:05d}.mds", i % 50, f"k{i}") for i in range(ROWS) if i % 2 and is_bad(i)
    ]
    assert [(one["file"], one["row"], one["key"]) for one in output] == expected


def test_failed_rows_of_a_selection_are_listed_with_their_shards(addresses, tmp_path):
    commands.pack(addresses, str(tmp_path / "in"), shard_rows=50)
    commands.pack(str(tmp_path / "in"), str(tmp_path / "out"), rows="100:40:-1", **SKIP)
    expected = [(f"shard.{i // 50:05d}.mds", i % 50) for i in range(100, 40, -1) if is_bad(i)]
    assert [(one["file"], one["row"]) for one in failed_rows(tmp_path / "out")] == expected


def test_a_duplicate_key_is_reported_with_both_rows(tmp_path):
    (tmp_path / "a.csv").write_text("id\nx\ny\n")
    (tmp_path / "b.csv").write_text("id\nz\nw\nz\ny\n")
    both = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    with pytest.raises(FormatError) as caught:
        commands.pack(both, str(tmp_path / "out"), key="id", where="id <> 'w'")
    assert str(caught.value) == f"{both[1]}[2]: key 'z' was used in row 0"
    with pytest.raises(FormatError) as caught:
        commands.pack(both, str(tmp_path / "out"), key="id", where="id <> 'z'")
    assert str(caught.value) == f"{both[1]}[3]: key 'y' was used in {both[0]}[1]"


@pytest.mark.parametrize("kind", ["csv", "jsonl", "json", "parquet"])
@pytest.mark.parametrize("chosen", [{}, {"where": "true"}, {"shuffle": 1}, {"limit": 3}], ids=str)
def test_a_duplicate_key_in_another_file_is_reported_with_both_files(tmp_path, kind, chosen):
    paths = [tmp_path / f"{name}.{kind}" for name in ("a", "b")]
    for path, n in zip(paths, (1, 2), strict=True):
        if kind == "parquet":
            pq.write_table(pa.table({"id": ["1"], "n": [n]}), path)
        else:
            row = json.dumps({"id": "1", "n": n})
            path.write_text(
                {"csv": f"id,n\n1,{n}\n", "jsonl": f"{row}\n", "json": f"[{row}]"}[kind]
            )
    one, two = map(str, paths)
    hint = "Use `--on-duplicate first` to keep only the first row of each key, or `--on-duplicate keep` to keep all rows."
    messages = [
        (f"{two}[0]: key '1' was used in {one}[0]", hint),
        (f"{one}[0]: key '1' was used in {two}[0]", hint),
    ]
    with pytest.raises(FormatError) as caught:
        commands.pack([one, two], str(tmp_path / "out"), key="id", **chosen)
    assert (str(caught.value), caught.value.hint) in (
        messages if "shuffle" in chosen else messages[:1]
    )
    with pytest.raises(FormatError) as caught:
        commands.pack([one, one], str(tmp_path / "out"), key="id", **chosen)
    assert (str(caught.value), caught.value.hint) == (
        f"{one}[0]: key '1' was used in row 0 of the same file, which is listed more than once",
        f"List the file only once. {hint}",
    )


@pytest.mark.parametrize("format", FORMATS)
def test_a_row_without_a_key_is_a_failed_row_in_every_format(tmp_path, format):
    pq.write_table(
        pa.table({"id": ["a", "", None, "b", "", None], "n": range(6)}), tmp_path / "x.parquet"
    )
    done = commands.pack(
        str(tmp_path / "x.parquet"), str(tmp_path / "out"), format=format, key="id", on_error="skip"
    )
    assert (done.rows, done.failed, dict(done.reasons)) == (2, 4, {"null": 4})
    column = "__key__" if format == "webdataset" else "id"
    empty, null = f"{column} is empty; keys must not be empty", f"{column} is null"
    output = [
        (one["row"], one["key"], one["column"], one["reason"])
        for one in failed_rows(tmp_path / "out")
    ]
    assert output == [
        (1, "", column, empty),
        (2, "", column, null),
        (4, "", column, empty),
        (5, "", column, null),
    ]


def test_a_number_is_a_valid_key_and_a_null_is_not(tmp_path):
    pq.write_table(pa.table({"id": [0, None, 2], "n": range(3)}), tmp_path / "x.parquet")
    commands.pack(str(tmp_path / "x.parquet"), str(tmp_path / "out"), key="id", on_error="skip")
    assert [(one["row"], one["reason"]) for one in failed_rows(tmp_path / "out")] == [
        (1, "id is null")
    ]


def test_a_row_without_a_key_ends_a_pack_with_on_error_fail(tmp_path):
    (tmp_path / "x.csv").write_text("id,n\na,1\n,2\n")
    with pytest.raises(ValueFitError) as caught:
        commands.pack(str(tmp_path / "x.csv"), str(tmp_path / "out"), key="id")
    assert str(caught.value) == f"{tmp_path}/x.csv[1]: id is empty; keys must not be empty"


def test_an_unpack_lists_file_and_row_of_failures_and_a_finished_unpack_counts_them(tmp_path):
    for i in range(12):
        (tmp_path / f"{i}.txt").write_text(f"t{i}")
    (tmp_path / "a.csv").write_text(
        "id,path\n" + "".join(f"{i},{i}.txt\n" for i in range(5)) + ",5.txt\n"
    )
    (tmp_path / "b.csv").write_text(
        "id,path\n" + "".join(f"{i},{i}.txt\n" for i in range(6, 12)) + "gone,gone.txt\n"
    )
    both = [str(tmp_path / "a.csv"), str(tmp_path / "b.csv")]
    options = {"fetch": ["path"], "key": "id", "where": "id <> '2'", "on_error": "skip"}
    done = commands.unpack(both, str(tmp_path / "out"), **options)
    assert [(one["file"], one["row"], one["key"]) for one in failed_rows(tmp_path / "out")] == [
        ("a.csv", 5, ""),
        ("b.csv", 6, "gone"),
    ]
    second = commands.unpack(both, str(tmp_path / "out"), resume=True, **options)
    assert (second.rows, second.failed) == (done.rows, done.failed) == (10, 2)


@pytest.mark.parametrize("chosen", [{}, {"rows": "0:2,5:"}, {"where": "n % 2 = 0"}])
def test_an_unpack_lists_the_shard_and_the_row_of_failures(tmp_path, chosen):
    for name in ("a", "b"):
        table = pa.table(
            {
                "key": [f"{name}0", f"{name}1", "../x", f"{name}3", ""],
                "n": range(5),
                "data": [b"1"] * 5,
            }
        )
        pq.write_table(table, tmp_path / f"{name}.parquet")
        commands.pack(str(tmp_path / f"{name}.parquet"), str(tmp_path / name), shard_rows=3)
    sources = [str(tmp_path / "a"), str(tmp_path / "b")]
    done = commands.unpack(sources, str(tmp_path / "u"), on_error="skip", **chosen)
    result = [(one["file"], one["row"], one["key"]) for one in failed_rows(tmp_path / "u")]
    of_each = [
        [(f"{folder}/shard.00000.mds", 2, "../x"), (f"{folder}/shard.00001.mds", 1, "")]
        for folder in ("a", "b")
    ]
    assert result == ([] if "rows" in chosen else of_each[0]) + of_each[1]
    assert done.failed == len(result)
    with pytest.raises(ValueFitError) as caught:
        commands.unpack(sources, str(tmp_path / "v"), rows="9")
    assert (
        str(caught.value)
        == f"{sources[1]}/shard.00001.mds[1]: column 'key' is empty, so the file has no name"
    )
    assert caught.value.hint == (
        "Use a different --name, such as '{row}.{ext}', or a different --key."
    )


@pytest.mark.parametrize(
    ("chosen", "place"),
    [
        ({}, "b.csv[1]"),
        ({"on_error": "skip"}, "b.csv[1]"),
        ({"where": "t <> 1"}, "b.csv[1]"),
        ({"limit": 5}, "b.csv[1]"),
        ({"shuffle": 7}, "a.csv[1]"),
    ],
    ids=str,
)
def test_a_duplicate_key_in_a_webdataset_shard_is_reported_with_its_row(
    tmp_path, in_tmp_path, chosen, place
):
    Path("a.csv").write_text("id,t\nz,0\na,1\nb,2\n")
    Path("b.csv").write_text("id,t\nc,3\nb,4\nd,5\n")
    options = {"format": "webdataset", "key": "id", "on_duplicate": "keep", **chosen}
    with pytest.raises(ValueFitError) as caught:
        commands.pack(["a.csv", "b.csv"], "out", **options)
    if "shuffle" in chosen:
        place = caught.value.where
        assert place in ("a.csv[2]", "b.csv[1]")
    assert str(caught.value) == f"{place}: duplicate key 'b' in the same shard"
    assert (
        caught.value.hint
        == "Make the keys unique, or omit the column so that each row gets a generated key."
    )
    assert not list(Path(".").rglob("*.tar"))


def test_another_webdataset_shard_may_repeat_a_key(tmp_path):
    (tmp_path / "a.csv").write_text("id,t\na,1\nb,2\na,3\nb,4\nc,5\nc,6\n")
    with pytest.raises(ValueFitError, match=r"a\.csv\[5\]: duplicate key 'c' in the same shard"):
        commands.pack(
            str(tmp_path / "a.csv"),
            str(tmp_path / "out"),
            format="webdataset",
            key="id",
            on_duplicate="keep",
            shard_rows=2,
        )
    (tmp_path / "a.csv").write_text("id,t\na,1\nb,2\na,3\nb,4\nc,5\nd,6\n")
    commands.pack(
        str(tmp_path / "a.csv"),
        str(tmp_path / "out"),
        format="webdataset",
        key="id",
        on_duplicate="keep",
        shard_rows=2,
        overwrite=True,
    )
    assert [
        key.as_py()
        for batch in commands.cat(str(tmp_path / "out"))
        for key in batch.column("__key__")
    ] == list("ababcd")
