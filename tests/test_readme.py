"""The README is correct: its two commands, its command lines, its Python."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

from flarecli.__main__ import main

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
BLOCKS = re.findall(r"```(\w+)\n(.*?)```", README, re.DOTALL)
LINES = [
    line.split("  #")[0] for kind, text in BLOCKS if kind == "console" for line in text.splitlines()
]
PAGES = [
    block
    for page in sorted((ROOT / "docs").glob("*.md"))
    for block in re.findall(r"```console\n(.*?)```", page.read_text(), re.DOTALL)
]
SHOWN = [
    line.split("  #")[0]
    for text in PAGES
    for line in text.splitlines()
    if line.startswith(("flare ", "$ "))
]
CALLS = [
    call
    for line in [*LINES, *SHOWN]
    for call in re.findall(r"flare (\w+) ([^|&)>]*)", re.sub(r"\"[^\"]*\"|'[^']*'", "TEXT", line))
]


def test_the_two_commands_are_first_and_are_make_targets():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    assert README.index("make demo ") < 500
    assert [line.split()[1:3] for line in BLOCKS[0][1].splitlines()] == [
        ["make", "demo"],
        ["make", "test"],
    ]
    assert len(README.splitlines()) <= 150
    prompts = [line for kind, text in BLOCKS if kind == "console" for line in text.splitlines()]
    assert all(text.startswith("$ ") for kind, text in BLOCKS if kind == "console"), prompts
    assert {"help", "demo", "test", "check", "lint", "types", "bench"} <= targets


@pytest.mark.parametrize("command", sorted({command for command, _ in CALLS}))
def test_options_in_the_readme_and_the_docs_are_options_of_their_commands(command, capfd):
    assert main([command, "--help"]) == 0
    known = set(re.findall(r"(?<![\w-])--?[a-z][a-z-]*", capfd.readouterr().out))
    used = {
        option
        for name, rest in CALLS
        if name == command
        for option in re.findall(r"(?<![\w-])--?[a-z][a-z-]*", rest)
    }
    assert used - known == set()


def test_every_command_is_in_the_examples_of_the_docs():
    assert {command for command, _ in CALLS} == {
        "pack",
        "unpack",
        "inspect",
        "verify",
        "playlist",
        "cat",
        "drop",
        "compact",
        "log",
        "prune",
    }


def test_the_python_in_the_readme_runs(tmp_path):
    (code,) = [text for kind, text in BLOCKS if kind == "python"]
    ran = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "", "")


def test_the_python_in_the_readme_returns_the_documented_values(tmp_path, in_tmp_path):
    (code,) = [text for kind, text in BLOCKS if kind == "python"]
    names = {}
    exec(code, names)
    for line in code.splitlines():
        expression, _, shown = line.partition("# ")
        if shown.startswith("{"):
            assert repr(eval(expression, names)) == shown
