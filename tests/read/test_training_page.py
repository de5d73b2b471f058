"""The examples of docs/training.md and docs/start.md run."""

import doctest
from pathlib import Path

import pytest

from flarecli.encodings import CUSTOM

DOCS = Path(__file__).parents[2] / "docs"


@pytest.mark.parametrize(("page", "examples"), [("training.md", 20), ("start.md", 9)])
def test_the_examples_of_the_training_page_run(page, examples, tmp_path, in_tmp_path):
    text = (
        (DOCS / page).read_text().replace("\n```\n", "\n")
    )  # a closing fence is not expected output
    test = doctest.DocTestParser().get_doctest(text, {}, page, str(DOCS / page), 0)
    output = []
    failed = doctest.DocTestRunner(optionflags=doctest.ELLIPSIS).run(test, out=output.append)
    CUSTOM.pop("point", None)
    assert (failed.failed, "".join(output)) == (0, "")
    assert failed.attempted >= examples
