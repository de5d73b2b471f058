"""Install the wheel in `dist/` in new environments, and use it there.

    python packaging/installs.py [--extras] [--floors]

Each Python from 3.11, on the PATH or installed by pyenv, gets an environment of its own, and the
source package gets one. In each environment, the command packs, verifies and reads a table, from an
empty folder. --extras also installs each optional extra that users need. --floors installs the
lowest version that pyproject.toml allows of every dependency, and runs the tests of the formats and
commands with these versions. The exit code is 1 if anything fails.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
VERSIONS = ("3.11", "3.12", "3.13", "3.14")
EXTRAS = (
    "s3fs",
    "s3sums",
    "hf",
    "media",
)  # torch and ray take gigabytes; the tests with the originals install them
FLOOR_TESTS = ("tests/formats", "tests/commands", "tests/ingest", "tests/cli")
PACKED = "id,text\n1,one\n2,two\n3,\n"


def interpreters() -> dict[str, str]:
    """Return version -> path of each Python that starts, on the PATH or installed by pyenv."""
    found = {}
    root = Path(os.environ.get("PYENV_ROOT", Path.home() / ".pyenv"))
    for version in VERSIONS:
        name = f"python{version}"
        installed = sorted(map(str, root.glob(f"versions/{version}.*/bin/{name}")))
        for path in filter(None, (shutil.which(name), *installed)):
            if not run([path, "-c", "import venv"], Path.cwd()):
                found[version] = path
                break
    return found


def run(argv: list[str], folder: Path, **env: str) -> str:
    """Run a command in a folder; return its output if it fails, otherwise an empty text."""
    clean = {
        key: value
        for key, value in os.environ.items()
        if not key.startswith(("PYTHON", "FLARE_", "VIRTUAL_ENV"))
    }
    done = subprocess.run(argv, cwd=folder, env={**clean, **env}, capture_output=True, text=True)
    return "" if done.returncode == 0 else f"$ {' '.join(argv)}\n{done.stdout}{done.stderr}"


def new_environment(python: str, folder: Path, *requirements: str) -> str:
    """Create an environment and install packages in it; return the output of a failed step."""
    pip = [
        str(folder / "bin" / "python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
    ]
    return run([python, "-m", "venv", str(folder)], folder.parent) or run(
        [*pip, *requirements], folder.parent
    )


def try_command(folder: Path, home: Path) -> str:
    """Pack, verify and read a table with the command of an environment; return the output of a
    failed step.
    """
    flare = str(folder / "bin" / "flare")
    (home / "table.csv").write_text(PACKED)
    steps = (
        [flare, "--version"],
        [flare, "--help"],
        [flare, "pack", "table.csv", "out", "-q"],
        [flare, "verify", "out"],
        [flare, "cat", "out", "--to", "csv"],
        [flare, "pack", "out", "tars", "-f", "webdataset", "-q"],
    )
    for argv in steps:
        if failed := run(argv, home, HOME=str(home)):
            return failed
    return ""


def floors() -> list[str]:
    """Return each dependency with the lowest version that pyproject.toml allows."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
    return [
        re.sub(r"^([\w.\[\]-]+)>=([\w.]+).*", r"\1==\2", wanted)
        for wanted in project["dependencies"]
    ]


def main() -> int:
    """Try all interpreters and print one line for each."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--extras", action="store_true")
    parser.add_argument("--floors", action="store_true")
    options = parser.parse_args()
    (wheel,), (source,) = ((ROOT / "dist").glob(kind) for kind in ("*.whl", "*.tar.gz"))
    failures = 0

    def report(name: str, failed: str) -> None:
        nonlocal failures
        print(f"{name}: {failed or 'ok'}", flush=True)
        failures += bool(failed)

    found = interpreters()
    with tempfile.TemporaryDirectory() as scratch:
        for version, python in found.items():
            folder, home = Path(scratch) / version, Path(scratch) / f"home-{version}"
            home.mkdir()
            failed = new_environment(python, folder, str(wheel))
            report(f"Python {version}", failed or try_command(folder, home))
        version, python = next(iter(found.items()))
        folder, home = Path(scratch) / "source", Path(scratch) / "home-source"
        home.mkdir()
        failed = new_environment(python, folder, str(source))
        report("source package", failed or try_command(folder, home))
        for extra in EXTRAS if options.extras else ():
            pip = [
                str(Path(scratch) / version / "bin" / "python"),
                "-m",
                "pip",
                "install",
                "--quiet",
            ]
            report(f"extra {extra}", run([*pip, f"{wheel}[{extra}]"], Path(scratch)))
        if options.floors:
            folder = Path(scratch) / "floors"
            failed = new_environment(python, folder, *floors(), f"{wheel}[dev]")
            tests = [
                str(folder / "bin" / "python"),
                "-m",
                "pytest",
                "-q",
                "--numprocesses=4",
                *FLOOR_TESTS,
            ]
            report("lowest versions", failed or run(tests, ROOT))
    return 1 if failures or not found else 0


if __name__ == "__main__":
    sys.exit(main())
