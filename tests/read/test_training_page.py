"""The examples of docs/training.md run."""

import doctest
from pathlib import Path

from flarecli.encodings import CUSTOM

PAGE = Path(__file__).parents[2] / "docs" / "training.md"


def test_the_examples_run(tmp_path, in_tmp_path):
    text = PAGE.read_text().replace("\n```\n", "\n")  # a closing fence is not expected output
    test = doctest.DocTestParser().get_doctest(text, {}, "training.md", str(PAGE), 0)
    output = []
    failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=output.append)
    CUSTOM.pop("point", None)
    assert (failed.failed, "".join(output)) == (0, "")
    assert failed.attempted > 20
