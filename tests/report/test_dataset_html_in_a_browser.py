"""The page of a dataset in Chromium, controlled through a pipe: network access, display, sorting and search."""

import io
import json
import os
import shutil
import subprocess

import pytest
from PIL import Image

from flarecli.__main__ import main
from flarecli.write import Writer

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)
HOSTILE = (
    "<script>document.title='owned'</script>",
    "[red]hot[/red]",
    "\x1b[31mred",
    "\u202egnp.exe",
    '"><img src=x onerror="document.title=1">',
    "plain",
)

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no Chromium is installed")


class Browser:
    """The DevTools protocol of Chromium over two pipes: JSON, each message followed by a zero byte."""

    def __init__(self, profile):
        (takes, self.out), (self.back, gives) = os.pipe(), os.pipe()

        def pipes():  # Chromium reads from 3 and writes to 4
            a, b = os.dup(takes), os.dup(gives)
            high = [os.dup2(one, at) for one, at in ((a, 20), (b, 21))]
            os.dup2(high[0], 3), os.dup2(high[1], 4)

        flags = [
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--remote-debugging-pipe",
            f"--user-data-dir={profile}",
        ]
        quiet = {
            "stdin": subprocess.DEVNULL,
            "stdout": subprocess.DEVNULL,
            "stderr": subprocess.DEVNULL,
        }
        self.child = subprocess.Popen(
            [CHROMIUM, *flags, "about:blank"], preexec_fn=pipes, close_fds=False, **quiet
        )
        os.close(takes), os.close(gives)
        self.events, self.held, self.count, self.session = [], b"", 0, None
        target = self.send("Target.createTarget", url="about:blank")["targetId"]
        self.session = self.send("Target.attachToTarget", targetId=target, flatten=True)[
            "sessionId"
        ]
        for domain in ("Page", "Runtime", "Log", "Network"):
            self.send(f"{domain}.enable")

    def receive(self):
        while b"\0" not in self.held:
            data = os.read(self.back, 1 << 16)
            if not data:
                raise EOFError("Chromium has gone")
            self.held += data
        message, self.held = self.held.split(b"\0", 1)
        return json.loads(message)

    def send(self, method, **params):
        self.count += 1
        message = {
            "id": self.count,
            "method": method,
            "params": params,
            **({"sessionId": self.session} if self.session else {}),
        }
        os.write(self.out, json.dumps(message).encode() + b"\0")
        while (got := self.receive()).get("id") != self.count:
            self.events.append(got)
        assert "error" not in got, got
        return got["result"]

    def open(self, path):
        self.send("Page.navigate", url=path.as_uri())
        while not any(event.get("method") == "Page.loadEventFired" for event in self.events):
            self.events.append(self.receive())

    def run(self, script):
        found = self.send(
            "Runtime.evaluate", expression=script, returnByValue=True, awaitPromise=True
        )
        assert "exceptionDetails" not in found, found
        return found["result"].get("value")

    def named(self, *methods):
        return [event for event in self.events if event.get("method") in methods]

    def close(self):
        self.child.terminate()
        self.child.wait(20)
        os.close(self.out), os.close(self.back)


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
        chromium.open(page)
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
