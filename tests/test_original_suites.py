"""The test suites of the originals against `flarecli.compat`, and the script that runs them.

ORIGINAL_TESTS names a folder with checkouts of the originals.
"""

import os
import subprocess
from pathlib import Path

import pytest

from tests.interop import original_suites as suites

SCRIPT = Path(suites.__file__)
Result, Listed, Suite = suites.Result, suites.Listed, suites.Suite

PASSES, FAILS = Result("passed", True), Result("failed", True, "ValueError: no")


@pytest.mark.skipif(
    not os.environ.get("ORIGINAL_TESTS"),
    reason="ORIGINAL_TESTS does not name a folder with checkouts of the originals",
)
@pytest.mark.parametrize("name", list(suites.SUITES))
def test_results_of_an_original_suite_equal_the_list(name, capsys):
    code = suites.main([name])
    assert code == 0, capsys.readouterr().out


@pytest.mark.parametrize("name", list(suites.SUITES))
def test_the_list_has_each_test_once_and_with_a_reason(name):
    suites.read_list(suites.LIST.read_text(), name)


def test_a_list_without_a_reason_is_rejected():
    with pytest.raises(ValueError, match="one: a::b has no reason, or is listed twice"):
        suites.read_list('[[one.fails]]\nreason = ""\ntests = ["a::b"]', "one")
    twice = '[[one.fails]]\nreason = "x"\ntests = ["a::b"]\n'
    with pytest.raises(ValueError, match="one: a::b has no reason, or is listed twice"):
        suites.read_list(twice + twice.replace("fails", "not_applicable"), "one")


def test_only_differences_from_the_list_are_reported():
    results = suites.compare(
        {
            "a::passes": PASSES,
            "a::internal": Result("passed", False),
            "a::skips": Result("skipped"),
            "a::listed": FAILS,
            "a::many[1]": FAILS,
            "a::many[2]": FAILS,
            "a::cloud": Result("failed", False, "no network"),
        },
        Listed({"a::listed": "why", "a::many*": "why"}, {"a::cloud": "why"}),
    )
    assert results == suites.Figures(1, 4, 1, 1, [])


def test_unlisted_failures_listed_successes_and_missing_tests_are_reported():
    results = suites.compare(
        {"a::new": FAILS, "a::old": PASSES, "a::many[1]": FAILS, "a::many[2]": PASSES},
        Listed({"a::old": "why", "a::gone": "why", "a::many*": "why"}, {}),
    )
    assert results.problems == [
        "a::new: fails and is not listed: ValueError: no",
        "a::old: passes and is listed as failing",
        "a::many[2]: passes and is listed as failing",
        "a::gone: is listed and does not exist",
    ]
    assert (results.passed, results.applicable) == (2, 4)


CHECKOUT = {
    "tests/test_broken.py": "import no_such_module\n",
    "tests/test_one.py": """
import sys, time, granular, pytest

def test_writes(tmp_path):
    with granular.DatasetWriter(tmp_path / "d", {"a": "int"}, granular.encoders) as writer:
        writer.append({"a": 1})

def test_internal():
    pass

def test_wrong():
    assert 1 == 2, "seen"

def test_outside():
    sys.audit("socket.connect", None, ("192.0.2.1", 80))

def test_inside():
    sys.audit("socket.connect", None, ("127.0.0.1", 80))

def test_skips():
    pytest.skip()
""",
}


@pytest.fixture
def checkout(tmp_path):
    for name, text in CHECKOUT.items():
        path = tmp_path / "granular" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "granular"


def test_the_outcome_and_the_use_of_flare_of_each_test_are_reported(checkout):
    results = suites.run(Suite("granular", ("tests",)), checkout)
    assert {
        name.partition("::")[2] or name: (result.outcome, result.touched)
        for name, result in results.items()
    } == {
        "tests/test_broken.py": ("failed", False),
        "test_writes": ("passed", True),
        "test_internal": ("passed", False),
        "test_wrong": ("failed", False),
        "test_outside": ("failed", False),
        "test_inside": ("passed", False),
        "test_skips": ("skipped", False),
    }
    assert results["tests/test_one.py::test_outside"].why == (
        "ConnectionRefusedError: only connections to this machine are allowed, got 192.0.2.1"
    )


def test_the_command_prints_counts_and_fails_for_unlisted_failures(checkout, monkeypatch, capsys):
    monkeypatch.setenv("ORIGINAL_TESTS", str(checkout.parent))
    monkeypatch.setitem(suites.SUITES, "granular", Suite("granular", ("tests",)))
    monkeypatch.setattr(suites, "LIST", checkout / "list.toml")
    suites.LIST.write_text(
        '[[granular.fails]]\nreason = "x"\ntests = ["tests/test_one.py::test_wrong"]\n'
        '[[granular.not_applicable]]\nreason = "x"\ntests = ["tests/test_broken.py"]\n'
    )
    assert suites.main(["granular", "sds"]) == 1
    assert capsys.readouterr().out.splitlines() == [
        "granular: 1 of 3 applicable tests pass (33.3 %), 1 are not applicable, 1 are skipped",
        "  tests/test_one.py::test_outside: fails and is not listed: ConnectionRefusedError: "
        "only connections to this machine are allowed, got 192.0.2.1",
        f"sds: not run, no folder {checkout.parent / 'sds'}",
    ]


def test_a_checkout_of_another_commit_is_reported(checkout, monkeypatch, capsys):
    monkeypatch.setenv("ORIGINAL_TESTS", str(checkout.parent))
    monkeypatch.setitem(suites.SUITES, "granular", Suite("granular", ("tests/test_none.py",)))
    monkeypatch.setattr(suites, "LIST", checkout / "list.toml")
    (checkout / "tests" / "test_none.py").write_text("def test_none(): pass\n")
    suites.LIST.write_text('[granular]\ncheckout = "0000000"\n')
    git = ["git", "-C", str(checkout), "-c", "user.name=x", "-c", "user.email=x@example.com"]
    for command in (["init", "-q"], ["commit", "-q", "--allow-empty", "-m", "x"]):
        subprocess.run([*git, *command], check=True)
    assert suites.main(["granular"]) == 0
    commit = suites.checkout_commit(checkout)
    assert len(commit) == 40 and capsys.readouterr().out.splitlines()[1:] == [
        f"  the list is for commit 0000000; the checkout is at {commit[:7]}"
    ]


def test_a_pytest_that_is_too_new_is_an_error(checkout):
    with pytest.raises(RuntimeError, match=rf"has pytest {pytest.__version__}, .* need pytest<3$"):
        suites.run(Suite("granular", ("tests",), pytest_below=3), checkout)


def test_missing_packages_are_an_error(checkout, tmp_path):
    with pytest.raises(RuntimeError, match=r"has no no_such_package$"):
        suites.run(Suite("granular", ("tests",), "", ("pytest", "no_such_package")), checkout)
