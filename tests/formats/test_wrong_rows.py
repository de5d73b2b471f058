"""Each row that is wrong is named, wherever it stands in what is checked at once, and only the wrong ones."""

import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli import commands
from flarecli.errors import FormatError, ReachError
from flarecli.formats.bisect import MAX_NAMED_ROWS, wrong_rows
from flarecli.model import Finding

ROWS = 20_000
BAD = (0, 1, 2, 4095, 4096, 8191, 8192, 8193, 12_345, 19_999)


def check_of(wrong):
    def check(start, stop):
        rows = [row for row in range(start, stop) if row in wrong]
        if rows:  # one that looks at columns one after another need not meet the first row first
            raise FormatError("bad", where="x", row=rows[-1])

    return check


@given(st.sets(st.integers(0, 99)), st.integers(1, 40))
def test_every_wrong_row_is_found_once_and_in_order(wrong, step):
    runs = [(start, min(start + step, 100)) for start in range(0, 100, step)]
    assert [one.where for one in wrong_rows(runs, check_of(wrong))] == [
        f"x[{row}]" for row in sorted(wrong)
    ]


def test_where_all_are_wrong_the_first_thousand_are_named_and_of_each_run_behind_them_one():
    asked = []

    def check(start, stop):
        asked.append((start, stop))
        raise FormatError("bad", where="x", row=start)

    runs = [(start, start + 8192) for start in range(0, 1 << 20, 8192)]
    found = [one.row for one in wrong_rows(runs, check)]
    assert found[:MAX_NAMED_ROWS] == list(range(MAX_NAMED_ROWS))
    assert found[-127:] == [start for start, _ in runs[1:]]
    assert found[MAX_NAMED_ROWS:-127] == [
        1000,
        1008,
        1024,
        2048,
        4096,
    ]  # what was left of the run when the thousandth was named: halves of halves
    assert len(asked) < 4 * MAX_NAMED_ROWS


def test_what_is_not_about_one_row_is_said_once():
    def check(start, stop):
        raise ReachError("input/output error, reading from byte 7", where="x.json")

    assert [one.message for one in wrong_rows([(0, 10), (10, 20)], check)] == [
        "input/output error, reading from byte 7"
    ] * 2


def test_a_row_that_cannot_be_reached_is_no_row_that_is_wrong():
    asked = []

    def check(start, stop):
        asked.append((start, stop))
        raise ReachError("no answer", where="x.json", row=7)

    assert [one.where for one in wrong_rows([(0, 10)], check)] == ["x.json[7]"]
    assert asked == [(0, 10)]  # and is not asked for again


def test_what_is_about_a_file_with_a_number_in_its_name_is_said_once_with_its_hint():
    def check(start, stop):
        raise FormatError("bad", where="x[7].mds", hint="Fetch it again.")

    assert list(wrong_rows([(0, 10)], check)) == [
        Finding("x[7].mds", "format", "bad", "Fetch it again.")
    ]


def change(path, rows, old, new):
    """Put other bytes of the same length into lines of a file, and give them back."""
    lines = path.read_bytes().splitlines(keepends=True)
    head = len(lines) - ROWS
    for row in rows:
        assert old in lines[head + row]
        lines[head + row] = lines[head + row].replace(old, new)
    path.write_bytes(b"".join(lines))


def findings(folder, **options):
    return [one.where for one in commands.verify(str(folder), **options) if one.kind != "size"]


@pytest.mark.parametrize(
    ("format", "old", "new"), [("json", b'"t"', b'"u"'), ("csv", b",", b";"), ("tsv", b"\t", b";")]
)
def test_verify_names_each_bad_line(tmp_path, format, old, new):
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"n": i, "t": f"v{i}"}) + "\n" for i in range(ROWS))
    )
    commands.pack(str(tmp_path / "x.jsonl"), str(tmp_path / "out"), format=format)
    shard = tmp_path / "out" / f"shard.00000.{format}"
    change(shard, BAD, old, new)
    (
        tmp_path / "out" / "playlist.yaml"
    ).unlink()  # else the sum of the file says it, and nothing looks further
    assert findings(tmp_path / "out") == [f"{shard}[{row}]" for row in BAD]
    assert findings(tmp_path / "out", max_findings=4) == [
        *(f"{shard}[{row}]" for row in BAD[:4]),
        str(tmp_path / "out"),
    ]


def test_verify_names_each_value_that_is_none_in_mds_and_webdataset(tmp_path):
    rows = pa.table({"t": [f"value {i:05d}" for i in range(ROWS)]})
    pa.parquet.write_table(rows, tmp_path / "x.parquet")
    for format, name in (("mds", "shard.00000.mds"), ("webdataset", "00000.tar")):
        commands.pack(str(tmp_path / "x.parquet"), str(tmp_path / format), format=format)
        shard = tmp_path / format / name
        data = shard.read_bytes()
        for row in BAD:
            data = data.replace(b"value %05d" % row, b"value\xff%05d" % row)
        shard.write_bytes(data)
        (tmp_path / format / "playlist.yaml").unlink()
        assert {one for one in findings(tmp_path / format, decode=True) if one.endswith("]")} == {
            f"{shard}[{row}]" for row in BAD
        }
