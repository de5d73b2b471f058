"""Measure the start: `flare --version` and `python -c pass`, `flare --help` and `python -c "import
typer"`.

    python benchmarks/startup.py [--pairs 20]

The package is first installed into a new environment, as a user would install it: an editable
installation adds a finder to every start of the interpreter, also for the other program of a pair,
which distorts the ratio. The programs of a pair run in turns; medians and their ratio are printed.
"""

import argparse
import shutil
import statistics
import subprocess
import sys
import sysconfig
import tempfile
from pathlib import Path

from measure import Cost, print_figures, run

ROOT = Path(__file__).parents[1]


def install(folder: str) -> Path:
    """Create an environment with the package, and return the folder of its programs.

    All libraries, and the build backend, are those of this interpreter, so nothing is downloaded.
    """
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder], check=True)
    site = next(Path(folder, "lib").glob("python*/site-packages"))
    (site / "borrowed.pth").write_text(sysconfig.get_path("purelib") + "\n")
    bin, source = Path(folder, "bin"), Path(folder, "source")
    shutil.copytree(
        ROOT / "flarecli", source / "flarecli"
    )  # a build writes files beside the sources
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    subprocess.run(
        [
            sys.executable,
            "-m",
            "pip",
            "--python",
            bin / "python",
            "install",
            "--quiet",
            "--disable-pip-version-check",
            "--no-deps",
            "--no-build-isolation",
            source,
        ],
        check=True,
    )
    return bin


def median(costs: tuple[Cost, ...], of: str) -> float:
    return statistics.median(getattr(cost, of) for cost in costs) * 1e3


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--pairs", type=int, default=20)
    count = parser.parse_args().pairs
    with tempfile.TemporaryDirectory() as folder:
        bin = install(folder)
        figures: dict[str, float] = {}
        flare, python = str(bin / "flare"), str(bin / "python")
        for argv, rival, bound in (
            ([flare, "--version"], [python, "-c", "pass"], 2.5),
            ([flare, "--help"], [python, "-c", "import typer"], 1.3),
        ):
            run(argv), run(rival)
            ours, theirs = zip(*((run(argv), run(rival)) for _ in range(count)), strict=True)
            names = [" ".join([Path(program).name, *rest]) for program, *rest in (argv, rival)]
            for of in ("wall", "cpu"):
                one, other = median(ours, of), median(theirs, of)
                figures[f"{names[0]}, {of}"] = one / other
                print(
                    f"{names[0]}: {one:.1f} ms {of}, {names[1]}: {other:.1f} ms, ratio {one / other:.2f} (at most {bound} is promised)"
                )
    print_figures(figures)


if __name__ == "__main__":
    main()
