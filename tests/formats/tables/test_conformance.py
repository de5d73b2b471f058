"""The conformance suite for Parquet."""

from flarecli.testing import FormatSuite


class TestParquet(FormatSuite):
    name = "parquet"
