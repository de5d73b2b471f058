"""The page of a dataset in Chromium, controlled through a pipe: network access, display, sorting
and search.
"""

import io

import pytest
from PIL import Image

from flarecli.__main__ import main
from flarecli.write import Writer
from tests.browser import CHROMIUM, Browser

HOSTILE = (
    "<script>document.title='owned'</script>",
    "[red]hot[/red]",
    "\x1b[31mred",
    "\u202egnp.exe",
    '"><img src=x onerror="document.title=1">',
    "plain",
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


def image(i):
    out = io.BytesIO()
    Image.new("RGB", (400 + i, 300), (i * 9 % 256, 90, 160)).save(out, "JPEG")
    return out.getvalue()


@pytest.fixture(scope="module")
def page(tmp_path_factory):
    folder = tmp_path_factory.mktemp("page")
    with Writer(
        f"{folder}/set", columns={"id": "int", "text": "str", "<b>name": "str", "image": "jpeg"}
    ) as writer:
        for i in range(24):
            writer.write(
                {
                    "id": i,
                    "text": f"{HOSTILE[i % 6]} {i}",
                    "<b>name": HOSTILE[-1 - i % 6],
                    "image": image(i),
                }
            )
    assert (
        main(
            [
                "inspect",
                f"{folder}/set",
                "--stats",
                "--sample",
                "24",
                "--html",
                f"{folder}/page.html",
            ]
        )
        == 0
    )
    return folder / "page.html"


@pytest.fixture(scope="module")
def browser(page, tmp_path_factory):
    chromium = Browser(tmp_path_factory.mktemp("profile"))
    try:
        chromium.open(page.as_uri())
        yield chromium
    finally:
        chromium.close()


def shown(browser, column=0):
    cards = f"[...document.querySelectorAll('.row:not([hidden])')].map(row=>row.querySelector('[data-column=\"{column}\"]').textContent)"
    return browser.run(cards)


def test_the_page_loads_nothing_and_logs_no_error(browser, page):
    asked = [
        event["params"]["request"]["url"] for event in browser.named("Network.requestWillBeSent")
    ]
    assert {url for url in asked if not url.startswith("data:")} == {page.as_uri()}
    assert (
        browser.named("Runtime.exceptionThrown", "Runtime.consoleAPICalled", "Log.entryAdded") == []
    )
    assert page.stat().st_size < 5_000_000


def test_the_gallery_shows_images(browser):
    script = "Promise.all([...document.querySelectorAll('.row img')].map(one=>one.decode().then(()=>one.naturalWidth)))"
    assert browser.run(script) == [320] * 24


def test_markup_in_the_data_is_shown_as_text(browser):
    texts = shown(
        browser,
        browser.run(
            "[...document.querySelectorAll('#by option')].find(one=>one.textContent=='text').value"
        ),
    )
    written = (
        "<script>document.title='owned'</script>",
        "[red]hot[/red]",
        "\\x1b[31mred",
        "\\u202egnp.exe",
        HOSTILE[4],
        "plain",
    )
    assert sorted(texts) == sorted(f"{written[i % 6]} {i}" for i in range(24))
    assert browser.run("document.scripts.length") == 1
    assert browser.run("document.images.length") == 24
    assert browser.run("document.title").endswith("playlist.yaml")


def test_other_scripts_do_not_run(browser):
    browser.run(
        "{const s=document.createElement('script');s.textContent='window.owned=1';document.body.append(s);s.remove()}"
    )
    assert browser.run("window.owned===undefined")
    browser.events[:] = [
        event for event in browser.events if event.get("method") != "Log.entryAdded"
    ]  # the refusal of the script


def test_rows_can_be_searched_and_sorted(browser):
    at = browser.run(
        "[...document.querySelectorAll('#by option')].find(one=>one.textContent=='id').value"
    )
    find = "{{const one=document.getElementById('find');one.value={};one.dispatchEvent(new Event('input'))}}"
    browser.run(find.format("'[RED]hot'"))
    assert 0 < len(shown(browser)) < 24
    browser.run(find.format("'plain 23'"))
    assert (shown(browser, at), browser.run("document.getElementById('count').textContent")) == (
        ["23"],
        "1 of 24",
    )
    browser.run(find.format("''"))
    browser.run(
        f"{{const one=document.getElementById('by');one.value='{at}';one.dispatchEvent(new Event('change'))}}"
    )
    assert shown(browser, at) == [str(i) for i in range(24)]
    browser.run("document.getElementById('turn').click()")
    assert shown(browser, at) == [str(i) for i in reversed(range(24))]
