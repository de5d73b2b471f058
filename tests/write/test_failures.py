"""Failed rows: they are listed without secrets, and their errors have a hint."""

import json

import pytest

from flarecli.errors import ReachError, UnsafeError
from flarecli.write import Failure, error_of

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
        ("unsafe", "the name '../x' leaves the folder", UnsafeError, "Skip it."),
        ("http", "404 not found", ReachError, "Skip it."),
    ],
)
def test_the_hint_of_a_failed_row_depends_on_the_kind_of_failure(kind, reason, error, hint):
    allows = "Pass --allow-host a." if "leads to" in reason else "Repair it."
    result = error_of(Failure(3, "", "url", kind, reason, hint=allows), "i.parquet", "Skip it.")
    assert (type(result), str(result)) == (error, f"i.parquet[3]: {reason}")
    assert result.hint.startswith(hint)
