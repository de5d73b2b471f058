"""The script that draws texts for a review of the English."""

import ast
import importlib.util
import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("prose.py")
SPEC = importlib.util.spec_from_file_location("prose", SCRIPT)
prose = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(prose)


def test_a_seed_draws_the_same_100_texts_each_time():
    first, again, other = (
        subprocess.run([sys.executable, SCRIPT, seed], capture_output=True, text=True, check=True)
        for seed in ("1", "1", "2")
    )
    numbered = [line for line in first.stdout.splitlines() if line[:3].strip().isdigit()]
    assert len(numbered) == 100
    assert first.stdout == again.stdout != other.stdout


def test_comments_on_adjacent_lines_are_one_text():
    source = "# first line\n# second line\nx = 1  # beside code\ny = 2  # another\n"
    assert list(prose.comments(source)) == [
        (1, "first line second line"),
        (3, "beside code"),
        (4, "another"),
    ]


def test_messages_hints_and_help_texts_are_found_with_their_placeholders():
    source = (
        "raise FormatError(f'file is {n} bytes', hint='Run it again.')\noption('-x', help='All.')"
    )
    found = sorted(prose.messages(ast.parse(source)))
    assert found == [(1, "Run it again."), (1, "file is {…} bytes"), (2, "All.")]


def test_sentences_of_docs_leave_out_code_blocks():
    text = "# Title here\n\nOne thing. Another thing.\n\n```console\nflare pack a b\n\nnot prose\n```\n\nLast one."
    assert [sentence for _, sentence in prose.sentences(text)] == [
        "Title here",
        "One thing.",
        "Another thing.",
        "Last one.",
    ]
