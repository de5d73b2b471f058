"""Run the benchmark of every claim of the README and the docs, and write docs/figures.md with a
table and a chart.

    env $(cat .venv/peers/names) python benchmarks/run.py [--only NAME,…]

`make interop` installs the original libraries and writes `.venv/peers/names`. Each benchmark
measures flare and its peer in the same run. The exit code is 1 if a claim is not met, and 2 if a
benchmark did not print the figure of a claim. The page is written only if all claims were measured.
"""

from __future__ import annotations

import argparse
import math
import os
import platform
import re
import subprocess
import sys
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, CHART = ROOT / "docs" / "figures.md", ROOT / "docs" / "pictures" / "figures.svg"
SCRIPTS = {  # name -> command line in benchmarks/
    "pack_text": "pack_text.py",
    "formats": "formats.py mds --workloads w1 --only scan,row",
    "links": "links.py",
    "storage": "storage.py",
    "verify": "verify.py",
    "loaders": "loaders.py 2",
    "startup": "startup.py",
    "random_rows": "random_rows.py",
}


@dataclass(frozen=True)
class Claim:
    """A claim that a benchmark checks.

    task     what is measured
    peer     the program that flare is compared with
    script   a name of SCRIPTS
    pattern  regular expression for the figure of flare, or for the ratio
    other    regular expression for the figure of the peer; empty if `pattern` matches the ratio
    bound    smallest ratio for which the claim is true; with `at_most`, the largest
    """

    task: str
    peer: str
    script: str
    pattern: str
    bound: float
    other: str = ""
    at_most: bool = False


CLAIMS = (
    Claim(
        "pack 100,000 rows of text from Parquet into MDS (CPU time)",
        "`MDSWriter`",
        "pack_text",
        r"parquet of snappy, lowest.*\n(?:  .*\n)*?  peer +[\d.]+ +([\d.]+)",
        7,
    ),
    Claim(
        "read MDS in order as batches",
        "mosaicml-streaming",
        "formats",
        r"^mds +w1 +in order, batches.*?([\d.]+) times the original",
        300,
    ),
    Claim(
        "read one random row of MDS",
        "mosaicml-streaming",
        "formats",
        r"^mds +w1 +random row.*?([\d.]+) times the original",
        8,
    ),
    Claim(
        "pack 10,000 links to small images (CPU time)",
        "img2dataset",
        "links",
        r"unchanged: ([\d.]+) times as many",
        8,
    ),
    Claim(
        "read objects of 10 KB from S3",
        "s3fs",
        "storage",
        r"^flare s3 over s3fs, .*?: ([\d.]+)",
        15,
    ),
    Claim(
        "verify shards in the page cache",
        "the slower of `xxhsum -H3` and `cat`",
        "verify",
        r"([\d.]+)  of the slower of xxhsum and cat",
        0.8,
    ),
    Claim("verify shards with SHA-256", "`sha256sum`", "verify", r"([\d.]+)  of sha256sum", 2),
    *(
        Claim(
            "shuffled batches of 20 KB rows (samples per second)",
            peer,
            "loaders",
            r"flare, 2 threads +([\d,]+)",
            bound,
            other=rf"^{peer} +([\d,]+)",
        )
        for peer, bound in (("lmdb", 1.2), ("litdata", 1.5), ("datasets", 2), ("mosaic", 5))
    ),
    Claim(
        "start `flare --version`",
        "`python -c pass`",
        "startup",
        r"--version: .* ms cpu, .*ratio ([\d.]+)",
        2.5,
        at_most=True,
    ),
    Claim(
        "start `flare --help`",
        '`python -c "import typer"`',
        "startup",
        r"--help: .* ms cpu, .*ratio ([\d.]+)",
        1.3,
        at_most=True,
    ),
    *(
        Claim(
            f"read one typed row of {name} (time)",
            "a minimal loop over the mapped file",
            "random_rows",
            rf"^{name.lower()} .*? ([\d.]+)$",
            2.2,
            at_most=True,
        )
        for name in ("MDS", "FFRecord", "Granular", "WebDataset")
    ),
)


def output_of(name: str) -> str:
    """Run a benchmark; return what it printed."""
    argv = [sys.executable, *SCRIPTS[name].split()]
    print(f"$ python benchmarks/{SCRIPTS[name]}", flush=True)
    done = subprocess.run(
        argv, cwd=ROOT / "benchmarks", stdout=subprocess.PIPE, text=True, check=False
    )
    print(done.stdout, flush=True)
    return done.stdout


def figure(text: str, pattern: str) -> float | None:
    """Return the number that a pattern finds in the output of a benchmark."""
    match = re.search(pattern, text, re.MULTILINE)
    return float(match[1].replace(",", "")) if match else None


def ratio_of(claim: Claim, text: str) -> float | None:
    """Return the ratio of a claim: the speed of flare by the speed of the peer, or the time with
    `at_most`.
    """
    own = figure(text, claim.pattern)
    if not claim.other:
        return own
    other = figure(text, claim.other)
    return own / other if own and other else None


def page(ratios: dict[Claim, float]) -> str:
    """Return the page with the table of all claims."""
    names = ("pyarrow", "numpy", "obstore", "pycurl", "duckdb", "pillow")
    versions = ", ".join(f"{name} {version(name)}" for name in names)
    rows = [
        f"| {claim.task} | {claim.peer} | {ratio:.3g} | {'at most' if claim.at_most else 'at least'} {claim.bound:g} | "
        f"`{SCRIPTS[claim.script].split()[0]}` |"
        for claim, ratio in ratios.items()
    ]
    return f"""# Figures

Each script in `benchmarks/` measured flare and the other program in the same run. A ratio is the speed of flare divided by the speed of the other
program; if the limit is "at most", a ratio is the time of flare divided by the time of the other program.

| task | compared with | ratio | promised | script |
|---|---|---|---|---|
{chr(10).join(rows)}

![The ratios as bars](pictures/figures.svg)

Machine: {os.cpu_count()} cores of a virtual machine, {platform.machine()}, Linux {platform.release().partition("-")[0]}, Python {platform.python_version()}; {versions}.

This page is generated by `python benchmarks/run.py`, which fails if a promise is not kept. `benchmarks/README.md` describes all benchmarks, and the
variables that select the Python interpreters of the original libraries.
"""


def chart(ratios: dict[Claim, float]) -> str:
    """Return an SVG with one bar per claim about speed, on a logarithmic scale from 1 to 1,000."""
    shown = [(claim, ratio) for claim, ratio in ratios.items() if not claim.at_most]
    height, left, width = 24 * len(shown) + 16, 520, 900
    bars = []
    for number, (claim, ratio) in enumerate(shown):
        top = 8 + 24 * number
        length = max(2.0, (width - left - 60) * min(1.0, max(0.0, math.log10(ratio) / 3)))
        text = f"{claim.task}, {claim.peer}".replace("`", "").replace("&", "&amp;")
        bars.append(
            f'<text x="{left - 8}" y="{top + 14}" text-anchor="end">{text}</text>'
            f'<rect x="{left}" y="{top}" width="{length:.0f}" height="18" fill="#3b7ea1"/>'
            f'<text x="{left + length + 6:.0f}" y="{top + 14}">{ratio:.3g}×</text>'
        )
    style = "font: 13px sans-serif; fill: #777"
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" style="{style}">\n'
        + "\n".join(bars)
        + "\n</svg>\n"
    )


def main() -> int:
    """Run the benchmarks and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help=f"benchmarks, of {', '.join(SCRIPTS)}; default: all"
    )
    only = [name for name in parser.parse_args().only.split(",") if name]
    texts = {name: output_of(name) for name in only or SCRIPTS}
    ratios, code = {}, 0
    for claim in CLAIMS:
        if claim.script not in texts:
            continue
        ratio = ratio_of(claim, texts[claim.script])
        if ratio is None:
            print(f"no figure: {claim.task}, {claim.peer}")
            code = 2
            continue
        ratios[claim] = ratio
        is_met = ratio <= claim.bound if claim.at_most else ratio >= claim.bound
        bound = f"{'at most' if claim.at_most else 'at least'} {claim.bound:g}"
        print(
            f"{'met' if is_met else 'NOT MET'}: {claim.task}, {claim.peer}: {ratio:.3g} ({bound})"
        )
        code = code or (0 if is_met else 1)
    if len(ratios) == len(CLAIMS):
        PAGE.write_text(page(ratios), "utf-8")
        CHART.write_text(chart(ratios), "utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
