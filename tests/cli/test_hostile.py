"""Control characters in data never reach a terminal: real commands with hostile names, values and
files.
"""

import contextlib
import io
import re
import shutil
import tarfile
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from PIL import Image

from flarecli.__main__ import main
from flarecli.write import Writer
from tests.properties import examples

ACTIVE = re.compile(
    "[\x00-\x08\x0b-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff]"
)
# escape sequences that flare itself writes: colours and cursor movements
OURS = re.compile(
    r"\x1b\[[0-9;]*m|\x1b[78]|\x1b\[\d+[AG]|\x1b_G[A-Za-z0-9=,]*;[A-Za-z0-9+/=]*\x1b\\"
    r'|\x1bP0;1q"[0-9;]+[#0-9;?-~!$-]*\x1b\\'
)
PARTS = [
    "\x1b[31m",
    "\x1b]0;t\x07",
    "\x9b2J",
    "\x1b_Ga=d\x1b\\",
    "\x1bP",
    "\u202e",
    "\u2066",
    "\x85",
    "\r",
    "\b",
    "\x7f",
    "[red]",
    "[/nope]",
    "é",
    "a",
    " ",
    "\n",
]
HOSTILE = st.lists(st.sampled_from(PARTS), min_size=1, max_size=6).map("".join)
FEW = settings(
    max_examples=examples(4),
    deadline=None,
    suppress_health_check=[HealthCheck.function_scoped_fixture, HealthCheck.too_slow],
    phases=[Phase.explicit, Phase.reuse, Phase.generate],
)
TERMINALS = [None, {"TERM": "xterm-256color"}, {"TERM": "xterm-kitty"}, {"TERM": "foot"}]


class Screen(io.StringIO):
    """A stream that claims to be a terminal."""

    def isatty(self):
        return True


def output_of(monkeypatch, terminal, *args):
    """Run a command in a terminal or a pipe, and return its whole output."""
    out, err = (
        Screen() if terminal else io.StringIO(),
        io.StringIO(),
    )  # without progress, which moves the cursor
    for name in (
        "TERM",
        "TERM_PROGRAM",
        "KITTY_WINDOW_ID",
        "KONSOLE_VERSION",
        "TMUX",
        "STY",
        "NO_COLOR",
    ):
        monkeypatch.delenv(name, raising=False)
    for name, value in (terminal or {}).items():
        monkeypatch.setenv(name, value)
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(one) for one in args])
    assert code in (0, 1, 2, 3, 4, 5)
    is_for_programs = not terminal and {"csv", "tsv"} & set(
        args
    )  # forms whose values stay unchanged in a pipe
    return ("" if is_for_programs else out.getvalue()) + err.getvalue()


def check(text):
    found = ACTIVE.search(OURS.sub("", text))
    assert found is None, text[max(0, found.start() - 40) : found.end() + 40]


PICTURE = io.BytesIO()
Image.effect_mandelbrot((40, 30), (-2, -1.2, 1, 1.2), 20).save(PICTURE, "PNG")
LOOKS = [
    ("inspect",),
    ("inspect", "--stats", "--shards"),
    ("inspect", "--sample", "2"),
    ("inspect", "--json", "--sample", "2"),
    ("cat",),
    ("cat", "--to", "table"),
    ("cat", "--to", "csv"),
    ("cat", "--to", "tsv"),
    ("verify",),
    ("verify", "--json"),
    ("playlist",),
    ("playlist", "--no-open"),
    ("playlist", "--check"),
]


@pytest.mark.parametrize("terminal", TERMINALS)
@FEW
@given(name=HOSTILE, value=HOSTILE, stream=HOSTILE)
def test_control_characters_in_columns_values_and_streams_are_escaped(
    monkeypatch, terminal, name, value, stream
):
    folder = tempfile.mkdtemp()
    try:
        with Writer(
            f"{folder}/set",
            columns={
                "id": "int",
                name: "str",
                f"{name}s": "json",
                "picture": "bytes",
                "raw": "bytes",
            },
        ) as writer:
            writer.write(
                {
                    "id": 1,
                    name: value,
                    f"{name}s": {value: [value]},
                    "picture": PICTURE.getvalue(),
                    "raw": value.encode(),
                }
            )
        listed = Path(folder, "listed.yaml")
        quoted = "".join(f"\\u{ord(c):04x}" for c in stream)
        listed.write_text(
            f'"{quoted}":\n  headers: {{format: mds, writer: "{quoted}", rows: [1, null]}}\n  content: [set/shard.00000.mds, "{quoted}.mds"]\n'
        )
        for look in LOOKS:
            check(output_of(monkeypatch, terminal, *look, f"{folder}/set"))
            check(output_of(monkeypatch, terminal, *look, listed))
        shard = Path(folder, "set/shard.00000.mds")
        shard.write_bytes(shard.read_bytes()[:-3] + b"\x1b[2")
        check(output_of(monkeypatch, terminal, "verify", f"{folder}/set"))
        check(
            output_of(
                monkeypatch, terminal, "playlist", f"{folder}/set/playlist.yaml", "--diff", listed
            )
        )
    finally:
        shutil.rmtree(folder)


@pytest.mark.parametrize("terminal", TERMINALS[:2])
@FEW
@given(name=HOSTILE, value=HOSTILE)
def test_control_characters_in_file_and_member_names_are_escaped(
    monkeypatch, terminal, name, value
):
    folder = tempfile.mkdtemp()
    try:
        Path(folder, "files").mkdir()
        Path(folder, "files", name.replace("/", "")).write_text(value)
        Path(folder, "bad.yaml").write_text(f"{name}: [{value}\n")
        Path(folder, "bad.ffr").write_bytes(value.encode() * 9)
        Path(folder, "table.csv").write_text(f'id,"{name}"\n1,"{value}"\n')
        with tarfile.open(f"{folder}/set.tar", "w") as tar:
            for member in (f"{name}.txt", "b.png"):
                head = tarfile.TarInfo(member)
                head.size = len(value.encode())
                tar.addfile(head, io.BytesIO(value.encode()))
        for source in ("files", "set.tar", "bad.yaml", "bad.ffr", "table.csv"):
            for look in LOOKS:
                check(output_of(monkeypatch, terminal, *look, f"{folder}/{source}"))
    finally:
        shutil.rmtree(folder)


def test_an_unescaped_control_character_is_detected():
    with pytest.raises(AssertionError):
        check("\x1b[31mred\x1b]0;title\x07")
    with pytest.raises(AssertionError):
        check("\x1b_Ga=T;\x1b[2J\x1b\\")
    with pytest.raises(AssertionError):
        check("a\u202eb")
