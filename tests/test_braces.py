"""Braces in addresses expand as in bash, which is run if it is installed."""

import fnmatch
import random
import shutil
import subprocess
import sys

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.braces import compile_pattern, expand_braces
from flarecli.errors import UsageError
from tests.properties import examples

LISTED = {
    "a.mds": ["a.mds"],
    "a{b,c{d,e}}.mds": ["ab.mds", "acd.mds", "ace.mds"],
    "{{a,b},c}": ["a", "b", "c"],
    "{a,b}/{1..3}": ["a/1", "a/2", "a/3", "b/1", "b/2", "b/3"],
    "x.csv{,.gz}": ["x.csv", "x.csv.gz"],
    "a{,}b": ["ab", "ab"],
    "{,a}": ["a"],
    "{3..1}": ["3", "2", "1"],
    "{0..-0}": ["0"],
    "{-1..1}": ["-1", "0", "1"],
    "{-01..2}": ["-01", "000", "001", "002"],
    "{8..010}": ["008", "009", "010"],
    "{00..9..4}": ["00", "04", "08"],
    "{9..1..4}": ["9", "5", "1"],
    "{1..9..-4}": ["1", "5", "9"],
    "{1..2..0}": ["1", "2"],
    "{+1..2}": ["1", "2"],
    "{a..e..2}": ["a", "c", "e"],
    "{C..A}": ["C", "B", "A"],
    "{1..a}": ["{1..a}"],
    "{1..}": ["{1..}"],
    "{1...3}": ["{1...3}"],
    "{}": ["{}"],
    "{a}": ["{a}"],
    "{a{b,c}}": ["{ab}", "{ac}"],
    "{{1..2}}": ["{1}", "{2}"],
    "{a,{b},c}": ["a", "{b}", "c"],
    "{a,b": ["{a,b"],
    "a,b}": ["a,b}"],
    "a{b{c,d}": ["a{bc", "a{bd"],
    "{a,b}}": ["a}", "b}"],
    "{a,b{c,d}": ["{a,bc", "{a,bd"],
    r"a\{b,c\}": ["a{b,c}"],
    r"a{b\,c,d}": ["ab,c", "ad"],
    r"{a,b\}}": ["a", "b}"],
    r"\{{a,b}\}": ["{a}", "{b}"],
}


@pytest.mark.parametrize("address", LISTED)
def test_braces_expand_to_several_addresses(address):
    assert expand_braces(address) == LISTED[address]


def expand_with_bash(addresses):
    """Return the words into which bash expands each address.

    No address may contain other shell syntax.
    """
    script = "set -f\n" + "".join(f"printf '%s\\037' {address}; echo\n" for address in addresses)
    out = subprocess.run(["bash"], input=script, capture_output=True, text=True, check=True).stdout
    return [[word for word in line.split("\x1f")[:-1] if word] for line in out.splitlines()]


def random_address(chance, depth):
    """Generate an address of letters, ranges, alternatives and unmatched braces."""
    kind = chance.randrange(6) if depth else 0
    if kind == 0:
        return chance.choice(["a", "b.mds", "", "0", "c/d", "-", r"\{", r"\}", r"\,"])
    if kind == 1:
        ends = [f"{chance.choice(['', '-', '0', '+'])}{chance.randrange(12)}" for _ in range(2)]
        return f"{{{'..'.join(ends)}{chance.choice(['', '..2', '..-3', '..0'])}}}"
    if kind == 2:
        letters = chance.choice(["abcdef", "ABCDEF"])
        return f"{{{chance.choice(letters)}..{chance.choice(letters)}{chance.choice(['', '..2'])}}}"
    inner = [random_address(chance, depth - 1) for _ in range(chance.randint(1, 3))]
    return "".join(inner) if kind == 3 else f"{{{','.join(inner)}}}" if any(inner) else "a"


@pytest.mark.skipif(not shutil.which("bash"), reason="there is no bash here to say what is right")
def test_addresses_expand_as_in_bash():
    chance = random.Random(7)
    addresses = [*LISTED, *(f"x{random_address(chance, 4)}y" for _ in range(1500))]
    found = {address: expand_braces(address) for address in addresses}
    assert found == dict(zip(addresses, expand_with_bash(addresses), strict=True))
    assert sum(map(len, found.values())) > 10_000


@pytest.mark.parametrize("address", ["${a,b}", "'{a,b}'", "{a b,c}", "`{a,b}`", "{*,?}"])
def test_other_shell_syntax_is_ordinary_text(address):
    head, _, rest = address.partition("{")
    inside, _, tail = rest.partition("}")
    assert expand_braces(address) == [head + word + tail for word in inside.split(",")]


def test_a_backslash_before_other_characters_is_kept():
    assert expand_braces(r"a\b{c,\d}\\e") == [r"a\bc\\e", r"a\b\d\\e"]


@pytest.mark.parametrize(
    ("address", "message"),
    [
        ("{1..1048577}", "{1..1048577} expands to more than 1048576 addresses"),
        (
            "{1..999999999999999999}",
            "{1..999999999999999999} expands to more than 1048576 addresses",
        ),
        ("a{1..1025}{1..1025}", "'a{1..1025}{1..1025}' expands to more than 1048576 addresses"),
        (
            "{{1..1000},{1..1048576}}",
            "'{{1..1000},{1..1048576}}' expands to more than 1048576 addresses",
        ),
        (
            "{a," * 100 + "b" + "}" * 100,
            f"{('{a,' * 27)[:79]!r:.80} has more than 100 nested braces",
        ),
    ],
)
def test_too_many_addresses_and_nested_braces_are_refused(address, message):
    with pytest.raises(UsageError) as caught:
        expand_braces(address)
    assert str(caught.value) == message


def test_many_unmatched_braces_are_kept():
    assert expand_braces("{" * 10_000 + "}" * 10_000) == ["{" * 10_000 + "}" * 10_000]
    assert expand_braces("{1..1}" * 5_000) == ["1" * 5_000]
    assert len(expand_braces("{a,{" * 5_000 + "b,c}")) == 2


@given(st.text("ab*?", min_size=1, max_size=9), st.text("ab", max_size=9))
@settings(deadline=None, max_examples=examples(500))
def test_patterns_match_as_in_fnmatch(part, name):
    if part.strip("*"):  # `**` matches any number of folders
        assert bool(compile_pattern([part]).fullmatch(name)) == fnmatch.fnmatchcase(name, part)


def test_patterns_with_many_stars_are_matched_quickly():
    """Runs in another process: a slow regular expression would block the interpreter."""
    code = "from flarecli.braces import compile_pattern; print(compile_pattern(['*a' * 30 + '*b.csv', '*']).fullmatch('a' * 200 + '0.csv/x'))"
    ran = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )
    assert ran.stdout == "None\n"
