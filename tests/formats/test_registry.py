"""A format of another package is registered through an entry point and passes
`flarecli.testing`.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from flarecli import formats
from flarecli.model import Settings
from flarecli.testing import FormatSuite

TOY = Path(__file__).parents[1] / "toy_format"
SETTINGS = {
    "xsv": Settings(separator="|"),
    "csv": Settings(separator=","),
    "tsv": Settings(separator="\t"),
}
# The columns of these formats are text; the random values of the suite contain no separators.
BUILT_IN = formats.names(writable=True)


def run(*command, cwd):
    """Run Python with the package on its path, as if it were installed."""
    path = os.pathsep.join([str(TOY), *filter(None, [os.environ.get("PYTHONPATH")])])
    return subprocess.run(
        [sys.executable, *command],
        cwd=cwd,
        env={**os.environ, "PYTHONPATH": path},
        capture_output=True,
        text=True,
        timeout=300,
    )


def test_a_registered_format_passes_the_conformance_suite(tmp_path):
    ran = run("-m", "pytest", "-q", "-p", "no:cacheprovider", str(TOY / "suite.py"), cwd=tmp_path)
    assert ran.returncode == 0, ran.stdout
    assert "[100%]" in ran.stdout


def test_commands_support_a_registered_format(tmp_path):
    (tmp_path / "a.csv").write_text("n,t\n1,one\n2,two\n")
    flare = ("-m", "flarecli")
    assert run(*flare, "pack", "a.csv", "out", "-f", "toy", cwd=tmp_path).returncode == 0
    assert run(*flare, "verify", "out", cwd=tmp_path).returncode == 0
    (tmp_path / "out" / "playlist.yaml").unlink()
    (tmp_path / "out" / "00000.toy").rename(tmp_path / "unknown")
    seen = run(*flare, "cat", "unknown", "--bytes", "base64", cwd=tmp_path)
    assert [json.loads(line) for line in seen.stdout.splitlines()] == [
        {"c0": "AQAAAAAAAAA=", "c1": "b25l"},
        {"c0": "AgAAAAAAAAA=", "c1": "dHdv"},
    ], seen.stderr


@pytest.mark.parametrize("name", BUILT_IN)
def test_the_built_in_formats_pass_the_conformance_suite(name):
    suite = type(
        "Suite", (FormatSuite,), {"name": name, "settings": SETTINGS.get(name, Settings())}
    )()
    for test in [one for one in dir(FormatSuite) if one.startswith("test_")]:
        vars(FormatSuite)[test](suite)
