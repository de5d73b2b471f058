"""Chromium for tests of pages, controlled through a pipe."""

import fcntl
import json
import os
import shutil
import subprocess

CHROMIUM = (
    shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
)


class Browser:
    """The DevTools protocol of Chromium over two pipes: JSON, each message followed by a zero
    byte.
    """

    def __init__(self, profile):
        (takes, self.out), (self.back, gives) = os.pipe(), os.pipe()

        def pipes():  # Chromium reads from 3 and writes to 4
            high = [fcntl.fcntl(one, fcntl.F_DUPFD, 100) for one in (takes, gives)]
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

    def open(self, url):
        self.events.clear()
        self.send("Page.navigate", url=url)
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
