"""Long lists, which are parsed without the YAML library, have the values and faults of the YAML
library.
"""

import importlib
import random

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import FormatError
from flarecli.playlists.read import read_document, read_yaml
from flarecli.storage import locate
from tests.properties import examples

# the package exports a function with the name of this module
playlist_reader = importlib.import_module("flarecli.playlists.read")
AT = locate("/nowhere/playlist.yaml")
LONG = 300
ENTRIES = "".join(f'  f{i}: {{bytes: {i}, xxh3_128: "0{i}"}}\n' for i in range(LONG))


def alone(text):
    """Parse the complete text with the YAML library."""
    return read_yaml(text, AT, {})


def outcome(call, *args):
    try:
        return call(*args)
    except FormatError as error:
        return str(error)


@pytest.fixture(autouse=True)
def short_lists_too(monkeypatch):
    monkeypatch.setattr(playlist_reader, "MIN_LIST_CHARACTERS", 16)


ITEMS = [
    "a/b.mds",
    "00000/shard.0000001.mds",
    "https://host.example:80/a?b=c&d=%20e",
    "12",
    "0",
    "007",
    "1:30",
    "no",
    "true",
    "null",
    "~",
    "-1",
    "1.5",
    "1e3",
    "9223372036854775807",
    "99999999999999999999",
    "0x1F",
    "1_000",
    ".5",
    "...",
    "=",
    "_",
    "a:b",
    '"a b"',
    '"007"',
    '"#"',
    '""',
    '"12"',
    '"a, b"',
    '"- a"',
]


@pytest.mark.parametrize("item", ITEMS)
def test_items_of_a_long_list_have_the_values_of_the_yaml_library(item):
    for text in (
        "k:\n" + f"  - {item}\n" * LONG + "  - z\n",
        "k:\n" + f"- {item}\n" * LONG,
        "k: [\n" + f"  {item}, {item},\n" * LONG + "  1]\n",
    ):
        assert read_document(text, AT) == alone(text)


@pytest.mark.parametrize(
    "text",
    [
        "k: |\n" + "  - a\n" * LONG,
        "k: >\n" + "  - a\n" * LONG,
        "k: word\n" + "  - a\n" * LONG,
        'k: "\n' + "  - a\n" * LONG + '"\n',
        "k: 'x\n" + "  - a\n" * LONG + "'\n",
        "k: word\n" + "  1, 2,\n" * LONG,
        "k: {\n" + "  a, b,\n" * LONG + "}\n",
        "k: {\n" + "".join(f"  a{i}, b{i},\n" for i in range(LONG)) + "  c}\n",
        "k: [x\n" + "  1, 2,\n" * LONG + "]\n",
        'k: ["x\n' + "  1, 2,\n" * LONG + '"]\n',
        "k:\n" + "  - a\n" * LONG + "    b\n",
        "k:\n" + "  - a\n" * LONG + "   - b\n",
        "k:\n" + "  - a\n" * LONG + " - b\n",
        "k:\n" + "  - a\n" * LONG + "  - b: 1\n    c: 2\n" + "  - d\n" * LONG,
        "k:\n" + "  - a\n" * LONG + "  - &x b\n",
        "k:\n" + "  - a\n" * LONG + "  - [\n",
        "k:\n" + "  - a\n" * LONG + "k: 1\n",
        "k:\n" + "  - a\n" * LONG + "l: *x\n",
        "k:\n" + "  - a\n" * LONG + "--- 1\n",
        "k:\n  - a\n  -\n" + "    - b\n" * LONG + "  - c\n",
        "- a\n" * LONG,
        "k:\n" + "  # - a\n" * LONG + "  - a\n",
        "k: &x\n" + "  - a\n" * LONG,
        "a:\n" + "  - 1\n" * LONG + "b:\n" + "  - 2\n" * LONG + "c: [\n" + "  3,\n" * LONG + "]\n",
        "k:\n" + ENTRIES,
        ENTRIES,
        "k:\n" + ENTRIES + "  z: 1\n" + ENTRIES.replace(" f", " g"),
        "k:\n" + ENTRIES * 2,
        "k:\n  f7: 1\n" + ENTRIES,
        "k:\n" + ENTRIES + "  f7: 1\n",
        "k: {\n" + ENTRIES + "}\n",
        "k: {x: 1,\n" + ENTRIES + "}\n",
        "k: [\n" + ENTRIES + "]\n",
        "k: |\n" + ENTRIES,
        "k: word\n" + ENTRIES,
        'k: "\n' + ENTRIES + '"\n',
        "k:\n  ? x\n" + ENTRIES,
        "k:\n" + ENTRIES + "    more\n",
        "k:\n" + ENTRIES + "    more: 1\n",
        "k:\n" + ENTRIES + "  , a: 1\n",
        "k:\n" + ENTRIES + "  - a\n",
        "k:\n" + ENTRIES + " a: 1\n",
        "k:\n- f: 1\n" + ENTRIES,
        "k:\n- f: 1\n" + ENTRIES + "- g: 1\n" + ENTRIES,
        "k:\n" + ENTRIES.replace("f9:", "true:"),
        "k:\n" + ENTRIES.replace("f9:", "null:"),
        "k:\n" + ENTRIES.replace("f9:", "yes:"),
        "k:\n" + ENTRIES.replace("f9:", f"{'f' * 2000}:"),
        "k:\n" + ENTRIES.replace("9, ", "9, bytes: 1, "),
        "k:\n" + ENTRIES.replace("xxh3_128", "null"),
        "k:\n" + ENTRIES.replace("xxh3_128", "bytes"),
        "k:\n" + ENTRIES.replace(": 9,", ": 09,"),
        "k:\n" + ENTRIES.replace(": 9,", f": {'9' * 30},"),
        "k: [[\n" + "  1, 2,\n" * LONG + "  3], [\n" + '  "1", "2",\n' * LONG + "  3]]\n",
    ],
)
def test_text_that_only_resembles_a_list_is_read_as_by_the_yaml_library(text):
    assert outcome(read_document, text, AT) == outcome(alone, text)


@settings(max_examples=examples(300), deadline=None)
@given(st.integers(0, 1 << 32))
def test_random_lines_are_read_as_by_the_yaml_library(seed):
    rng = random.Random(seed)
    lines = ["k:"]
    for _ in range(rng.randrange(1, 8)):
        indent, item = " " * rng.choice((0, 1, 2, 2, 2, 4)), rng.choice(ITEMS)
        line = rng.choice(
            (
                f"- {item}",
                f"- {item}",
                f"{item}, {item},",
                f"{item}:",
                f"{item}: {{bytes: 1}}",
                f'a{rng.randrange(99)}: {{bytes: 1, xxh: "2"}}',
                "x: [",
                "]",
                "x: |",
                "x: {",
                "}",
                "- - a",
                item,
                "x:",
                "#",
                "",
            )
        )
        lines += [indent + line] * rng.choice((1, 1, 2, 3, 10))
        if rng.random() < 0.3:
            lines += [f"{indent}b{i}: {{bytes: {i}}}" for i in range(rng.randrange(2, 5))]
    text = "\n".join(lines) + "\n"
    assert outcome(read_document, text, AT) == outcome(alone, text)


@pytest.mark.parametrize(
    "end",
    [
        "abc def",
        "3 4",
        "a: b",
        "a:",
        '"a',
        '"a" b',
        "-",
        "3, ",
        "3, 4 5",
        "3,4",
        "3, , 4",
        "3, # more",
        "3 # more",
        "[4",
        "&a 3",
        "*a",
        "# more",
    ],
)
@pytest.mark.parametrize("head, tail", [("l: [\n", "  3]\n"), ("l:\n", "")])
def test_a_list_ends_before_the_first_line_with_another_syntax(head, tail, end):
    line = "  1, 2,\n" if tail else "  - 1\n"
    for last in (f"  {end},\n", f"  {end}\n", f"  - {end}\n", f"  - 1{end}\n"):
        text = head + line * LONG + last + tail
        assert outcome(read_document, text, AT) == outcome(alone, text), last


def test_entries_of_a_long_mapping_have_the_lines_of_the_yaml_library():
    text = "k:\n  a: 1\n" + ENTRIES + "  z: 1\n"
    assert read_document(text, AT)["k"].marks == alone(text)["k"].marks
    short, lifted = playlist_reader.lift(text)
    assert [len(entries) for entries in lifted.values()] == [LONG]
    assert short.count("\n") == text.count("\n")


def test_long_lists_reach_the_library_as_one_item():
    text = "k:\n" + "  - a\n" * LONG + "l: [\n" + "  1, 2,\n" * LONG + "  3]\n"
    short, lifted = playlist_reader.lift(text)
    assert len(lifted) == 2 and sum(map(len, lifted.values())) == 3 * LONG - 1
    assert short.count("\n") == text.count("\n") and len(short.replace("\n", "")) < 200
