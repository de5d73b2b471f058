"""Images on a terminal, byte by byte, and images that are not drawn."""

import io
import os
import re
import subprocess
import sys

import pytest
from PIL import Image

from flarecli.write import Writer
from tests.outputs import run_on_a_terminal

SAYS = {"id": "int", "image": "bytes", "text": "str"}


def png(width, height, colours):
    picture = Image.new("RGB", (width, height))
    picture.putdata(colours)
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def terminal(*args, **environment):
    """Run flare on a terminal, and return stdout."""
    argv = [sys.executable, "-m", "flarecli", *args]
    code, out, err = run_on_a_terminal(argv, None, **environment)
    assert (code, err) == (0, "")
    return out


def packed(folder, image, text="a"):
    with Writer(f"{folder}/set", columns=SAYS) as writer:
        writer.write({"id": 1, "image": image, "text": text})
    return f"{folder}/set"


@pytest.fixture(scope="module")
def small(tmp_path_factory):
    red, green, blue, white = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)
    return packed(
        tmp_path_factory.mktemp("small"),
        png(2, 3, [red, green, blue, white, red, green]),
        "\x1b[31m\u202e[red]",
    )


def test_an_image_is_drawn_with_half_blocks(small):
    lines = [
        " " * 40,
        " \x1b[1m \x1b[0m\x1b[1mid\x1b[0m\x1b[1m \x1b[0m \x1b[1m \x1b[0m\x1b[1mimage    \x1b[0m\x1b[1m \x1b[0m"
        " \x1b[1m \x1b[0m\x1b[1mtext               \x1b[0m\x1b[1m \x1b[0m ",
        " " + "─" * 38 + " ",
        "  1    \x1b[38;2;255;0;0;48;2;0;0;255m▀\x1b[0m\x1b[38;2;0;255;0;48;2;255;255;255m▀\x1b[0m          \\x1b[31m\\u202e[red]  ",
        "       \x1b[38;2;255;0;0m▀\x1b[0m\x1b[38;2;0;255;0m▀\x1b[0m" + " " * 31,
        "       png, 82 B" + " " * 24,
        " " * 40,
    ]
    seen = terminal("cat", small, "--to", "table")
    assert seen.split("\n") == [*lines, ""]


@pytest.mark.parametrize("command", [("cat", "--to", "table"), ("inspect", "--sample", "1")])
def test_all_escape_sequences_are_colours(small, command):
    seen = terminal(command[0], small, *command[1:])
    assert "▀" in seen
    assert "\\x1b[31m\\u202e[red]" in seen
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", seen)


def test_without_colours_images_are_not_drawn(small):
    seen = terminal("cat", small, "--to", "table", NO_COLOR="1")
    assert "▀" not in seen
    assert '"sha256"' in seen


def test_damaged_images_and_images_with_too_many_pixels_are_printed_as_text(tmp_path):
    data = bytearray(png(2, 2, [(0, 0, 0)] * 4))
    data[16:24] = (60_000).to_bytes(4) * 2
    assert "▀" not in terminal("cat", packed(tmp_path, bytes(data)), "--to", "table")
    assert "▀" not in terminal(
        "cat", packed(tmp_path / "b", png(9, 9, [(1, 2, 3)] * 81)[:50]), "--to", "table"
    )


@pytest.mark.parametrize("term", ["xterm-kitty", "foot", "xterm-ghostty"])
def test_terminals_with_graphics_protocols_get_half_blocks_too(small, term):
    assert terminal("cat", small, "--to", "table", TERM=term, COLORTERM="truecolor") == terminal(
        "cat", small, "--to", "table"
    )


def test_images_are_not_drawn_into_a_pipe(small):
    ran = subprocess.run(
        [sys.executable, "-m", "flarecli", "inspect", small, "--sample", "2"],
        capture_output=True,
        env=os.environ | {"TERM": "xterm-kitty"},
        check=True,
        timeout=60,
    )
    assert b"\x1b" not in ran.stdout + ran.stderr
