"""Draw the pictures of the docs: a terminal as SVG, and the HTML page of `flare inspect` as PNG.

    python docs/pictures.py FOLDER [--page]

--page draws the HTML page, which needs Chromium.
"""

from __future__ import annotations

import argparse
import io
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from demo import LIGHTS, PLACES, picture
from rich.console import Console
from rich.text import Text

sys.path.append(str(Path(__file__).parents[1]))
from tests.outputs import run_on_a_terminal

LINES = (
    "flare inspect photos/",
    "flare cat photos/ --to table --limit 3 --columns key,image,caption,score",
)
COLUMNS = 100  # as in `run_on_a_terminal`
SEEDS = range(3, 27)


def dataset(folder: Path) -> None:
    """Pack a few images, which are stored without loss so that every library decodes the same
    pixels.
    """
    import flarecli

    columns = {"key": "str", "image": "png", "caption": "str", "score": "float64"}
    with flarecli.Writer(folder / "photos", columns=columns) as writer:
        for number, seed in enumerate(SEEDS):
            out = io.BytesIO()
            image = picture(seed)
            image.thumbnail((480, 480))
            image.save(out, "png")
            caption = f"{PLACES[seed % len(PLACES)]} {LIGHTS[seed * 3 % len(LIGHTS)]}"
            row = {"key": f"{number:04}", "image": out.getvalue(), "caption": caption}
            writer.write({**row, "score": round(0.97 - number * 0.04, 2)})


def terminal(folder: Path, target: Path) -> None:
    """Write what a terminal shows after the command lines, as SVG."""
    console = Console(
        record=True,
        width=COLUMNS,
        force_terminal=True,
        color_system="truecolor",
        file=io.StringIO(),
    )
    for line in LINES:
        console.print(Text("$ ", style="green") + Text(line))
        argv = [sys.executable, "-m", "flarecli", *line.split()[1:]]
        code, out, err = run_on_a_terminal(argv, folder)
        if code:
            sys.exit(err)
        console.print(Text.from_ansi(out))
    svg = console.export_svg(title="flare", unique_id="flare")
    # without the fonts that the picture would load from the network; a viewer has a monospace font
    target.write_text(re.sub(r"@font-face \{.*?\}\s*", "", svg, flags=re.DOTALL), "utf-8")


def page(folder: Path, target: Path) -> None:
    """Take a screenshot of the HTML page in headless Chromium."""
    subprocess.run(
        [
            sys.executable,
            "-m",
            "flarecli",
            "inspect",
            "photos/",
            "--html",
            "page.html",
            "-q",
        ],
        cwd=folder,
        check=True,
        stdout=subprocess.DEVNULL,
    )
    browser = shutil.which("chromium") or shutil.which("google-chrome")
    if browser is None:
        sys.exit("Chromium is required")
    quiet = "--headless --no-sandbox --disable-gpu --disable-quic --no-first-run --disable-background-networking"
    argv = [
        browser,
        *quiet.split(),
        "--disable-component-update",
        "--disable-sync",
        "--hide-scrollbars",
    ]
    argv += [f"--user-data-dir={folder / 'profile'}", "--window-size=1100,1500"]
    argv += [f"--screenshot={target}", (folder / "page.html").as_uri()]
    subprocess.run(
        argv, check=True, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=120
    )


def main() -> None:
    """Draw the pictures."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--page", action="store_true")
    options = parser.parse_args()
    options.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        dataset(Path(scratch))
        terminal(Path(scratch), options.folder / "terminal.svg")
        if options.page:
            page(Path(scratch), options.folder.resolve() / "page.png")


if __name__ == "__main__":
    main()
