"""Pictures on a terminal, to the byte, and what is not shown as one."""

import base64
import io
import os
import re
import subprocess
import sys
import threading

import pytest
from PIL import Image

from flarecli.cli.graphics import graphic, painted, protocol
from flarecli.write import Writer

OWN = {
    "NO_COLOR",
    "TERM",
    "COLORTERM",
    "TERM_PROGRAM",
    "KITTY_WINDOW_ID",
    "KONSOLE_VERSION",
    "TMUX",
    "STY",
}  # what says which terminal it is
SAYS = {"id": "int", "image": "bytes", "text": "str"}


def png(width, height, colours):
    picture = Image.new("RGB", (width, height))
    picture.putdata(colours)
    out = io.BytesIO()
    picture.save(out, "PNG")
    return out.getvalue()


def terminal(*args, **environment):
    """Run flare on a terminal of its own and give all that reaches it."""
    master, slave = os.openpty()
    held = []

    def read():
        try:
            while data := os.read(master, 1 << 16):
                held.append(data)
        except OSError:  # the last one at the other end has left
            return

    reader = threading.Thread(target=read)
    reader.start()
    env = {name: value for name, value in os.environ.items() if name not in OWN}
    env |= {
        "TERM": "xterm-256color",
        "COLORTERM": "truecolor",
        "COLUMNS": "100",
        "LC_ALL": "C.UTF-8",
        **environment,
    }
    code = subprocess.run(
        [sys.executable, "-m", "flarecli", *args],
        stdin=subprocess.DEVNULL,
        stdout=slave,
        stderr=slave,
        env=env,
        timeout=60,
    ).returncode
    os.close(slave)
    reader.join(20)
    os.close(master)
    assert code == 0, b"".join(held)
    return b"".join(held).decode().replace("\r\n", "\n")


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


def test_a_picture_is_drawn_with_half_blocks(small):
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
def test_all_escapes_are_colours_of_ours(small, command):
    seen = terminal(command[0], small, *command[1:])
    assert "▀" in seen
    assert "\\x1b[31m\\u202e[red]" in seen
    assert "\x1b" not in re.sub(r"\x1b\[[0-9;]*m", "", seen)


def test_no_colours_no_pictures(small):
    seen = terminal("cat", small, "--to", "table", NO_COLOR="1")
    assert "▀" not in seen
    assert '"sha256"' in seen


def test_what_claims_too_many_pixels_or_is_damaged_stays_text(tmp_path):
    data = bytearray(png(2, 2, [(0, 0, 0)] * 4))
    data[16:24] = (60_000).to_bytes(4) * 2
    assert "▀" not in terminal("cat", packed(tmp_path, bytes(data)), "--to", "table")
    assert "▀" not in terminal(
        "cat", packed(tmp_path / "b", png(9, 9, [(1, 2, 3)] * 81)[:50]), "--to", "table"
    )


KITTY, SIXEL = {"TERM": "xterm-kitty", "KITTY_WINDOW_ID": "1"}, {"TERM": "foot"}
_SEQUENCE = re.compile(
    r"\x1b_G(?P<kitty>[^;\x1b]*);(?P<part>[A-Za-z0-9+/=]*)\x1b\\|\x1bP0;1q(?P<sixel>[ -~]*)\x1b\\|\x1b(?P<keep>[78])"
    r"|\x1b\[(?P<up>\d+)A|\x1b\[(?P<column>\d+)G|\x1b\[[0-9;]*m|(?P<text>[^\x1b])",
    re.DOTALL,
)


def sixels(text):
    """Decode sixels as the VT340's manual has them: pixels, or None where nothing is painted."""
    head = re.match(r'"1;1;(\d+);(\d+)', text)
    width, height = int(head[1]), int(head[2])
    pixels, colours = [[None] * width for _ in range(-(-height // 6) * 6)], {}
    x = y = colour = 0
    for one in re.finditer(
        r"#(\d+);2;(\d+);(\d+);(\d+)|#(\d+)|(?:!(\d+))?([?-~])|([$-])", text[head.end() :]
    ):
        if one[1]:
            colours[int(one[1])] = tuple(int(one[i]) for i in (2, 3, 4))
        elif one[5]:
            colour = int(one[5])
        elif one[8]:
            x, y = 0, y + 6 * (one[8] == "-")
        else:
            for _ in range(int(one[6] or 1)):
                for bit in range(6):
                    if ord(one[7]) - 63 >> bit & 1:
                        assert pixels[y + bit][x] is None, "a pixel is painted once"
                        pixels[y + bit][x] = colours[colour]
                x += 1
            assert x <= width
    assert all(one is None for row in pixels[height:] for one in row)
    return pixels[:height]


def shown(output):
    """Act as a terminal: give the screen's lines, and each picture as (line, column, protocol, keys, what it holds)."""
    lines, pictures, at, kept, end = [[]], [], [0, 0], None, 0
    for one in _SEQUENCE.finditer(output):
        assert one.start() == end, f"unknown: {output[end : end + 40]!r}"
        end = one.end()
        if one["keep"] == "7":
            kept = list(at)
        elif one["keep"] == "8":
            at = list(kept)
        elif one["up"]:
            at[0] -= int(one["up"])
        elif one["column"]:
            at[1] = int(one["column"]) - 1
        elif one["kitty"] is not None:
            keys = dict(key.split("=") for key in one["kitty"].split(","))
            if "a" in keys:
                pictures.append([*at, "kitty", keys, ""])
            pictures[-1][4] += one["part"]
            assert len(one["part"]) <= 4096
            pictures[-1][3]["m"] = keys["m"]
        elif one["sixel"] is not None:
            pictures.append([*at, "sixel", {}, one["sixel"]])
        elif one["text"] == "\n":
            at = [at[0] + 1, 0]
            lines += [[] for _ in range(at[0] + 1 - len(lines))]
        elif one["text"]:
            assert at[1] == len(lines[at[0]])
            lines[at[0]].append(one["text"])
            at[1] += 1
    assert end == len(output)
    return ["".join(line) for line in lines], pictures


@pytest.fixture(scope="module")
def drawn(tmp_path_factory):
    wide = Image.effect_mandelbrot((300, 100), (-2, -1.2, 1, 1.2), 40).convert("RGB")
    small = png(12, 30, [(10 * x, 8 * y, 90) for y in range(30) for x in range(12)])
    out = io.BytesIO()
    wide.save(out, "PNG")
    folder = f"{tmp_path_factory.mktemp('drawn')}/set"
    with Writer(
        folder, columns={"id": "int", "one": "bytes", "two": "bytes", "text": "str"}
    ) as writer:
        writer.write({"id": 1, "one": out.getvalue(), "two": small, "text": "\x1b_Ga=T;AAAA\x1b\\"})
        writer.write({"id": 2, "one": small, "two": b"no picture", "text": "\x1bPq#0\x1b\\"})
    return folder, [out.getvalue(), small]


@pytest.mark.parametrize("how", [KITTY, SIXEL])
def test_pictures_lie_on_blanks_above_their_captions(drawn, how):
    lines, pictures = shown(terminal("cat", drawn[0], "--to", "table", **how))
    pictures.sort(key=lambda one: one[:2])
    assert pictures[2][:2] == [pictures[0][0] + 5, pictures[0][1]]
    assert (pictures[1][0], pictures[1][1] > pictures[0][1] + 24) == (pictures[0][0], True)
    rows, columns = (4, 2, 2), (24, 2, 2)
    for (line, column, *_), high, wide in zip(pictures, rows, columns, strict=True):
        assert all(one[column : column + wide] == " " * wide for one in lines[line : line + high])
        assert lines[line + high][column:].startswith("png, ")
    text = "\n".join(lines)
    assert "\\x1b_Ga=T;AAAA\\x1b\\" in text
    assert "\\x1bPq#0" in text


def test_what_kitty_gets_is_the_picture(drawn):
    folder, (wide, small) = drawn
    _, pictures = shown(terminal("inspect", folder, "--sample", "2", **KITTY))
    found = {
        (one[3]["c"], one[3]["r"]): Image.open(io.BytesIO(base64.b64decode(one[4])))
        for one in pictures
    }
    assert [one[3]["m"] for one in pictures] == ["0"] * 3
    assert all(
        one[3].items() >= {"a": "T", "f": "100", "q": "2", "C": "1"}.items() for one in pictures
    )
    assert found["2", "2"].convert("RGB").tobytes() == Image.open(io.BytesIO(small)).tobytes()
    wanted = Image.open(io.BytesIO(wide))
    wanted.thumbnail((240, 240))
    assert found["24", "4"].tobytes() == wanted.tobytes()


def test_what_a_sixel_terminal_gets_is_the_picture(drawn):
    folder, (_, small) = drawn
    _, pictures = shown(terminal("cat", folder, "--to", "table", **SIXEL))
    wanted, found = (
        Image.open(io.BytesIO(small)),
        sixels(min(pictures, key=lambda one: len(one[4]))[4]),
    )
    assert (len(found[0]), len(found)) == wanted.size == (12, 30)
    worst = max(
        abs(part * 2.55 - want)
        for y, row in enumerate(found)
        for x, pixel in enumerate(row)
        for part, want in zip(pixel, wanted.getpixel((x, y)), strict=True)
    )
    assert worst < 40  # 360 colours became 128


def test_a_picture_of_few_colours_is_painted_as_it_is():
    colours = [(255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)]
    data = png(8, 7, [colours[(x + y) % 4] for y in range(7) for x in range(8)])
    text = painted(graphic(data, "c"), "sixel", 3, 24, 2)
    assert text.startswith("\x1b7\x1b[2A\x1b[4G\x1bP0;1q") and text.endswith("\x1b\\\x1b8")
    assert sixels(text[text.index("q") + 1 : -4]) == [
        [tuple(part * 100 // 255 for part in colours[(x + y) % 4]) for x in range(8)]
        for y in range(7)
    ]


def test_a_narrow_table_makes_its_pictures_smaller(drawn):
    lines, pictures = shown(terminal("cat", drawn[0], "--to", "table", **KITTY | {"COLUMNS": "46"}))
    assert int(pictures[0][3]["c"]) < 24
    assert max(map(len, lines)) == 46


@pytest.mark.parametrize(
    ("says", "wanted"),
    [
        ({"TERM": "xterm-kitty"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "3"}, "kitty"),
        ({"TERM": "xterm-256color", "KITTY_WINDOW_ID": "3", "TERM_PROGRAM": "vscode"}, None),
        ({"TERM": "xterm-ghostty", "TERM_PROGRAM": "ghostty"}, "kitty"),
        ({"TERM": "xterm-kitty", "TMUX": "/tmp/x,1,0"}, None),
        ({"TERM": "screen.xterm-256color", "KITTY_WINDOW_ID": "3"}, None),
        ({"TERM": "foot-direct"}, "sixel"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "WezTerm"}, "sixel"),
        ({"TERM": "xterm-256color", "TERM_PROGRAM": "iTerm.app"}, "sixel"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "230805"}, "sixel"),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "210801"}, None),
        ({"TERM": "xterm-256color", "KONSOLE_VERSION": "9" * 5000}, "sixel"),
        ({"TERM": "xterm-256color"}, None),
        ({}, None),
    ],
)
def test_the_environment_says_what_the_terminal_can(says, wanted):
    assert protocol(says) == wanted


def test_into_a_pipe_goes_no_picture(drawn):
    ran = subprocess.run(
        [sys.executable, "-m", "flarecli", "inspect", drawn[0], "--sample", "2"],
        capture_output=True,
        env=os.environ | KITTY,
        check=True,
        timeout=60,
    )
    assert b"\x1b" not in ran.stdout + ran.stderr
