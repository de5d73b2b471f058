"""Errors of commands, with the complete printed output."""

from __future__ import annotations

import errno
import json
import pickle
import signal
import sys
import traceback

import pytest

from flarecli import errors
from flarecli.__main__ import main

BUG = (
    "hint: This is a bug in flare, not in your data. Please report it with the output of --debug.\n"
)


def raises(error):
    def command(*args, **options):
        raise error

    return command


@pytest.mark.parametrize(
    ("error", "code", "kind"),
    [
        (errors.UsageError, 2, "usage"),
        (errors.ReachError, 3, "reach"),
        (errors.MissingError, 3, "missing"),
        (errors.BusyError, 3, "busy"),
        (errors.FormatError, 4, "format"),
        (errors.IntegrityError, 4, "integrity"),
        (errors.ValueFitError, 4, "value"),
        (errors.UnfinishedError, 4, "unfinished"),
        (errors.UnsafeError, 5, "unsafe"),
        (errors.MissingLibraryError, 6, "library"),
    ],
)
def test_an_error_is_one_line_with_a_hint_and_its_exit_code(flare, error, code, kind):
    command = raises(
        error("ends at byte 7, 9 are needed", where="out/a.mds", hint="Fetch it again.")
    )
    ran = flare("cat", "out", cat=command)
    assert (ran.code, ran.out) == (code, "")
    assert ran.err == "error: out/a.mds: ends at byte 7, 9 are needed\nhint: Fetch it again.\n"
    ran = flare("cat", "out", "--json", cat=command)
    fields = {
        "kind": kind,
        "message": "ends at byte 7, 9 are needed",
        "where": "out/a.mds",
        "row": None,
        "column": None,
        "hint": "Fetch it again.",
        "exit_code": code,
    }
    assert (ran.code, ran.out, json.loads(ran.err)) == (code, "", {"error": fields})
    assert ran.err.count("\n") == 1


def test_the_row_and_the_column_of_an_error_are_keys_of_its_json(flare):
    error = errors.ValueFitError("is null", where="out/a.mds", row=3).of_column("n\x1b")
    ran = flare("cat", "out", "--json", cat=raises(error))
    told = json.loads(ran.err)["error"]
    assert list(told) == ["kind", "message", "where", "row", "column", "hint", "exit_code"]
    assert (told["where"], told["row"], told["column"]) == ("out/a.mds[3]", 3, "n\\x1b")


def test_an_error_without_place_or_hint_is_one_line(flare):
    assert flare("cat", "out", cat=raises(errors.UsageError("no"))).err == "error: no\n"


@pytest.mark.parametrize(
    ("args", "message", "hint"),
    [
        (
            ["pak"],
            "unknown command 'pak'",
            "Did you mean pack? Choose one of pack, unpack, inspect, verify, playlist, cat, drop, compact, log, prune.",
        ),
        (["--nope"], "no such option: --nope", "Run `flare --help`."),
        (["cat"], "missing argument 'SOURCE...'", "Run `flare cat --help`."),
        (
            ["pack", "a"],
            "missing argument: both SOURCE and OUT are required",
            "Run `flare pack --help`.",
        ),
        (
            ["pack", "--null", "-", "out"],
            "missing argument: both SOURCE and OUT are required",
            "Use -0 or --from0 for addresses on stdin that end with NUL.",
        ),
        (
            ["cat", "a", "--heads", "1"],
            "no such option: --heads",
            "Did you mean --head? Run `flare cat --help`.",
        ),
        (["cat", "a", "--head"], "option '--head' requires an argument", "Run `flare cat --help`."),
        (
            ["cat", "a", "--head", "x"],
            "--head: expected a whole number, got 'x'",
            "",
        ),
        (
            ["cat", "a", "--head", "-1"],
            "--head: expected at least 0, got -1",
            "",
        ),
        (
            ["pack", "a", "b", "--shard-size", "3X"],
            "--shard-size: invalid size '3X'",
            "Use a form such as 512K, 64MB or 64MiB.",
        ),
        (
            ["pack", "a", "b", "--shard-size", "64"],
            "--shard-size: '64' without a unit means 64 bytes",
            "Use 64MB; for 64 bytes, use 64B.",
        ),
        (
            ["pack", "a", "b", "--shard-size", " 1023"],
            "--shard-size: '1023' without a unit means 1,023 bytes",
            "Use 1023MB; for 1,023 bytes, use 1023B.",
        ),
        (
            ["pack", "a", "b", "--shard-size", "0.5"],
            "--shard-size: '0.5' without a unit means 0 bytes",
            "Use 0.5MB; for 0 bytes, use 0B.",
        ),
        (
            ["pack", "a", "b", "--timeout", "0s"],
            "--timeout: invalid duration '0s'",
            "Use a form such as 30s, 10m or 2h.",
        ),
        (["pack", "a", "b", "--encode", "x"], "--encode: expected COL=ENC, got 'x'", ""),
        (
            ["pack", "a", "b", "--encode", "x=str", "--encode", "x=int"],
            "--encode: duplicate name 'x'",
            "",
        ),
        (
            ["pack", "a", "b", "-c", "x,,y"],
            "--columns: empty name in 'x,,y'",
            "Separate names by single commas, such as id,score.",
        ),
        (
            ["cat", "a", "--to", "xml"],
            "--to: expected jsonl, csv, tsv, table, arrow or parquet, got 'xml'",
            "",
        ),
        (
            ["cat", "a", "--bytes", "hex"],
            "--bytes: expected sha256 or base64, got 'hex'",
            "",
        ),
        (
            ["cat", "a", "--rank", "8/8"],
            "--rank: expected R/N with R below N, got '8/8'",
            "Ranks are numbered from 0, so 0/8 is the first of eight.",
        ),
        (
            ["cat", "a", "--sample", "101%"],
            "--sample: expected a count or a share such as 100 or 1%, got '101%'",
            "",
        ),
        (
            ["cat", "a", "--raw", "x", "-c", "y"],
            "--raw and --columns cannot be combined, because --raw prints the bytes of one column",
            "Omit --columns.",
        ),
        (
            ["cat", "a", "--raw", "x", "--to", "csv"],
            "--raw and --to cannot be combined, because --raw prints the bytes of one column",
            "Omit --to.",
        ),
        (["playlist"], "missing argument 'SOURCE...'", "Run `flare playlist --help`."),
        (
            ["playlist", "a", "b", "--diff", "c"],
            "--diff: expected one SOURCE, got 2",
            "Specify one SOURCE.",
        ),
        (
            ["playlist", "a", "--diff", "b", "--base", "c"],
            "--diff does not write a playlist; --base has no effect",
            "Omit --base.",
        ),
        (
            ["playlist", "a", "--reindex", "--hash", "sha1"],
            "--reindex does not write a playlist; --hash has no effect",
            "Omit --hash.",
        ),
        (
            ["inspect", "a", "--html", "b", "--field", "rows"],
            "--html and --field cannot be combined",
            "Omit --html or --field.",
        ),
        (
            ["playlist", "a", "--check", "b"],
            "--check accepts one playlist",
            "Remove the other addresses.",
        ),
        (
            ["playlist", "a", "--diff", "b", "--out", "c"],
            "--diff does not write a playlist; --out has no effect",
            "Omit --out.",
        ),
        (
            ["playlist", "--reindex", "a", "--check", "b"],
            "--check does not write a playlist; --reindex has no effect",
            "Omit --reindex.",
        ),
    ],
)
def test_a_wrong_command_line_is_one_line_and_exit_2(flare, args, message, hint):
    ran = flare(*args)
    assert (ran.code, ran.out) == (2, "")
    assert ran.err == f"error: {message}\n" + (f"hint: {hint}\n" if hint else "")
    fields = {
        "kind": "usage",
        "message": message,
        "where": "",
        "row": None,
        "column": None,
        "hint": hint,
        "exit_code": 2,
    }
    with_json = (
        [*args[:1], "--json", *args[1:]]
        if args[0] in ("pack", "inspect", "cat", "playlist")
        else [*args, "--json"]
    )
    assert json.loads(flare(*with_json).err) == {"error": fields}


def test_an_invalid_variable_is_reported_like_a_flag(flare):
    ran = flare("pack", "a", "b", environment={"FLARE_SHARD_SIZE": "much"})
    assert (ran.code, ran.out) == (2, "")
    assert ran.err.splitlines()[0] == "error: --shard-size: invalid size 'much'"


def test_an_unknown_variable_that_resembles_an_option_is_reported(flare):
    settings = {
        "FLARE_SHARDSIZE": "1MiB",
        "FLARE_EPOCHS": "1",  # resembles a variable of `flare cat`
        "FLARE_EPOCH": "1",  # a variable of `flare cat`
        "FLARE_S3": "s3fs",
        "FLARE_HOST_OF_THE_LAB": "x",
        "FLARE_JOBS": "2",
    }
    notes = [
        "unknown variable FLARE_EPOCHS is ignored; did you mean FLARE_EPOCH?",
        "unknown variable FLARE_SHARDSIZE is ignored; did you mean FLARE_SHARD_SIZE?",
    ]
    failing = raises(errors.UsageError("no"))
    assert flare("pack", "a", "b", pack=failing, environment=settings).err.splitlines() == [
        *notes,
        "error: no",
    ]
    ran = flare("pack", "a", "b", "-q", pack=failing, environment=settings)
    assert ran.err == "error: no\n"


def test_json_and_debug_can_be_set_in_the_environment(flare):
    told = flare(
        "cat", "x", environment={"FLARE_JSON": "1"}, cat=raises(errors.UsageError("no"))
    ).err
    assert json.loads(told)["error"]["message"] == "no"
    assert (
        "Traceback"
        in flare(
            "cat", "x", environment={"FLARE_DEBUG": "true"}, cat=raises(errors.UsageError("no"))
        ).err
    )


@pytest.mark.parametrize(
    ("error", "code", "told"),
    [
        (ValueError("x\x1b[31m"), 1, "error: ValueError: x\\x1b[31m\n" + BUG),
        (
            UnicodeDecodeError("utf-8", b"\xff", 0, 1, "no"),
            1,
            "error: UnicodeDecodeError: 'utf-8' codec can't decode byte 0xff in position 0: no\n"
            + BUG,
        ),
        (KeyError("k"), 1, "error: KeyError: 'k'\n" + BUG),
        (
            MemoryError(),
            3,
            "error: not enough memory\nhint: Use fewer --jobs or smaller shards, or allow more memory.\n",
        ),
        (RecursionError("deep"), 4, "error: the data is nested too deeply\n"),
        (
            PermissionError(errno.EACCES, "Permission denied", "out/x"),
            3,
            "error: out/x: Permission denied\n",
        ),
        (OSError(errno.ENOSPC, "No space left on device"), 3, "error: No space left on device\n"),
        (
            ModuleNotFoundError("No module named 'boto.x'", name="boto.x"),
            6,
            "error: the library boto.x is not installed\nhint: Run `pip install boto`.\n",
        ),
        (EOFError("end"), 1, "error: EOFError: end\n" + BUG),
        (GeneratorExit(), 1, "error: GeneratorExit\n" + BUG),
        (KeyboardInterrupt(), 130, "error: interrupted\n"),
    ],
)
def test_unexpected_exceptions_have_no_traceback(flare, error, code, told):
    ran = flare("cat", "out", cat=raises(error))
    assert (ran.code, ran.out, ran.err) == (code, "", told)


@pytest.mark.parametrize("error", [errors.FormatError("broken"), ValueError("broken")])
def test_debug_shows_the_traceback_and_then_the_line(flare, error):
    lines = flare("cat", "out", "--debug", cat=raises(error)).err.splitlines()
    assert lines[0] == "Traceback (most recent call last):"
    assert any(line.startswith("error: ") and line.endswith("broken") for line in lines)


def test_errors_are_escaped_and_have_no_secrets(flare):
    where = "http://user:hunter2@host/a\x1b]0;x\x07?X-Amz-Signature=hunter2"
    ran = flare(
        "cat",
        "x",
        cat=raises(
            errors.MissingError(
                "says \x9b2J‮\r\n[red]x", where=where, hint="See http://u:hunter2@h/."
            )
        ),
    )
    assert (
        ran.err
        == "error: http://host/a\\x1b]0: says \\x9b2J\\u202e\\r\\n[red]x\nhint: See http://h/.\n"
    )


def test_colour_is_used_only_on_terminals_that_allow_it(flare):
    command = raises(errors.UsageError("no", hint="Do."))
    assert (
        flare("cat", "x", terminal=True, cat=command).err
        == "\x1b[31merror:\x1b[0m no\n\x1b[36mhint:\x1b[0m Do.\n"
    )
    for name, value in (("NO_COLOR", "1"), ("TERM", "dumb")):
        assert (
            flare("cat", "x", terminal=True, environment={name: value}, cat=command).err
            == "error: no\nhint: Do.\n"
        )


SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGALRM)


def test_the_command_line_restores_signals_of_its_caller(flare):
    before = (
        [signal.getsignal(number) for number in SIGNALS],
        sys.unraisablehook,
    )
    for _ in range(3):
        assert flare("cat", "x", cat=raises(errors.UsageError("no"))).code == 2
        assert flare("--version").out == "flare 0.1.0\n"
    assert (
        [signal.getsignal(number) for number in SIGNALS],
        sys.unraisablehook,
    ) == before


def test_the_encoding_of_streams_is_restored(monkeypatch):
    import io

    out = io.TextIOWrapper(io.BytesIO(), encoding="latin-1", errors="strict")
    monkeypatch.setattr(sys, "stdout", out)
    assert main(["--version"]) == 0
    assert (out.encoding, out.errors) == ("latin-1", "strict")


def test_a_command_line_can_run_in_a_thread(flare):
    import threading

    codes = []
    thread = threading.Thread(
        target=lambda: codes.append(flare("cat", "x", cat=raises(errors.UsageError("no"))).code)
    )
    thread.start()
    thread.join()
    assert codes == [2]


@pytest.mark.parametrize(
    ("args", "told"),
    [
        (
            ["cat", "x", "--rank", "0/" + "9" * 5000],
            "--rank: expected R/N with R below N, got '0/999",
        ),
        (
            ["cat", "x", "--rank", "0/" + "9" * 30],
            "--rank: expected R/N with R below N, got '0/999",
        ),
        (
            ["cat", "x", "--rank", "²/3"],
            "--rank: expected R/N with R below N, got '²/3'",
        ),
        (
            ["verify", "x", "--part", "1/" + "9" * 5000],
            "--part: expected K/N with K from 1 to N, got '1/999",
        ),
        (
            ["cat", "x", "--sample", "9" * 5000],
            "--sample: expected a count or a share such as 100 or 1%, got '999",
        ),
    ],
)
def test_huge_numbers_are_an_invalid_command_line(args, told, capfd):
    assert main(args) == 2
    error = capfd.readouterr().err
    assert error.startswith(f"error: {told}") and len(error) < 200


def shown(error):
    """Return the lines of a traceback below the frames."""
    return traceback.format_exception_only(error)


def test_a_traceback_shows_the_hint_once_and_the_text_of_the_error_does_not():
    error = errors.UsageError("unknown column", where="out", hint="Use -c id.")
    line = "flarecli.errors.UsageError: out: unknown column\n"
    assert (shown(error), str(error)) == ([line, "hint: Use -c id.\n"], "out: unknown column")
    moved = error.at("in")
    assert shown(moved) == [line.replace("out", "in"), "hint: Use -c id.\n"]
    assert shown(pickle.loads(pickle.dumps(moved))) == shown(moved)
    moved.add_note("row 3 of the sample")
    other = moved.changed(hint="Use -c name.")
    assert shown(other)[1:] == ["hint: Use -c name.\n", "row 3 of the sample\n"]
    assert shown(other.changed(hint=""))[1:] == ["row 3 of the sample\n"]
    assert shown(moved)[1:] == ["hint: Use -c id.\n", "row 3 of the sample\n"]
    assert shown(errors.UsageError("unknown column", where="out")) == [line]


def test_debug_does_not_repeat_the_hint(flare):
    error = errors.UsageError("unknown column", where="out", hint="Use -c id.")
    printed = flare("cat", "out", "--debug", cat=raises(error)).err
    assert printed.count("Use -c id.") == 1
    assert printed.endswith("error: out: unknown column\nhint: Use -c id.\n")
