"""Plain command lines are read without Typer, and mean what Typer would make of them."""

import inspect
import subprocess
import sys

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flarecli.cli import app, checking, verify
from flarecli.cli.switches import plain_line

WORDS = [
    "a",
    "b c",
    "./d",
    "s3://b/x",
    "",
    "-",
    "--",
    "-x",
    "--quick",
    "--decode",
    "--duplicates",
    "--github",
    "--allow-private",
    "--allow-local",
    "--json",
]
WORDS += [
    "--quiet",
    "-q",
    "--verbose",
    "-v",
    "--debug",
    "-qv",
    "--no-quick",
    "-j",
    "--jobs",
    "1",
    "02",
    "0",
    "12345",
    "٣",
    "-j2",
    "--jobs=2",
    "--seed",
    "--help",
]


def by_typer(args, monkeypatch):
    """The arguments that Typer gives to what checks."""
    seen = []
    monkeypatch.setattr(verify, "check", lambda **given: seen.append(given) or 0)
    app.answer(args)
    return seen[0]


@settings(
    max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None
)
@given(st.lists(st.sampled_from(WORDS), max_size=6))
def test_a_plain_line_gives_what_typer_gives(monkeypatch, words):
    with monkeypatch.context() as patched:
        for name in ("FLARE_JOBS", "FLARE_QUIET"):
            patched.delenv(name, raising=False)
        plain = plain_line(["verify", *words])
        if plain is not None:
            given = inspect.signature(checking.check).bind(*plain.args, **plain.keywords)
            given.apply_defaults()
            assert given.arguments == by_typer(["verify", *words], patched)


OTHERS = [
    ["verify"],
    ["verify", "-q"],
    ["verify", "--help", "a"],
    ["verify", "-j", "0", "a"],
    ["verify", "a", "-j"],
    ["verify", "-j=2", "a"],
    ["verify", "-j--jobs=2", "a"],
    ["verify", "--jobs=", "a"],
    ["verify", "--jobs2", "a"],
    ["verify", "-j", "1", "-j", "1", "a"],
]
OTHERS += [
    ["verify", "--", "a"],
    ["verify", "-qv", "a"],
    ["verify", ""],
    ["verify", "a", "--quik"],
    ["cat", "a"],
    ["--quiet", "verify", "a"],
    [],
]


@pytest.mark.parametrize("jobs", [["-j", "2"], ["-j2"], ["--jobs", "2"], ["--jobs=2"]])
def test_a_number_of_jobs_takes_no_typer_however_it_is_spelt(jobs):
    plain = plain_line(["verify", *jobs, "a"])
    assert plain is not None
    assert (plain.args, plain.keywords) == ((["a"],), {"jobs": 2})


@pytest.mark.parametrize("line", OTHERS)
def test_what_takes_typer(line):
    assert plain_line(line) is None


def test_what_the_environment_says_of_an_option_takes_typer(monkeypatch):
    monkeypatch.setenv("FLARE_QUICK", "1")
    assert plain_line(["verify", "a"]) is None


def test_the_two_have_the_same_options_and_defaults():
    mine, theirs = (inspect.signature(one).parameters for one in (checking.check, verify.command))
    assert {name: one.default for name, one in mine.items()} == {
        name: one.default for name, one in theirs.items()
    }
    assert len(checking.check.__code__.co_varnames) > len(mine)  # it is no stand-in


def test_a_mistake_says_the_same_whether_or_not_typer_reads_the_line(tmp_path):
    said = []
    for args in (
        ["verify", str(tmp_path / "nothing")],
        ["verify", "--seed", "0", str(tmp_path / "nothing")],
    ):
        ran = subprocess.run(
            [sys.executable, "-m", "flarecli", *args], capture_output=True, text=True, timeout=60
        )
        said.append((ran.returncode, ran.stdout, ran.stderr))
    assert said[0] == said[1] and said[0][0] == 3 and "nothing" in said[0][2]
