"""Rows that failed, as they are told: no secret in any of it, and the way out that helps."""

import json

import pytest

from flarecli.errors import ReachError, UnsafeError
from flarecli.write import Failure, error_of

LINK = "https://me:hunter2@example.com/a.jpg?X-Amz-Signature=hunter2"


def test_no_secret_is_listed_whoever_named_the_row():
    line = Failure(3, LINK, "url", "unsafe", f"the name '{LINK}' is a URL", "i.parquet", 5).line()
    told = json.loads(line)
    assert b"hunter2" not in line
    assert (told["row"], told["key"]) == (5, "https://example.com/a.jpg")


@pytest.mark.parametrize(
    ("kind", "reason", "error", "hint"),
    [
        (
            "unsafe",
            "leads to 10.0.0.1, a private address",
            UnsafeError,
            "Give --allow-host a, or --on-error skip to leave such rows out.",
        ),
        ("unsafe", "the name 'https://example.com/a' is a URL", UnsafeError, "Skip it."),
        ("unsafe", "the name '../x' leaves the folder", UnsafeError, "Skip it."),
        ("http", "404 not found", ReachError, "Skip it."),
    ],
)
def test_the_hint_is_the_way_out_of_what_failed(kind, reason, error, hint):
    allows = "Give --allow-host a." if "leads to" in reason else "Repair it."
    found = error_of(Failure(3, "", "url", kind, reason, hint=allows), "i.parquet", "Skip it.")
    assert (type(found), str(found)) == (error, f"i.parquet[3]: {reason}")
    assert found.hint.startswith(hint)
