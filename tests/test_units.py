"""Sizes and durations as text."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.errors import UsageError
from flarecli.units import format_count, format_size, parse_size, parse_time


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("0", 0),
        ("512", 512),
        ("512K", 512_000),
        ("64MB", 64 * 10**6),
        ("64MiB", 64 << 20),
        ("1.5GiB", 3 << 29),
        ("2tb", 2 * 10**12),
        (" 7 kib ", 7168),
        ("9B", 9),
        ("1.001K", 1001),
        ("2.9999", 2),
        ("9223372036854.775807MB", (1 << 63) - 1),
    ],
)
def test_sizes_are_parsed(text, size):
    assert parse_size(text) == size


@pytest.mark.parametrize(
    "text",
    [
        "",
        "-1",
        "1e3",
        "64ib",
        "x",
        "1.MB",
        "MB",
        "1_000",
        "１",
        pytest.param("9" * 5000, id="long"),
        pytest.param("9" * 400 + ".0", id="past a float"),
    ],
)
def test_an_invalid_size_is_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_size(text)
    assert str(caught.value) == f"invalid size {text!r:.60}"
    assert caught.value.hint == "Use a form such as 512K, 64MB or 64MiB."


def test_a_size_above_int64_is_refused():
    for text in ("9999999PB", "9223372036854775808", "9223372036854.775808MB"):
        with pytest.raises(UsageError) as caught:
            parse_size(text)
        assert str(caught.value) == f"size {text!r} exceeds 2^63 bytes"


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("30s", 30), ("10m", 600), ("2h", 7200), ("500ms", 0.5), ("1.5", 1.5), ("1d", 86400)],
)
def test_times_are_parsed(text, seconds):
    assert parse_time(text) == seconds


@pytest.mark.parametrize("text", ["0", "0s", "-1s", "s", "1y", "", "1e9d"])
def test_an_invalid_duration_is_refused(text):
    with pytest.raises(UsageError) as caught:
        parse_time(text)
    assert str(caught.value) == f"invalid duration {text!r}"


@pytest.mark.parametrize(
    ("size", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.0 kB"),
        (67_108_864, "67.1 MB"),
        (999_949, "999.9 kB"),
        (999_950, "1.0 MB"),
        (10**18, "1.0 EB"),
    ],
)
def test_sizes_are_formatted_for_people(size, text):
    assert format_size(size) == text


@given(st.integers(0, 1 << 62))
def test_a_formatted_size_parses_to_nearly_the_same_size(size):
    assert abs(parse_size(format_size(size)) - size) <= size * 0.051 + 1


def test_counts_have_a_noun_in_singular_or_plural():
    assert (format_count(1, "row"), format_count(12345, "row")) == ("1 row", "12,345 rows")
