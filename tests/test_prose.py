"""The script that draws texts for a review of the English."""

import ast
import importlib.util
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).with_name("prose.py")


def loaded(script):
    spec = importlib.util.spec_from_file_location("prose", script)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


prose = loaded(SCRIPT)


@pytest.fixture
def script(tmp_path):
    """Copy the script with a part of the texts that it draws from."""
    for name in ("flarecli/formats", "docs"):
        shutil.copytree(prose.ROOT / name, tmp_path / name)
    (tmp_path / "tests").mkdir()
    return Path(shutil.copy(SCRIPT, tmp_path / "tests"))


def test_a_seed_draws_the_same_100_texts_in_each_process(script, capsys):
    command = [sys.executable, script, "1"]
    first = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    places = re.findall(r"^ *\d+  (\S+):(\d+)$", first, re.M)
    assert len(places) == 100
    for name, line in places:
        assert int(line) <= len((script.parents[1] / name).read_text().splitlines())
    copy = loaded(script)
    assert copy.main(["1"]) == 0
    assert capsys.readouterr().out == first
    assert copy.main(["2"]) == 0
    assert capsys.readouterr().out != first


def test_comments_on_adjacent_lines_are_one_text():
    source = "# first line\n# second line\nx = 1  # seconds from the start\n\n# third line\n"
    assert list(prose.comments(source)) == [
        (1, "first line second line"),
        (3, "x = 1  # seconds from the start"),
        (5, "third line"),
    ]


def test_comments_for_tools_are_left_out():
    assert not list(prose.comments("x = 1  # type: ignore[misc]\ny = 2  # noqa: E501 long line\n"))


def test_messages_hints_and_help_texts_are_found_with_their_placeholders():
    source = (
        "raise FormatError(f'file is {n} bytes', hint='Run it again.')\noption('-x', help='All.')"
    )
    found = sorted(prose.messages(ast.parse(source)))
    assert found == [(1, "Run it again."), (1, "file is {…} bytes"), (2, "All.")]


def test_each_text_of_a_message_is_found_once():
    source = (
        "HINT = 'Pack it again.'\n"
        "raise FormatError('is short' if n else 'is long', hint=HINT)\n"
        "raise FormatError('has ' + name, hint=HINT)\n"
    )
    assert sorted(prose.messages(ast.parse(source))) == [
        (1, "Pack it again."),
        (2, "is long"),
        (2, "is short"),
        (3, "has {…}"),
    ]


def test_sentences_of_docs_leave_out_code_blocks():
    text = (
        "# Title here\n\nOne thing: it is long\nand ends. Another thing.\n\n"
        "```console\nflare pack a b\n\nnot prose\n```\n\n    indented code\n\nLast one."
    )
    assert list(prose.sentences(text)) == [
        (1, "Title here"),
        (3, "One thing: it is long and ends."),
        (4, "Another thing."),
        (14, "Last one."),
    ]


def test_rows_of_tables_and_items_of_lists_are_whole_texts():
    text = "| option | effect |\n|---|:-:|\n| `a\\|b` | Read all. |\n\n- one item\n  of a list\n1. two\n"
    assert list(prose.sentences(text)) == [
        (1, "option | effect"),
        (3, "`a\\|b` | Read all."),
        (5, "one item of a list"),
        (7, "two"),
    ]
