"""Help: everyday options with -h, all options by group with --help, and first steps without
arguments.
"""

from __future__ import annotations

import importlib
import re

import pytest

from flarecli.__main__ import main
from flarecli.arguments import GROUPS, declared
from flarecli.cli.app import COMMANDS
from flarecli.write import Writer

MAX_LINES, WIDTH = 45, 100


@pytest.fixture
def page(monkeypatch, capsys):
    """Return the printed lines of a command line on a terminal of 100 columns."""
    monkeypatch.setenv("COLUMNS", str(WIDTH))

    def lines(*args: str) -> list[str]:
        assert main(list(args)) == 0
        out, err = capsys.readouterr()
        assert err == ""
        return out.splitlines()

    return lines


def options_of(command):
    return declared(importlib.import_module(f"flarecli.cli.{command}").Line)


def flags_in(lines) -> set[str]:
    """Return the long flags at the start of lines."""
    return {match[1] for line in lines if (match := re.match(r"  (?:-\w, )?(--[\w-]+)\b", line))}


def headings_in(lines) -> list[str]:
    return [line[:-1] for line in lines if re.fullmatch(r"\w[^:]*:", line)]


def test_the_groups_have_the_documented_names_and_order():
    assert GROUPS == (
        "Rows",
        "Links",
        "Shards",
        "Pictures and media",
        "Run",
        "Network and cache",
        "Safety",
        "Output",
    )


@pytest.mark.parametrize("command", COMMANDS)
def test_help_lists_every_option_in_its_group(page, command):
    lines = page(command, "--help")
    shown = [one for one in options_of(command) if not one.option.is_hidden]
    assert flags_in(lines) == {one.flags[0] for one in shown} | {"--help"}
    groups = {one.option.group for one in shown}
    assert headings_in(lines) == ["Arguments", *(name for name in GROUPS if name in groups)]
    text = "\n".join(lines)
    for one in shown:
        section = re.search(rf"^{one.option.group}:\n((?:  .*\n?)+)", text, re.MULTILINE)
        assert f"{one.flags[0]}" in section[1]


@pytest.mark.parametrize("command", COMMANDS)
def test_short_help_lists_the_everyday_options_on_one_screen(page, command):
    lines = page(command, "-h")
    assert len(lines) <= MAX_LINES
    assert max(map(len, lines)) <= WIDTH
    everyday = {one.flags[0] for one in options_of(command) if one.option.is_everyday}
    assert flags_in(lines) == everyday | {"--help"}
    assert lines[-1].endswith("  Show all options and exit.")
    assert "--allow-private" not in "\n".join(lines)


def test_short_help_needs_no_arguments_and_ignores_the_others(page):
    assert page("pack", "-h") == page("pack", "a", "--fetch", "u", "-h")


def test_flare_alone_prints_six_lines_of_first_steps(page):
    lines = page()
    assert len(lines) == 6
    assert max(map(len, lines)) <= WIDTH
    named = [line.split()[1] for line in lines]
    assert named == ["pack", "inspect", "cat", "verify", "COMMAND", "--help"]


def test_the_first_steps_are_valid_command_lines(page):
    commands = [re.split(r"  +", line)[0].split()[1:] for line in page()[:4]]
    for name, *args in commands:
        known = {flag for one in options_of(name) for flag in one.flags}
        assert {arg for arg in args if arg.startswith("-")} <= known


def test_head_is_a_hidden_alias_of_limit(tmp_path, page):
    with Writer(str(tmp_path / "out"), columns={"n": "int"}) as writer:
        for i in range(5):
            writer.write({"n": i})
    out = str(tmp_path / "out")
    assert page("cat", out, "--head", "2") == page("cat", out, "--limit", "2")
    assert "--head" not in "\n".join(page("cat", "--help"))
