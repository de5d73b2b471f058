"""The conformance suite on the third-party format, run by pytest where `toy_format` is
installed.
"""

from flarecli.testing import FormatSuite


class TestToy(FormatSuite):
    name = "toy"
