"""The suite for formats of other packages: it reports a broken format with both values, also under
`python -O`, which removes `assert`.
"""

import subprocess
import sys
from dataclasses import replace

import pytest

from flarecli.formats import find
from flarecli.testing import FormatSuite


class _Renamed(FormatSuite):
    """The suite for a format whose object has another name."""

    name = "json"

    @property
    def format(self):
        return find("tsv")


class _Forgetful(FormatSuite):
    """The suite for a format that reads one row too few."""

    name = "tfrecord"

    def opened(self, count):
        shard, batch = super().opened(count)
        return replace(shard, rows=shard.rows - 1), batch


def test_a_wrong_name_is_reported_with_both_names():
    with pytest.raises(AssertionError) as caught:
        _Renamed().test_the_format_is_found_by_its_name_and_its_suffixes()
    assert str(caught.value) == "name of the format: expected 'json', got 'tsv'"


def test_a_missing_row_is_reported_with_both_numbers():
    with pytest.raises(AssertionError) as caught:
        _Forgetful().test_rows_are_read_in_any_order()
    assert str(caught.value) == "rows of the shard: expected 50, got 49"


def test_a_broken_format_is_reported_without_assert():
    program = """
from flarecli.testing import FormatSuite

class Unknown(FormatSuite):
    name = "unknown"

Unknown().test_the_format_is_found_by_its_name_and_its_suffixes()
"""
    done = subprocess.run(
        [sys.executable, "-O", "-c", program], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1
    last = done.stderr.splitlines()[-1]
    assert last == "AssertionError: no format is registered as 'unknown'"
