"""Failed rows: they are listed without secrets, and their errors have a hint."""

import json

import pytest

from flarecli.errors import FormatError, ReachError, UnsafeError
from flarecli.storage import locate
from flarecli.write import Failure, Writer, error_of
from flarecli.write.failures import count_failed

LINK = "https://me:hunter2@example.com/a.jpg?X-Amz-Signature=hunter2"


def test_failed_rows_are_listed_without_secrets():
    line = Failure(3, LINK, "url", "unsafe", f"the name '{LINK}' is a URL", "i.parquet", 5).line()
    output = json.loads(line)
    assert b"hunter2" not in line
    assert (output["row"], output["key"]) == (5, "https://example.com/a.jpg")


@pytest.mark.parametrize(
    ("kind", "reason", "error", "hint"),
    [
        (
            "unsafe",
            "leads to 10.0.0.1, a private address",
            UnsafeError,
            "Pass --allow-host a, or --on-error skip to omit such rows.",
        ),
        ("unsafe", "the name 'https://example.com/a' is a URL", UnsafeError, "Skip it."),
        ("unsafe", "the name '../x' points outside the folder", UnsafeError, "Skip it."),
        ("http", "404 not found", ReachError, "Skip it."),
    ],
)
def test_the_hint_of_a_failed_row_depends_on_the_kind_of_failure(kind, reason, error, hint):
    allows = "Pass --allow-host a." if "leads to" in reason else "Repair it."
    result = error_of(Failure(3, "", "url", kind, reason, hint=allows), "i.parquet", "Skip it.")
    assert (type(result), str(result)) == (error, f"i.parquet[3]: {reason}")
    assert result.hint.startswith(hint)


def test_a_list_is_counted_by_kind(tmp_path):
    kinds = ["http", "value", "http"]
    lines = [Failure(row, "", "n", kind, "bad").line() for row, kind in enumerate(kinds)]
    (tmp_path / "failed.jsonl").write_bytes(b"".join(lines))
    assert count_failed(locate(str(tmp_path / "failed.jsonl"))) == {"http": 2, "value": 1}


@pytest.mark.parametrize(
    ("damaged", "message"),
    [
        (b'{"file": null, "row": 1, "ki', "line 2 is incomplete"),
        (b"[]\n", "invalid line 2: expected a failed row"),
        (b'{"file": null, "row": "1", "kind": "value"}\n', "invalid line 2: expected a failed row"),
    ],
)
def test_a_damaged_list_is_reported_with_its_line(tmp_path, damaged, message):
    file = tmp_path / "failed.jsonl"
    file.write_bytes(Failure(0, "", "n", "value", "bad").line() + damaged)
    with pytest.raises(FormatError) as caught:
        count_failed(locate(str(file)))
    assert str(caught.value) == f"{file}: {message}"


def test_many_failures_are_written_before_the_first_shard(tmp_path):
    rows = 5000  # more failures than are kept in memory
    with Writer(str(tmp_path / "out"), columns={"n": "int"}) as writer:
        for row in range(rows):
            writer.failed.add(Failure(row, "", "n", "null", "is null"))
        assert not (tmp_path / "out/failed.jsonl").exists()
        writer.failed.write(rows)
        listed = (tmp_path / "out/failed.jsonl").read_text().splitlines()
        assert [json.loads(line)["row"] for line in listed] == list(range(rows))
        writer.write({"n": 1})
    assert len((tmp_path / "out/failed.jsonl").read_text().splitlines()) == rows
