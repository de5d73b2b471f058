"""Names from data in a suggested command are single shell words: a pasted hint runs only flare."""

import json
import os
import re
import shutil
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import commands
from flarecli.__main__ import main
from flarecli.formats.tables import decompress
from flarecli.names import escape, shell_quoted
from flarecli.write import Writer
from tests.properties import examples

BASH = shutil.which("bash")
NAMES = [
    "ok; touch PWNED #",
    "a b",
    "it's",
    'say "hi"',
    "$(touch PWNED)",
    "`touch PWNED`",
    "a\ntouch PWNED\n",
    "a\\nb",
    "\x1b[2Jx",
    "tab\tand'quote",
    "\u202egnp.exe",
    "café",
    "a&touch PWNED&",
    "*",
    "~root",
    "| touch PWNED",
]


def words(command):
    """Parse a command with a shell, in which `flare` and other programs are replaced by one that
    prints its arguments.
    """
    script = "flare() { printf '%s\\0' \"$@\"; }; touch() { printf PWNED; }; " + command
    done = subprocess.run([BASH, "-c", script], capture_output=True, check=True)
    return [os.fsdecode(word) for word in done.stdout.split(b"\0")[:-1]]


def hints(text):
    return [line.removeprefix("hint: ") for line in text.splitlines() if line.startswith("hint: ")]


def quoted_commands(text):
    r"""Return the `flare …` commands of a hint. A name may contain backticks."""
    return re.findall(r"`(flare .*)`", text)


@settings(max_examples=examples(60), deadline=None)
@given(st.text(st.characters(codec="utf-8", exclude_characters="\0"), max_size=12))
def test_a_shell_restores_a_quoted_name(name):
    quoted = shell_quoted(name)
    assert escape(quoted) == quoted
    assert words(f"flare {quoted}") == [name]


def test_a_name_that_is_not_utf_8_is_quoted_by_its_bytes():
    name = os.fsdecode(b"\xff\x9b\xc3")
    assert shell_quoted(name) == r"$'\xff\x9b\xc3'"
    assert words(f"flare {shell_quoted(name)}") == [name]


@pytest.mark.parametrize("name", NAMES)
def test_folders_in_suggested_commands_are_one_word(name, tmp_path, in_tmp_path, capsys):
    with Writer(name, columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    (tmp_path / name / "playlist.yaml").unlink()
    data = (tmp_path / name / "index.json").read_bytes()
    wanted = ["playlist", name, "--reindex"]

    (tmp_path / name / "index.json").write_bytes(data[:-9])
    assert main(["inspect", name]) == 4
    (hint,) = hints(capsys.readouterr().err)
    assert [words(one) for one in quoted_commands(hint)] == [wanted]

    assert main(["verify", name, "-v"]) == 1
    found = quoted_commands(capsys.readouterr().out)
    assert [words(one) for one in found] == [wanted]

    (tmp_path / name / "index.json").unlink()
    assert main(["inspect", name]) == 4
    (hint,) = hints(capsys.readouterr().err)
    assert [words(one) for one in quoted_commands(hint)] == [wanted]

    os.rename(name, "moved")
    (tmp_path / name).write_text("id\n1\n")
    assert main(["pack", "out", name, "-f", "csv"]) in (2, 3)
    for hint in hints(capsys.readouterr().err):
        assert [words(one) for one in quoted_commands(hint)] == [["pack", name, "out"]]
    assert not list(tmp_path.rglob("PWNED"))


@pytest.mark.parametrize("name", NAMES)
def test_columns_in_suggested_options_are_one_word(name, tmp_path, capsys):
    table = tmp_path / "t.jsonl"
    table.write_text(json.dumps({name: "https://example.com/a", "id": 1}) + "\n")
    assert main(["pack", str(table), str(tmp_path / "out"), "--dry-run"]) == 0
    (note,) = [line for line in capsys.readouterr().err.splitlines() if "--fetch" in line]
    option = re.search(r"add (--fetch .*) to pack the linked files", note)[1]
    assert words(f"flare {option}") == ["--fetch", name]

    with Writer(str(tmp_path / "bad"), columns={name: "json"}) as writer:
        writer.write({name: {"a": 1}})
    path = tmp_path / "bad" / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b'{"a": 1}', b'{"a": 1x'))
    assert main(["cat", str(tmp_path / "bad")]) == 4
    (hint,) = hints(capsys.readouterr().err)
    option = re.fullmatch(
        r"Use (--raw .*) to print its bytes, or select other columns with -c\.", hint
    )[1]
    assert words(f"flare {option}") == ["--raw", name]

    assert main(["pack", str(table), str(tmp_path / "out"), "--key", f"{name}x"]) == 2
    (hint,) = hints(capsys.readouterr().err)
    assert words("flare " + hint.rpartition("Choose from ")[2].removesuffix(".").replace("id", ""))[
        0
    ].rstrip(",") == name.rstrip(",")


@pytest.mark.parametrize("name", NAMES)
def test_a_suggested_name_is_one_word(name, tmp_path, in_tmp_path, capsys):
    (tmp_path / f"dataset {name}").write_text("x")
    assert main(["inspect", f"dataset {name}s"]) == 3
    (hint,) = hints(capsys.readouterr().err)
    guess = re.fullmatch(r"Did you mean (.*)\?", hint)[1]
    assert words(f"flare {guess}") == [f"dataset {name}"]


def test_the_hint_about_an_invalid_value_quotes_the_column(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 4096)
    rows = "".join(f"{i},1\n" for i in range(3000))
    (tmp_path / "t.csv").write_text(f"a; touch b,c\n{rows}x,1\n")
    assert main(["pack", str(tmp_path / "t.csv"), str(tmp_path / "out"), "-q"]) == 4
    (hint,) = hints(capsys.readouterr().err)
    option = re.fullmatch(r"Use (--encode .*) to read the column as text\.", hint)[1]
    assert words(f"flare {option}") == ["--encode", "a; touch b=str"]


def test_findings_of_a_playlist_suggest_the_command_that_rewrites_it(tmp_path):
    out = tmp_path / "a; touch PWNED #"
    with Writer(str(out), columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    (out / "playlist.yaml").write_text("{")
    (found,) = commands.verify(str(out))
    (command,) = quoted_commands(found.hint)
    assert words(command) == ["playlist", str(out), "-o", f"{out}/playlist.yaml"]
