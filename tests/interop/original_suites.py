"""Run the test suites of the original libraries against `flarecli.compat`, and compare the results
with `original_suites.toml`.

    ORIGINAL_TESTS=FOLDER python tests/interop/original_suites.py [SUITE…] [--original] [--select
    TEXT] [--json FILE]

FOLDER contains checkouts of the originals: `streaming`, `granular`, `ffrecord`, `sds`. Nothing is
downloaded. A suite whose checkout or packages are missing is reported and not run. The packages
that a suite needs in addition to flare come from the interpreter in the variable of the suite
(PEER_PYTHON or GRANULAR_PYTHON, as `environments.py` prints them); without it, from the interpreter
of this script.

`original_suites.toml` lists every test that does not pass, with the reason. This script reports
each failed test that is not listed, and each listed test that passes or no longer exists. The exit
code is 1 if there are any of these, and 2 if a suite could not be run.

`--original` runs the same tests against the original: a test that fails there is not applicable
here. `--select` is the `-k` of pytest.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import tomllib
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

HERE = Path(__file__).resolve().parent
LIST = HERE / "original_suites.toml"
TEST_SECONDS, SUITE_SECONDS = 120, 3000


@dataclass(frozen=True)
class Suite:
    """The tests of an original; paths are relative to its checkout.

    tests         files and folders, without those that only test internals of the original
    peer          variable that names an interpreter with the packages of the tests
    needs         modules that the tests import, except flare and the original
    args          more arguments of pytest
    test_seconds  maximum duration of a test
    pytest_below  the first major version of pytest that cannot run the tests
    """

    name: str
    tests: tuple[str, ...]
    peer: str = ""
    needs: tuple[str, ...] = ("pytest",)
    args: tuple[str, ...] = ()
    test_seconds: int = TEST_SECONDS
    pytest_below: int = 99


SUITES = {
    one.name: one
    for one in (
        Suite(
            "streaming",
            tuple(
                f"tests/test_{name}.py"
                for name in (
                    "compression",
                    "encodings",
                    "eviction",
                    "hashing",
                    "laziness",
                    "local",
                    "mixing",
                    "reader",
                    "registry",
                    "spanner",
                    "stream",
                    "streaming",
                    "unsafe_types",
                    "util",
                    "writer",
                )
            ),
            "PEER_PYTHON",
            ("pytest", "torch", "catalogue", "brotli", "snappy", "zstd", "boto3", "moto"),
            ("-m", "not daily and not remote"),
            pytest_below=9,  # marks on fixtures
        ),
        Suite("granular", ("tests",), "GRANULAR_PYTHON", ("pytest", "msgpack", "cloudpickle")),
        # Tests of large records write files of 4 and 8 GB; DISABLE_TEST_LARGE_SAMPLE=1 skips them.
        Suite("ffrecord", ("tests",), "PEER_PYTHON", ("pytest", "torch"), test_seconds=600),
        Suite("sds", ("tests",), "PEER_PYTHON", ("pytest", "torch", "pandas")),
    )
}


@dataclass(frozen=True)
class Result:
    """The result of a test.

    outcome  passed, failed or skipped
    touched  whether it used a class or function of flare
    why      type and message of the error
    """

    outcome: str
    touched: bool = False
    why: str = ""


@dataclass(frozen=True)
class Listed:
    """The tests of a suite that do not pass, by name, with a reason; `*` at the end matches any
    text.
    """

    fails: Mapping[str, str]
    not_applicable: Mapping[str, str]


@dataclass(frozen=True)
class Figures:
    """The counts of a suite, and each difference from the list."""

    passed: int
    applicable: int
    skipped: int
    not_applicable: int
    problems: Sequence[str]


def read_list(text: str, suite: str) -> Listed:
    """Read the part of the list for a suite.

    Raises ValueError for a test without a reason, or listed twice.
    """
    found = tomllib.loads(text).get(suite, {})
    kinds: dict[str, dict[str, str]] = {"fails": {}, "not_applicable": {}}
    for kind, tests in kinds.items():
        for group in found.get(kind, ()):
            reason = group.get("reason", "").strip()
            for test in group["tests"]:
                if not reason or test in kinds["fails"] or test in kinds["not_applicable"]:
                    raise ValueError(f"{suite}: {test} has no reason, or is listed twice")
                tests[test] = reason
    return Listed(**kinds)


def list_commit(text: str, suite: str) -> str:
    """Return the commit of the checkout for which the list was written; empty if unknown."""
    return str(tomllib.loads(text).get(suite, {}).get("checkout", ""))


def checkout_commit(checkout: Path) -> str:
    """Return the commit of a checkout; empty if it is not a repository."""
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout.strip()


def _match(test: str, names: Mapping[str, str]) -> str | None:
    """Return the listed name that matches a test, or None."""
    if test in names:
        return test
    return next((name for name in names if name.endswith("*") and test.startswith(name[:-1])), None)


def compare(results: Mapping[str, Result], listed: Listed) -> Figures:
    """Count the results of a suite, and compare them with the list.

    A test is applicable if it used flare or failed, and is not listed as not applicable. A name
    that ends in `*` is a difference if one of its tests passes.
    """
    counts: Counter[str] = Counter()
    used: set[str] = set()
    problems = []
    for test, result in results.items():
        excluded = _match(test, listed.not_applicable)
        name = _match(test, listed.fails)
        used.update(match for match in (excluded, name) if match)
        if excluded is not None:
            counts["not_applicable"] += 1
        elif result.outcome == "skipped":
            counts["skipped"] += 1
        elif result.outcome == "failed":
            counts["applicable"] += 1
            if name is None:
                problems.append(f"{test}: fails and is not listed: {result.why}")
        else:
            counts["applicable"] += result.touched
            counts["passed"] += result.touched
            if name is not None:
                problems.append(f"{test}: passes and is listed as failing")
    problems += [
        f"{name}: is listed and does not exist"
        for name in (*listed.fails, *listed.not_applicable)
        if name not in used
    ]
    return Figures(
        counts["passed"],
        counts["applicable"],
        counts["skipped"],
        counts["not_applicable"],
        problems,
    )


def run(
    suite: Suite, checkout: Path, *, original: bool = False, select: str = ""
) -> dict[str, Result]:
    """Run the tests of a suite in a new process. Raises RuntimeError if they could not be run."""
    python = os.environ.get(suite.peer) or sys.executable
    with tempfile.TemporaryDirectory(prefix="flare-suite-") as scratch:
        report = Path(scratch, "report.jsonl")
        environment = {
            **os.environ,
            "SUITE": suite.name,
            "SUITE_REPORT": str(report),
            "SUITE_WHICH": "original" if original else "flare",
            "SUITE_TEST_SECONDS": str(suite.test_seconds),
            "SUITE_NEEDS": ",".join(suite.needs),
            "SUITE_PYTEST_BELOW": str(suite.pytest_below),
            # The packages of the original come first, then flare and its dependencies.
            "SUITE_PATHS": os.pathsep.join(
                [
                    str(HERE.parents[1]),
                    *(path for path in sys.path[1:] if path.endswith("-packages")),
                ]
            ),
            "TMPDIR": scratch,
            "PYTHONDONTWRITEBYTECODE": "1",
        }
        command = [python, str(HERE / "suites" / "start.py")]
        command += ["-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", "-q"]
        command += [
            "--tb=line",
            "--continue-on-collection-errors",
            *suite.args,
            *(["-k", select] if select else []),
        ]
        command += [path for path in suite.tests if (checkout / path).exists()]
        try:
            process = subprocess.run(
                command,
                cwd=checkout,
                env=environment,
                timeout=SUITE_SECONDS,
                capture_output=True,
                text=True,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise RuntimeError(f"took more than {SUITE_SECONDS} s") from error
        lines = report.read_text().splitlines() if report.exists() else []
        results = {}
        for line in lines:
            facts = json.loads(line)
            test = facts.pop("test")
            results[test] = Result(**facts)
        if process.returncode not in (0, 1, 5):  # 5: no test matches `select`
            raise RuntimeError((process.stdout + process.stderr).strip()[-2000:])
        return results


def parts(suite: Suite) -> list[Suite]:
    """Return a suite for each test file: with all in one process, mosaicml-streaming runs out of
    file handles.
    """
    return [replace(suite, tests=(path,)) for path in suite.tests]


def main(argv: Sequence[str]) -> int:
    """Run the given suites, or all, and print their counts."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--original", action="store_true", help="run against the original")
    parser.add_argument("--select", default="", help="the -k of pytest")
    parser.add_argument("--json", type=Path, help="write the result of each test to this file")
    args = parser.parse_args(argv)
    unknown = set(args.suites) - set(SUITES)
    folder = os.environ.get("ORIGINAL_TESTS")
    if unknown or not folder:
        parser.error(
            f"unknown suite {', '.join(sorted(unknown))}"
            if unknown
            else "ORIGINAL_TESTS must name a folder with checkouts of the originals"
        )
    code, outcomes = 0, {}
    for name in args.suites or SUITES:
        checkout = Path(folder, name).resolve()
        if not checkout.is_dir():
            print(f"{name}: not run, no folder {checkout}")
            code = code or 2 * bool(args.suites)
            continue
        try:
            results = {}
            for part in parts(SUITES[name]) if args.original else [SUITES[name]]:
                results |= run(part, checkout, original=args.original, select=args.select)
        except RuntimeError as error:
            print(f"{name}: not run: {error}")
            code = code or 2
            continue
        outcomes[name] = {test: vars(result) for test, result in results.items()}
        if args.original:
            kinds = Counter(result.outcome for result in results.values())
            print(
                f"{name}: with the original, {kinds['passed']} pass, {kinds['skipped']} are skipped"
            )
            for test, result in results.items():
                if result.outcome == "failed":
                    print(f"  {test}: {result.why}")
            continue
        figures = compare(results, read_list(LIST.read_text(), name))
        share = 100 * figures.passed / max(1, figures.applicable)
        print(
            f"{name}: {figures.passed} of {figures.applicable} applicable tests pass ({share:.1f} %), "
            f"{figures.not_applicable} are not applicable, {figures.skipped} are skipped"
        )
        listed, at = list_commit(LIST.read_text(), name), checkout_commit(checkout)
        if listed and at and not at.startswith(listed):
            print(f"  the list is for commit {listed}; the checkout is at {at[: len(listed)]}")
        for problem in figures.problems if not args.select else ():
            print(f"  {problem}")
            code = code or 1
    if args.json:
        args.json.write_text(json.dumps(outcomes, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
