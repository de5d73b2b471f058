"""The docs site: generated pages are current, every page is in a table of contents, and the site
builds without a warning.
"""

import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

from tests.browser import CHROMIUM, Browser

ROOT = Path(__file__).parents[1]
DOCS = ROOT / "docs"
PAGES = sorted(path.stem for path in DOCS.glob("*.md") if path.stem != "index")


@pytest.mark.parametrize(("program", "page"), [("option_tables", "options"), ("api_page", "api")])
def test_a_generated_page_is_current(program, page):
    made = runpy.run_path(str(DOCS / f"{program}.py"))["page"]()
    assert (DOCS / f"{page}.md").read_text() == made, "run: make reference"


def test_the_man_pages_are_current():
    made = runpy.run_path(str(DOCS / "man_pages.py"))["pages"]()
    assert {path.name: path.read_text() for path in (DOCS / "man").iterdir()} == made


def test_the_picture_of_a_terminal_is_current(tmp_path):
    done = subprocess.run(
        [sys.executable, str(DOCS / "pictures.py"), str(tmp_path)], capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "terminal.svg").read_text() == (DOCS / "pictures/terminal.svg").read_text()


def test_every_page_is_in_a_table_of_contents_once():
    listed = re.findall(
        r"```\{toctree\}\n(?:[:\w ]*\n)*?((?:\w+\n)+)```", index := (DOCS / "index.md").read_text()
    )
    assert sorted(name for block in listed for name in block.split()) == PAGES
    assert re.findall(r":caption: (.*)", index) == ["Start", "How to", "Reference", "Explanation"]


@pytest.fixture(scope="module")
def site(tmp_path_factory):
    """Build the site."""
    pytest.importorskip("sphinx")
    pytest.importorskip("myst_parser")
    folder = tmp_path_factory.mktemp("site")
    argv = [sys.executable, "-m", "sphinx", "--quiet", "--fail-on-warning", "--keep-going"]
    done = subprocess.run(
        [*argv, "--builder", "html", str(DOCS), str(folder)], capture_output=True, text=True
    )
    assert (done.returncode, done.stderr) == (0, "")
    return folder


def test_the_site_has_every_page_and_all_links_between_pages_resolve(site):
    identifiers = {
        page.name: set(re.findall(r'\bid="([^"]+)"', page.read_text()))
        for page in site.glob("*.html")
    }
    assert {f"{page}.html" for page in PAGES} <= identifiers.keys()
    for page in PAGES:
        for link in re.findall(r'<a [^>]*href="([^"]+)"', (site / f"{page}.html").read_text()):
            if link.startswith(("http://", "https://")):
                continue
            name, _, anchor = link.partition("#")
            assert (site / name).exists() or not name, f"{page}: {link}"
            if anchor and (name or f"{page}.html") in identifiers:
                assert anchor in identifiers[name or f"{page}.html"], f"{page}: {link}"


@pytest.fixture
def browser(tmp_path):
    if CHROMIUM is None:
        pytest.skip("no Chromium is installed")
    chromium = Browser(tmp_path / "profile")
    try:
        yield chromium
    finally:
        chromium.close()


def test_the_site_works_in_a_browser(site, browser):
    """Each page on a wide and a narrow screen, light and dark; then the search."""
    seen = {}
    for scheme in ("light", "dark"):
        feature = {"name": "prefers-color-scheme", "value": scheme}
        browser.send("Emulation.setEmulatedMedia", features=[feature])
        for width in (1200, 400):
            browser.send(
                "Emulation.setDeviceMetricsOverride",
                width=width,
                height=900,
                deviceScaleFactor=1,
                mobile=width == 400,
            )
            for page in ("index", *PAGES):
                browser.open((site / f"{page}.html").as_uri())
                failed = browser.named("Runtime.exceptionThrown", "Log.entryAdded")
                assert failed == [], page
                requested = [
                    event["params"]["request"]["url"]
                    for event in browser.named("Network.requestWillBeSent")
                ]
                assert all(url.startswith(("file:", "data:")) for url in requested), page
                wide = browser.run("document.documentElement.scrollWidth")
                assert wide <= width, f"{page} is {wide} pixels wide"
            seen[scheme] = browser.run("getComputedStyle(document.body).backgroundColor")
    assert seen["light"] != seen["dark"]
    browser.open((site / "search.html").as_uri() + "?q=erase")
    found = browser.run(
        """new Promise(resolve => {
            const look = () => {
                const links = [...document.querySelectorAll('#search-results li a')];
                links.length ? resolve(links.map(one => one.textContent)) : setTimeout(look, 50);
            };
            look();
        })"""
    )
    assert "Datasets that change" in " ".join(found)


FIGURES = runpy.run_path(str(ROOT / "benchmarks/run.py"))


def ratios_of_the_page():
    """Return the rows of the two tables of figures.md: {(task, peer, bound, script): ratio}."""
    row = r"^\| (.+?) \| (.+?) \| ([\d.]+) \| ([\d.]+) \| `(\w+)\.py` \|$"
    found = re.findall(row, (DOCS / "figures.md").read_text(), re.MULTILINE)
    return {
        (task, peer, float(bound), script): float(ratio)
        for task, peer, ratio, bound, script in found
    }


def test_the_page_of_figures_has_every_claim_and_each_is_met():
    claims = {(one.task, one.peer, one.bound, one.script): one for one in FIGURES["CLAIMS"]}
    ratios = ratios_of_the_page()
    assert ratios.keys() == claims.keys(), "run: make figures"
    assert [claims[key] for key, ratio in ratios.items() if not claims[key].is_met(ratio)] == []


def test_the_chart_shows_the_ratios_of_the_page():
    ratios = ratios_of_the_page()
    claims = {one: ratios[one.task, one.peer, one.bound, one.script] for one in FIGURES["CLAIMS"]}
    assert FIGURES["chart"](claims) == (DOCS / "pictures/figures.svg").read_text()


def test_claims_about_speed_outside_the_page_of_figures_are_claims_that_are_measured():
    sentences = [one.readme.format(f"{one.bound:g}") for one in FIGURES["CLAIMS"] if one.readme]
    speed = re.compile(
        r"\b(?:[\d.]+|two|three|four|five|six|eight|ten) times (?:as (?:fast|many|long|much)|the (?:CPU )?time)|[\d.]+ [MG]B/s"
    )
    for path in (ROOT / "README.md", *DOCS.glob("*.md")):
        text = " ".join(path.read_text().split())
        if path.name == "README.md":
            for sentence in sentences:
                assert sentence in text
                text = text.replace(sentence, "")
        if path.name != "figures.md":
            assert speed.findall(text) == [], path.name
