"""Run the benchmark of every claim about speed, and write docs/figures.md with tables and a chart.

    env $(cat .venv/peers/names) python benchmarks/run.py [--only NAME,…]

`make interop` installs the original libraries and writes `.venv/peers/names`. nginx is needed
(Debian: nginx-light). Each benchmark measures flare and the other programs in the same run, and
prints its ratios as the last line. The exit code is 1 if a claim is not met, and 2 if a benchmark
did not print the ratio of a claim. The page is written only if all claims are met.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import platform
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from html import escape
from importlib.metadata import version
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
PAGE, CHART = ROOT / "docs" / "figures.md", ROOT / "docs" / "pictures" / "figures.svg"
SCRIPTS = {  # name -> command line in benchmarks/
    "pack_text": "pack_text.py --rounds 3",
    "formats": "formats.py mds --workloads w1 --only scan,row --rounds 3",
    "storage": "storage.py --rounds 3",
    "loaders": "loaders.py flare mds datasets webdataset",
    "verify": "verify.py --rounds 3",
    "startup": "startup.py",
    "random_rows": "random_rows.py",
}


@dataclass(frozen=True)
class Claim:
    """A claim about CPU time.

    task     what is measured
    peer     the program that flare is compared with
    script   a name of SCRIPTS
    figure   name of the ratio in the last line of the script
    bound    smallest ratio that meets the claim: CPU time of the peer divided by that of flare;
             with `at_most`, largest ratio: CPU time of flare divided by that of the peer
    readme   sentence of the README with this claim; `{}` is the bound
    """

    task: str
    peer: str
    script: str
    figure: str
    bound: float
    at_most: bool = False
    readme: str = ""

    def is_met(self, ratio: float) -> bool:
        """Return whether a ratio meets the claim."""
        return ratio <= self.bound if self.at_most else ratio >= self.bound


TEXT = "pack text from {} Parquet into MDS"
SHUFFLED = "read shuffled batches of rows of 20 kB"
CLAIMS = (
    Claim(
        TEXT.format("snappy"),
        "`MDSWriter`",
        "pack_text",
        "snappy, peer",
        4.5,
        readme="flare packs text at least {} times as fast as `MDSWriter`",
    ),
    Claim(TEXT.format("uncompressed"), "`MDSWriter`", "pack_text", "none, peer", 5.5),
    Claim(
        "read MDS in order as batches",
        "mosaicml-streaming",
        "formats",
        "mds w1, in order, batches, original",
        500,
        readme="reads MDS in order at least {} times as fast as mosaicml-streaming",
    ),
    Claim(
        "read random rows of MDS",
        "mosaicml-streaming",
        "formats",
        "mds w1, random row, original",
        8,
    ),
    *(
        Claim(SHUFFLED, peer, "loaders", side, bound)
        for side, peer, bound in (
            ("datasets", "datasets", 1.5),
            ("mds", "mosaicml-streaming", 3),
            ("webdataset", "webdataset", 20),
        )
    ),
    Claim("read objects of 10 kB from S3", "s3fs", "storage", "flare s3 over s3fs, 10 KB", 8),
    Claim("verify 1 GB of shards with SHA-256", "`sha256sum`", "verify", "sha256sum", 1.8),
    Claim(
        "verify 1 GB of shards with XXH3, including the start of the program",
        "a loop that computes the same checksums",
        "verify",
        "flare over xxhash loop",
        5,
        at_most=True,
    ),
    Claim(
        "start `flare --version`",
        "`python -c pass`",
        "startup",
        "flare --version, cpu",
        2.5,
        at_most=True,
    ),
    Claim(
        "start `flare --help`",
        '`python -c "import typer"`',
        "startup",
        "flare --help, cpu",
        1.3,
        at_most=True,
    ),
    *(
        Claim(
            f"read random {name} rows with typed values",
            "a minimal loop over the mapped file",
            "random_rows",
            name.lower(),
            2.5,
            at_most=True,
        )
        for name in ("MDS", "FFRecord", "Granular", "WebDataset")
    ),
)
ONCE = (  # (task, result, command)
    (
        "pack 10,000 links to images of 10 kB",
        "11 times as many links per CPU second as img2dataset",
        "links.py",
    ),
    (
        "read shuffled batches of rows of 20 kB",
        "1.5 times as many samples per second as lmdb, and 2 times as many as litdata",
        "loaders.py",
    ),
    (
        "pack 5,000 photographs of 20 kB with `--resize 256 -z zstd`",
        "1.64 to 1.85 times as fast as with `--jobs 1`; at most 289 MB of memory",
        "jobs.py",
    ),
    (
        "pack 10,000,000 rows in 200 parts and 798 shards of 1 MiB into a slow bucket that answers one request in a thousand with an error",
        "7,454 requests, 37.3 per part; 154 s at a load average of 9; at most 181 MB of memory",
        "faults.py",
    ),
    (
        "join 1,000,000 parts with one shard each",
        "127 CPU seconds; 3 requests per part; 640 MB of memory in addition to 71 MB for the libraries",
        "scale.py",
    ),
    (
        "join 10,000 parts with 150 shards each",
        "18 CPU seconds; 733 MB of memory",
        "scale.py --parts 10000 --shards 150",
    ),
    (
        "pack 200 parts on a cluster of two nodes while 40 workers, a node and the driver are killed",
        "all 1,311 objects are equal to the objects of a local pack",
        "lost.py",
    ),
)


def figures_of(name: str) -> dict[str, float]:
    """Run a benchmark, and return the ratios of its last line; none if it failed."""
    print(f"$ python benchmarks/{SCRIPTS[name]}", flush=True)
    env = {key: value for key, value in os.environ.items() if key != "PYTHONDONTWRITEBYTECODE"}
    with tempfile.TemporaryDirectory() as bytecode:  # an installed package has compiled modules
        done = subprocess.run(
            [sys.executable, *SCRIPTS[name].split()],
            cwd=ROOT / "benchmarks",
            env={"PYTHONPYCACHEPREFIX": bytecode, **env},
            stdout=subprocess.PIPE,
            text=True,
            check=False,
        )
    print(done.stdout, flush=True)
    last = done.stdout.splitlines()[-1:]
    return json.loads(last[0])["figures"] if last and last[0].startswith('{"figures"') else {}


def table(ratios: dict[Claim, float], at_most: bool) -> str:
    """Return the rows of the claims of one kind."""
    return "\n".join(
        f"| {claim.task} | {claim.peer} | {ratio:g} | {claim.bound:g} | `{claim.script}.py` |"
        for claim, ratio in ratios.items()
        if claim.at_most == at_most
    )


def output(*argv: str) -> str:
    """Return the output of a program."""
    return subprocess.run(argv, capture_output=True, text=True, check=True).stdout.strip()


def versions() -> str:
    """Return the versions of the other programs, and of the libraries of flare."""

    def installed(variable: str, name: str) -> str:
        code = f"from importlib.metadata import version; print(version({name!r}))"
        return f"{name} {output(os.environ[variable], '-c', code)}"

    peers = (
        installed("PEER_PYTHON", "mosaicml-streaming"),
        installed("TRAINING_PYTHON", "datasets"),
        installed("WEBDATASET_PYTHON", "webdataset"),
        f"s3fs {version('s3fs')}",
        f"coreutils {output('sha256sum', '--version').splitlines()[0].split()[-1]}",
    )
    own = ("pyarrow", "numpy", "obstore", "xxhash", "typer")
    return f"{', '.join(peers)}; {', '.join(f'{name} {version(name)}' for name in own)}"


def machine() -> str:
    """Return the class of this machine."""
    memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") / 2**30
    kernel = ".".join(platform.release().split(".")[:2])
    return (
        f"A virtual machine with {os.cpu_count()} cores ({platform.machine()}) and {memory:.0f} GiB of memory, "
        f"{platform.system()} {kernel}, Python {platform.python_version()}, "
        f"load average {os.getloadavg()[2]:.0f}"
    )


def page(ratios: dict[Claim, float]) -> str:
    """Return the page with all claims."""
    once = "\n".join(f"| {task} | {result} | `{command}` |" for task, result, command in ONCE)
    return f"""# Figures

`python benchmarks/run.py` generates this page, and fails if a ratio does not meet its limit. For each row of the first two tables, a script in `benchmarks/`
measured flare and the other program alternately, in the same run, with files in the page cache. The ratios compare CPU times, which include the user time and
the system time of all threads. Other programs on the machine affect the CPU time less than the wall-clock time.

## Compared with other programs

The ratio is the CPU time of the other program divided by the CPU time of flare. The packed text is a table of 100,000 rows, each with 1 kB of text and two
numbers. A batch has 64 rows.

| task | compared with | ratio | at least | script |
|---|---|---|---|---|
{table(ratios, at_most=False)}

![Bar chart of the ratios of this table, on a logarithmic scale](pictures/figures.svg)

## Compared with a minimal program

The program in the second column does only the work that the task requires. The ratio is the CPU time of flare divided by the CPU time of this program.

| task | compared with | ratio | at most | script |
|---|---|---|---|---|
{table(ratios, at_most=True)}

## Machine and versions

{machine()}; {versions()}.

## Measured once

These results were measured once, with the command in the last column. `benchmarks/run.py` does not repeat the measurements, because they take hours or
require programs that `make interop` does not install. Wall-clock times were measured on two shared cores.

| task | result | command |
|---|---|---|
{once}

`benchmarks/README.md` describes all benchmarks, and the variables that select the Python interpreters of the original libraries.
"""


def chart(ratios: dict[Claim, float]) -> str:
    """Return an SVG with a bar for each comparison with another program, on a logarithmic scale."""
    bars = [(claim, ratio) for claim, ratio in ratios.items() if not claim.at_most]
    decades = math.ceil(math.log10(max(ratio for _, ratio in bars)))
    width, left, row, top = 860, 400, 44, 60
    decade, bottom = (width - left - 60) / decades, top + row * len(bars)

    def x(ratio: float) -> str:
        return f"{left + decade * math.log10(ratio):.1f}"

    lines = [
        f'<path class="grid" d="M{x(10**n)} {top - 8}V{bottom}"/>'
        f'<text class="note" x="{x(10**n)}" y="{top - 14}" text-anchor="middle">{10**n:,}×</text>'
        for n in range(decades + 1)
    ]
    for number, (claim, ratio) in enumerate(bars):
        y = top + row * number
        task, peer = (escape(text.replace("`", "")) for text in (claim.task, claim.peer))
        lines += [
            f'<text x="{left - 12}" y="{y + 16}" text-anchor="end">{task}</text>',
            f'<text class="note" x="{left - 12}" y="{y + 32}" text-anchor="end">compared with {peer}</text>',
            f'<rect class="bar" x="{left}" y="{y + 8}" width="{decade * math.log10(ratio):.1f}" height="22" rx="2"/>',
            f'<path class="bound" d="M{x(claim.bound)} {y + 8}v22"/>',
            f'<text class="value" x="{float(x(ratio)) + 8:.1f}" y="{y + 24}">{ratio:g}×</text>',
        ]
    described = "; ".join(
        f"{claim.task}, compared with {claim.peer}: {ratio:g} times, at least {claim.bound:g}"
        for claim, ratio in bars
    )
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {bottom + 12}" role="img" aria-labelledby="title description">
<title id="title">CPU time of other programs divided by the CPU time of flare</title>
<desc id="description">{escape(described.replace("`", ""))}.</desc>
<style>
svg {{ font: 14px system-ui, sans-serif; fill: #1f2328; background: #fff; }}
.note {{ font-size: 12px; fill: #59636e; }} .value {{ font-weight: 600; stroke: #fff; stroke-width: 4; paint-order: stroke; }}
.bar {{ fill: #3b7ea1; }} .grid {{ stroke: #d1d9e0; }} .bound {{ stroke: #fff; stroke-width: 2; stroke-dasharray: 3 2; }}
@media (prefers-color-scheme: dark) {{
svg {{ fill: #f0f6fc; background: #0d1117; }} .note {{ fill: #9198a1; }} .bar {{ fill: #4493bb; }} .grid {{ stroke: #3d444d; }} .value {{ stroke: #0d1117; }} .bound {{ stroke: #0d1117; }}
}}
</style>
<text class="note" x="12" y="24">CPU time of the other program divided by CPU time of flare, on a logarithmic scale. Dashed line: guaranteed minimum</text>
{chr(10).join(lines)}
</svg>
"""


def main() -> int:
    """Run the benchmarks, compare the ratios with the claims, and write the page."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--only", default="", help=f"benchmarks, of {', '.join(SCRIPTS)}; default: all"
    )
    only = [name for name in parser.parse_args().only.split(",") if name]
    if unknown := set(only) - SCRIPTS.keys():
        parser.error(f"unknown benchmark {min(unknown)!r}")
    figures = {name: figures_of(name) for name in only or SCRIPTS}
    ratios: dict[Claim, float] = {}
    code = 0
    for claim in CLAIMS:
        if claim.script not in figures:
            continue
        ratio = figures[claim.script].get(claim.figure)
        bound = f"at {'most' if claim.at_most else 'least'} {claim.bound:g}"
        if ratio is None:
            print(f"no ratio: {claim.task}, {claim.peer}")
            code = 2
            continue
        ratios[claim] = float(f"{ratio:.2g}")  # two significant digits
        if not claim.is_met(ratio):
            code = code or 1
        verdict = "met" if claim.is_met(ratio) else "NOT MET"
        print(f"{verdict}: {claim.task}, {claim.peer}: {ratio:.3g} ({bound})")
    if len(ratios) == len(CLAIMS) and code == 0:
        PAGE.write_text(page(ratios), "utf-8")
        CHART.write_text(chart(ratios), "utf-8")
    return code


if __name__ == "__main__":
    sys.exit(main())
