"""Bisection reports every invalid row once and in order, and no valid row."""

import json

import pyarrow as pa
import pyarrow.parquet
import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli import commands
from flarecli.bisect import MAX_NAMED_ROWS, failing_rows, findings_of
from flarecli.errors import FormatError, ReachError
from flarecli.model import Finding

ROWS = 20_000
BAD = (0, 1, 2, 4095, 4096, 8191, 8192, 8193, 12_345, 19_999)


def check_of(invalid):
    def check(start, stop):
        rows = [row for row in range(start, stop) if row in invalid]
        if rows:  # a check that reads column by column may report a later row first
            raise FormatError("bad", where="x", row=rows[-1])

    return check


def test_failing_rows_yields_the_failure_of_each_row():
    invalid = {3: "three", 4: "four", 9: "nine"}

    def failure_of(start, stop):
        return next((invalid[row] for row in range(start, stop) if row in invalid), None)

    assert list(failing_rows(0, 10, failure_of)) == list(invalid.items())
    assert list(failing_rows(5, 9, failure_of)) == []
    assert list(failing_rows(0, 0, failure_of)) == []


@given(st.sets(st.integers(0, 99)), st.integers(1, 40))
def test_every_invalid_row_is_reported_once_and_in_order(invalid, step):
    runs = [(start, min(start + step, 100)) for start in range(0, 100, step)]
    assert [one.where for one in findings_of(runs, check_of(invalid))] == [
        f"x[{row}]" for row in sorted(invalid)
    ]


def test_after_a_thousand_invalid_rows_one_row_of_each_run_is_reported():
    checked = []

    def check(start, stop):
        checked.append((start, stop))
        raise FormatError("bad", where="x", row=start)

    runs = [(start, start + 8192) for start in range(0, 1 << 20, 8192)]
    rows = [one.row for one in findings_of(runs, check)]
    assert rows[:MAX_NAMED_ROWS] == list(range(MAX_NAMED_ROWS))
    assert rows[-127:] == [start for start, _ in runs[1:]]
    assert rows[MAX_NAMED_ROWS:-127] == [
        1000,
        1008,
        1024,
        2048,
        4096,
    ]  # the unchecked rest of the first run is bisected further
    assert len(checked) < 4 * MAX_NAMED_ROWS


def test_an_error_without_a_row_is_reported_once_for_its_run():
    def check(start, stop):
        raise ReachError("input/output error while reading from byte 7", where="x.json")

    assert [one.message for one in findings_of([(0, 10), (10, 20)], check)] == [
        "input/output error while reading from byte 7"
    ] * 2


def test_a_network_error_is_reported_without_further_reads():
    checked = []

    def check(start, stop):
        checked.append((start, stop))
        raise ReachError("no answer", where="x.json", row=7)

    assert [one.where for one in findings_of([(0, 10)], check)] == ["x.json[7]"]
    assert checked == [(0, 10)]


def test_a_number_in_a_file_name_is_not_mistaken_for_a_row():
    def check(start, stop):
        raise FormatError("bad", where="x[7].mds", hint="Fetch it again.")

    assert list(findings_of([(0, 10)], check)) == [
        Finding("x[7].mds", "format", "bad", "Fetch it again.")
    ]


def replace_in_lines(path, rows, old, new):
    """Replace bytes in some lines of a file by bytes of the same length."""
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
def test_verify_reports_each_invalid_line(tmp_path, format, old, new):
    (tmp_path / "x.jsonl").write_text(
        "".join(json.dumps({"n": i, "t": f"v{i}"}) + "\n" for i in range(ROWS))
    )
    commands.pack(str(tmp_path / "x.jsonl"), str(tmp_path / "out"), format=format)
    shard = tmp_path / "out" / f"shard.00000.{format}"
    replace_in_lines(shard, BAD, old, new)
    (
        tmp_path / "out" / "playlist.yaml"
    ).unlink()  # otherwise verify stops at the checksum of the file
    assert findings(tmp_path / "out") == [f"{shard}[{row}]" for row in BAD]
    assert findings(tmp_path / "out", max_findings=4) == [
        *(f"{shard}[{row}]" for row in BAD[:4]),
        str(tmp_path / "out"),
    ]


def test_verify_reports_each_invalid_value_in_mds_and_webdataset(tmp_path):
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
