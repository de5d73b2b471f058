"""Run the test suites of the original libraries against `flarecli.compat`, and compare with the committed list.

    ORIGINAL_TESTS=FOLDER python tests/interop/original_suites.py [SUITE…] [--original] [--select TEXT] [--json FILE]

FOLDER contains checkouts of the originals: `streaming`, `granular`, `ffrecord`, `sds`. Nothing is downloaded. A suite whose checkout or
packages are missing is reported and not run. The packages that a suite needs beside flare are taken from the interpreter that the
suite's variable names (PEER_PYTHON and GRANULAR_PYTHON, as `environments.py` prints them), else from the interpreter that runs this file.

`original_suites.toml` lists every test that does not pass, with the reason. A test that fails and is not listed is reported, and so is a
listed test that passes or no longer exists. The exit code is 1 if there are any of these, and 2 if a suite could not be run.

`--original` runs the same tests against the original itself: what fails there is not applicable here. `--select` is pytest's `-k`.
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
    """One original's tests, relative to its checkout.

    tests  files and folders; those that only test the original's internals are left out
    peer   variable that names an interpreter with the packages that the tests need
    needs  modules that the tests import beside flare and the original
    args   more arguments of pytest
    test_seconds  a test that takes longer fails
    pytest_below  the first major version of pytest that the tests cannot run with
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
        # Its tests of large records write files of 4 and 8 GB; DISABLE_TEST_LARGE_SAMPLE=1 skips them.
        Suite("ffrecord", ("tests",), "PEER_PYTHON", ("pytest", "torch"), test_seconds=600),
        Suite("sds", ("tests",), "PEER_PYTHON", ("pytest", "torch", "pandas")),
    )
}


@dataclass(frozen=True)
class Result:
    """What became of one test.

    outcome  passed, failed or skipped
    touched  whether it used a class of flare's
    why      the error's type and message
    """

    outcome: str
    touched: bool = False
    why: str = ""


@dataclass(frozen=True)
class Listed:
    """The tests of a suite that are known not to pass; a name that ends in `*` stands for all that begin so."""

    fails: Mapping[str, str]
    not_applicable: Mapping[str, str]


@dataclass(frozen=True)
class Figures:
    """A suite's figures, and each difference from the list."""

    passed: int
    applicable: int
    skipped: int
    not_applicable: int
    problems: Sequence[str]


def read_list(text: str, suite: str) -> Listed:
    """Read a suite's part of the list. Raises ValueError for a test without a reason or listed twice."""
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
    """Return the commit of the checkout that the list was made with; empty if it names none."""
    return str(tomllib.loads(text).get(suite, {}).get("checkout", ""))


def checkout_commit(checkout: Path) -> str:
    """Return the commit of a checkout; empty if it is not a repository."""
    if not (checkout / ".git").exists():
        return ""
    command = ["git", "-C", str(checkout), "rev-parse", "HEAD"]
    ran = subprocess.run(command, capture_output=True, text=True, check=False)
    return ran.stdout.strip()


def _match(test: str, names: Mapping[str, str]) -> str | None:
    """Return the listed name that stands for a test, or None."""
    if test in names:
        return test
    return next((one for one in names if one.endswith("*") and test.startswith(one[:-1])), None)


def compare(results: Mapping[str, Result], listed: Listed) -> Figures:
    """Count a suite's results, and compare them with the list.

    Applicable is a test that used flare, or failed, and is not listed as not applicable. A name that ends in `*` is listed
    rightly only if none of its tests passes.
    """
    counts: Counter[str] = Counter()
    used: set[str] = set()
    problems = []
    for test, result in results.items():
        beside = _match(test, listed.not_applicable)
        name = _match(test, listed.fails)
        used.update(one for one in (beside, name) if one)
        if beside is not None:
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
        f"{name}: listed, but there is no such test"
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
    """Run a suite's tests in a process of its own. Raises RuntimeError if they could not be run."""
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
            # The original's packages are found first, flare's own and those that it needs after them.
            "SUITE_PATHS": os.pathsep.join(
                [str(HERE.parents[1]), *(one for one in sys.path[1:] if one.endswith("-packages"))]
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
        command += [one for one in suite.tests if (checkout / one).exists()]
        try:
            ran = subprocess.run(
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
            one = json.loads(line)
            test = one.pop("test")
            results[test] = Result(**one)
        if ran.returncode not in (0, 1, 5):  # 5: `select` left nothing of it
            raise RuntimeError((ran.stdout + ran.stderr).strip()[-2000:])
        return results


def parts(suite: Suite) -> list[Suite]:
    """Return a suite for each of its files: mosaicml-streaming runs out of file handles in one process for all."""
    return [replace(suite, tests=(one,)) for one in suite.tests]


def main(argv: Sequence[str]) -> int:
    """Run the suites that were named, or all, and print their figures."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("suites", nargs="*", metavar="SUITE", help=", ".join(SUITES))
    parser.add_argument("--original", action="store_true", help="run against the original itself")
    parser.add_argument("--select", default="", help="pytest's -k")
    parser.add_argument("--json", type=Path, help="write each test's outcome to this file")
    args = parser.parse_args(argv)
    unknown = set(args.suites) - set(SUITES)
    folder = os.environ.get("ORIGINAL_TESTS")
    if unknown or not folder:
        parser.error(
            f"unknown suite {', '.join(sorted(unknown))}"
            if unknown
            else "ORIGINAL_TESTS names no folder with the originals' checkouts"
        )
    code, written = 0, {}
    for name in args.suites or SUITES:
        checkout = Path(folder, name).resolve()
        if not checkout.is_dir():
            print(f"{name}: not run, there is no {checkout}")
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
        written[name] = {test: vars(one) for test, one in results.items()}
        if args.original:
            kinds = Counter(one.outcome for one in results.values())
            print(f"{name}: with the original, {kinds['passed']} pass, {kinds['skipped']} skip")
            for test, one in results.items():
                if one.outcome == "failed":
                    print(f"  {test}: {one.why}")
            continue
        found = compare(results, read_list(LIST.read_text(), name))
        share = 100 * found.passed / max(1, found.applicable)
        print(
            f"{name}: {found.passed} of {found.applicable} applicable tests pass ({share:.1f} %), "
            f"{found.not_applicable} are not applicable, {found.skipped} skip themselves"
        )
        listed, at = list_commit(LIST.read_text(), name), checkout_commit(checkout)
        if listed and at and not at.startswith(listed):
            print(f"  the list is of commit {listed}, the checkout is at {at[: len(listed)]}")
        for problem in found.problems if not args.select else ():
            print(f"  {problem}")
            code = code or 1
    if args.json:
        args.json.write_text(json.dumps(written, indent=1))
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
