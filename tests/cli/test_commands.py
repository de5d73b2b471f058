"""The six commands: the options that reach the functions, and the printed results."""

from __future__ import annotations

import importlib
import json
import re
from dataclasses import asdict, dataclass, field
from types import SimpleNamespace

from flarecli.cli.app import COMMANDS
from flarecli.model import Column, Finding


@dataclass
class Packed:
    playlist: str = "out/playlist.yaml"
    format: str = "mds"
    rows: int = 5
    shards: int = 2
    bytes: int = 1234
    failed: int = 0
    reasons: dict = field(default_factory=dict)
    columns: tuple = (Column("id", "str"),)
    dry_run: bool = False
    estimated: bool = False
    resumed_rows: int = 0
    version: int | None = None
    replaced: int = 0
    rewritten_bytes: int = 0

    def as_json(self):
        return {
            **asdict(self),
            "columns": {column.name: column.encoding for column in self.columns},
        }


@dataclass
class Recorder:
    """A command that records its arguments, calls `tell` with the progress, and returns
    `answer`.
    """

    answer: object = None
    tell: object = None

    def __call__(self, *args, **options):
        self.args, self.options = args, options
        if self.tell:
            self.tell(options["progress"])
        return self.answer


NETWORK = {
    "jobs": None,
    "retries": 8,
    "timeout": 30.0,
    "deadline": 600.0,
    "allow_private": False,
    "allow_host": (),
    "allow_local": False,
}
CACHE = {**NETWORK, "cache": None, "cache_limit": 10**10}


def options_of(command, besides=()):
    """Return the options of the last call, except the defaults in `besides`, which are checked."""
    options = {
        name: value for name, value in command.options.items() if name not in ("progress", "stream")
    }
    assert {name: options[name] for name in besides} == dict(besides)
    return {name: value for name, value in options.items() if name not in besides}


def test_the_help_of_every_command_starts_with_its_line_in_the_table():
    for name, text in COMMANDS.items():
        assert (
            importlib.import_module(f"flarecli.cli.{name}").command.__doc__.splitlines()[0] == text
        )


def test_pack_without_options_passes_the_defaults(flare):
    pack = Recorder(Packed())
    assert flare("pack", "a.csv", "b.csv", "out", pack=pack).code == 0
    assert pack.args == (["a.csv", "b.csv"], "out")
    options = options_of(pack)
    assert options == {
        "format": "mds",
        "fetch": (),
        "key": None,
        "columns": None,
        "encode": None,
        "where": None,
        "limit": None,
        "shuffle": None,
        "streams": (),
        "rows": None,
        "shard_size": 1 << 26,
        "shard_rows": None,
        "compress": None,
        "hash": (),
        "separator": None,
        "newline": "\n",
        "on_error": "fail",
        "on_duplicate": "error",
        "dry_run": False,
        "resume": False,
        "overwrite": False,
        "allow_empty": False,
        "allow_missing": False,
        "csv": (),
        "input": None,
        "folder_column": None,
        "part": None,
        "join": False,
        "append": False,
        "add_column": None,
        "replace": False,
        "null": (),
        "from0": False,
        "resize": None,
        "resize_mode": "fit",
        "quality": None,
        "min_size": 0,
        "max_aspect": None,
        "media_info": False,
        "strict": False,
        "part_rows": None,
        "engine": "local",
        **CACHE,
        "max_object": 10**9,
        "per_host": None,
        "user_agent": None,
        "ignore_robots_tag": False,
    }


def test_every_option_of_pack_is_passed(flare):
    pack = Recorder(Packed())
    line = (
        "a.csv out -f mds -s one --stream two -r 1:5 "
        "--fetch u:image --fetch v --key id -c id,u --encode n=int8 --encode t=str --where n>4 --limit 9 "
        "--shard-size 256KiB --shard-rows 3 -z zstd:7 --hash sha1 --hash xxh64 --separator \\t| --newline \\r\\n --on-error skip "
        "--on-duplicate first --dry-run "
        "--resize 640x480 --resize-mode crop --quality 80 --min-size 32 --max-aspect 2.5 --media-info --strict "
        "--input csv --folder-column label --csv delimiter=; --csv null=NA --null fill --null n=0 "
        "--allow-empty --allow-missing -0 -j 5 --retries 2 --timeout 8s --deadline 12s --max-object 1MB --allow-private --allow-local --cache kept --cache-limit 1MB --allow-host 10.0.0.7:80 --allow-host ::1 "
        "--per-host 4 --user-agent mybot/1.0 --ignore-robots-tag"
    )
    expected = {
        "format": "mds",
        "fetch": ["u:image", "v"],
        "key": "id",
        "columns": ["id", "u"],
        "encode": {"n": "int8", "t": "str"},
        "where": "n>4",
        "limit": 9,
        "shard_size": 1 << 18,
        "shard_rows": 3,
        "compress": "zstd:7",
        "hash": ["sha1", "xxh64"],
        "separator": "\t|",
        "newline": "\r\n",
        "on_error": "skip",
        "on_duplicate": "first",
        "dry_run": True,
        "allow_empty": True,
        "allow_missing": True,
        "csv": ["delimiter=;", "null=NA"],
        "input": "csv",
        "folder_column": "label",
        "null": ["fill", "n=0"],
        "from0": True,
        "per_host": 4,
        "user_agent": "mybot/1.0",
        "ignore_robots_tag": True,
        "resize": (640, 480),
        "resize_mode": "crop",
        "quality": 80,
        "min_size": 32,
        "max_aspect": 2.5,
        "media_info": True,
        "strict": True,
        "streams": ["one", "two"],
        "rows": "1:5",
        "jobs": 5,
        "retries": 2,
        "timeout": 8.0,
        "deadline": 12.0,
        "max_object": 10**6,
        "cache": "kept",
        "cache_limit": 10**6,
        "allow_private": True,
        "allow_local": True,
        "allow_host": ["10.0.0.7:80", "::1"],
    }
    alone = {  # options that cannot all be combined
        "--part 2/4 --resume": {"part": (1, 4), "resume": True},
        "--join": {"join": True},
        "--append": {"append": True},
        "--add-column score --replace": {"add_column": "score", "replace": True},
        "--overwrite --shuffle 7": {"overwrite": True, "shuffle": 7},
        "--part-rows 9 --engine ray": {"part_rows": 9, "engine": "ray"},
    }
    others = dict.fromkeys(("part", "add_column", "part_rows", "shuffle"))
    others |= dict.fromkeys(("join", "append", "replace", "overwrite", "resume"), False)
    excluded = {  # options that --add-column excludes: defaults
        "--on-error skip --on-duplicate first ": {"on_error": "fail", "on_duplicate": "error"},
        "-c id,u ": {"columns": None},
        "--media-info ": {"media_info": False},
    }
    for words, values in alone.items():
        given, defaults = line, {}
        if "add_column" in values:
            for flags, default in excluded.items():
                given, defaults = given.replace(flags, ""), defaults | default
        ran = flare("pack", *given.split(), *words.split(), pack=pack)
        assert (ran.code, ran.err) == (0, "")
        assert options_of(pack) == expected | others | {"engine": "local"} | values | defaults


def test_a_variable_sets_a_default_and_a_flag_overrides_it(flare):
    pack = Recorder(Packed())
    settings = {
        "FLARE_SHARD_SIZE": "1MiB",
        "FLARE_JOBS": "7",
        "FLARE_HASH": "sha1 md5",
        "FLARE_RESUME": "1",
        "FLARE_RETRIES": "9",
    }
    assert flare("pack", "a", "out", "--retries", "1", pack=pack, environment=settings).code == 0
    assert (pack.options["shard_size"], pack.options["hash"], pack.options["resume"]) == (
        1 << 20,
        ["sha1", "md5"],
        True,
    )
    assert (pack.options["jobs"], pack.options["retries"]) == (7, 1)


def test_pack_prints_the_playlist_and_a_summary_on_stderr(flare):
    ran = flare("pack", "a", "out", pack=Recorder(Packed()))
    assert (ran.code, ran.out) == (0, "out/playlist.yaml\n")
    assert ran.err.startswith("packed 5 rows in 2 shards, 1.2 kB in ")
    assert ran.err.count("\n") == 1
    ran = flare("pack", "a", "out", "--append", pack=Recorder(Packed(version=3)))
    assert ran.err.startswith("packed 5 rows in 2 shards, 1.2 kB as version 3 in ")
    ran = flare("pack", "a", "out", "-q", pack=Recorder(Packed()))
    assert (ran.code, ran.out, ran.err) == (0, "out/playlist.yaml\n", "")
    # the rate is computed from the printed size, which includes the shards of an earlier run
    advance = lambda progress: progress.advance(5, 10**18)  # noqa: E731
    ran = flare("pack", "a", "out", pack=Recorder(Packed(), advance))
    assert re.fullmatch(r"packed .*, 1\.2 kB in [\d.]+ s \([\d.]+ ([kM]?B)/s\)\n", ran.err)
    ran = flare("pack", "a", "out", "--resume", pack=Recorder(Packed(resumed_rows=2), advance))
    assert re.fullmatch(r"packed .*, 1\.2 kB \(2 rows in an earlier run\) in [\d.]+ s\n", ran.err)
    ran = flare("pack", "a", "out", "--json", pack=Recorder(Packed()))
    assert (ran.code, json.loads(ran.out), ran.err) == (
        0,
        Packed().as_json() | {"columns": {"id": "str"}},
        "",
    )


def test_a_dry_run_prints_the_expected_rows_and_columns(flare):
    pack = Recorder(Packed(dry_run=True))
    assert (
        flare("pack", "a", "out", "--dry-run", pack=pack).out
        == "5 rows in 2 shards, 1.2 kB\ncolumn\tencoding\nid\tstr\n"
    )
    assert (
        flare("pack", "a", "out", "--dry-run", "-q", pack=pack).out
        == "5 rows in 2 shards, 1.2 kB\n"
    )


def test_a_dry_run_prints_about_for_estimated_numbers(flare):
    pack = Recorder(Packed(dry_run=True, estimated=True))
    line = "5 rows in about 2 shards, about 1.2 kB"
    assert flare("pack", "a", "out", "--dry-run", "-q", pack=pack).out == f"{line}\n"
    zipped = flare("pack", "a", "out", "--dry-run", "-q", "-z", "zstd", pack=pack).out
    assert zipped == f"{line} before compression\n"


def failing(progress):
    progress.start("pack", 50)
    for i in range(25):
        progress.failed(f"k{i}\x1b", "http://u:secret@h/x is 404")
    progress.advance(25, 1000)


def test_the_first_failures_are_shown_and_all_are_counted(flare):
    answer = Packed(failed=25, reasons={"404": 24, "empty": 1})
    ran = flare("pack", "a", "out", pack=Recorder(answer, failing))
    assert (ran.code, ran.out) == (1, "out/playlist.yaml\n")
    lines = ran.err.splitlines()
    assert lines[:20] == [f"k{i}\\x1b: http://h/x is 404" for i in range(20)]
    assert lines[20:22] == ["24 rows failed: 404", "1 row failed: empty"]
    assert len(lines) == 23
    for quiet in ("-q", "--json"):
        assert flare("pack", "a", "out", quiet, pack=Recorder(answer, failing)).err == ""


def test_verbose_notes_are_printed_only_with_verbose(flare):
    def tell(progress):
        progress.note("sniffed: jpeg", verbose=True)

    assert "sniffed" not in flare("pack", "a", "out", pack=Recorder(Packed(), tell)).err
    assert "sniffed: jpeg\n" in flare("pack", "a", "out", "-v", pack=Recorder(Packed(), tell)).err


class Verification:
    """Iterator of findings with final counts."""

    def __init__(self, *findings, unprotected=()):
        self._findings, self.unprotected = findings, unprotected
        self.extra = ["x"]
        self.files = self.shards = self.rows = self.bytes = self.findings = self.left = 0

    def __iter__(self):
        for finding in self._findings:
            self.findings += 1
            yield finding
        self.files, self.shards, self.rows, self.bytes = 3, 2, 500, 12_300_000


def test_verify_prints_one_line_for_an_undamaged_dataset(flare):
    ran = flare("verify", "out", verify=Recorder(Verification()))
    assert (ran.code, ran.out, ran.err) == (0, "whole: 3 files, 2 shards, 500 rows, 12.3 MB\n", "")
    ran = flare(
        "verify",
        "out",
        "--quick",
        verify=Recorder(Verification(unprotected=["spec\x1b.json: no checksums"])),
    )
    assert ran.out == "whole: 3 files, 2 shards, 500 rows, 12.3 MB, sizes and headers only\n"
    assert ran.err == "spec\\x1b.json: no checksums\n"


def test_verify_prints_findings_as_they_are_found_and_exits_1(flare):
    damaged = Finding(
        "out/a.mds", "checksum", "fails its \x1bsum", "Fetch it.", row=3, start=120, stop=640
    )
    findings = damaged, Finding("out/b.mds", "missing", "is not there")
    ran = flare("verify", "out", verify=Recorder(Verification(*findings)))
    summary = "2 findings: 3 files, 2 shards, 500 rows, 12.3 MB\n"
    assert (ran.code, ran.err) == (1, "hint: Fetch it.\n")
    assert (
        ran.out
        == "out/a.mds[3]: fails its \\x1bsum (bytes 120-639)\nout/b.mds: is not there\n" + summary
    )
    assert flare("verify", "out", "-q", verify=Recorder(Verification(*findings))).out == summary
    lines = [
        json.loads(line)
        for line in flare(
            "verify", "out", "--json", verify=Recorder(Verification(*findings))
        ).out.splitlines()
    ]
    told = {
        "where": "out/a.mds[3]",
        "row": 3,
        "column": None,
        "kind": "checksum",
        "message": "fails its \x1bsum",
        "hint": "Fetch it.",
    }
    assert lines[0] == {**told, "bytes": [120, 640]}
    assert lines[2] == {
        "files": 3,
        "shards": 2,
        "rows": 500,
        "bytes": 12_300_000,
        "findings": 2,
        "unprotected": [],
        "extra": ["x"],
        "left": 0,
    }


def test_every_option_of_verify_is_passed(flare):
    verify = Recorder(Verification())
    flare(
        "verify",
        "a",
        "b",
        "-f",
        "mds",
        "-s",
        "x",
        "-s",
        "y",
        "--quick",
        "--max-findings",
        "7",
        "-j",
        "3",
        verify=verify,
    )
    assert verify.options["quick"]
    flare(
        "verify",
        "a",
        "b",
        *["-f", "mds", "-s", "x", "-s", "y", "--decode", "--max-findings", "7", "-j", "3"],
        verify=verify,
    )
    options = options_of(verify, {**NETWORK, "jobs": 3})
    assert verify.args == (["a", "b"],)
    assert options == {
        "format": "mds",
        "input": None,
        "csv": (),
        "streams": ["x", "y"],
        "quick": False,
        "decode": True,
        "max_findings": 7,
        "sample": None,
        "part": None,
        "seed": 0,
        "against": None,
        "state": None,
        "max_object": 10**9,
        "duplicates": False,
        "engine": "local",
    }
    more = [
        "--sample",
        "5%",
        "--part",
        "3/7",
        "--seed",
        "9",
        "--against",
        "p.yaml",
    ]
    for words, values in (("--state s", ["s", False]), ("--duplicates", [None, True])):
        assert flare("verify", "a", *more, *words.split(), verify=verify).code == 0
        names = ("sample", "part", "seed", "against", "state", "duplicates")
        assert [verify.options[name] for name in names] == [0.05, (2, 7), 9, "p.yaml", *values]


def test_verify_refuses_invalid_parts_samples_and_reports(flare):
    assert (
        flare("verify", "a", "--part", "8/7").err
        == "error: --part: expected K/N with K from 1 to N, got '8/7'\nhint: Parts are numbered from 1, so 3/7 is the third of seven.\n"
    )
    ran = flare("verify", "a", "--sample", "x")
    assert (ran.code, ran.err) == (
        2,
        "error: --sample: expected a count or a share such as 100 or 1%, got 'x'\n",
    )
    hint = "hint: Use a file name with the suffix .xml (JUnit), .json or .html.\n"
    assert (
        flare("verify", "a", "--report", "x.txt").err
        == f"error: unknown suffix for a report: 'x.txt'\n{hint}"
    )


def test_verify_writes_reports_and_annotations(flare, tmp_path, in_tmp_path):
    finding = Finding("out/a.mds", "checksum", "fails its \x1bsum", "Fetch it.", row=3)
    ran = flare(
        "verify",
        "out",
        "--report",
        "x.json",
        "--report",
        "x.xml",
        "--github",
        "-q",
        verify=Recorder(Verification(finding)),
    )
    assert (
        ran.err
        == "::error file=out/a.mds,title=flare verify%2C checksum::a.mds[3]: fails its \\x1bsum (Fetch it.)\n"
    )
    assert json.loads((tmp_path / "x.json").read_text())["found"][0]["row"] == 3
    assert (tmp_path / "x.xml").read_text().startswith("<?xml")


def test_every_option_of_cat_is_passed(flare):
    cat = Recorder(iter(()))
    line = "a b -f mds -s x -c id,n -r 10:20 --where n>4 --limit 9 --head 3 --tail 4 --sample 1% --seed 5 --shuffle 7 --epoch 2 --rank 0/8"
    assert flare("cat", *line.split(), cat=cat).code == 0
    options = options_of(cat, {**CACHE, "max_object": 10**9})
    assert cat.args == (["a", "b"],)
    assert options == {
        "format": "mds",
        "input": None,
        "csv": (),
        "streams": ["x"],
        "columns": ["id", "n"],
        "rows": "10:20",
        "where": "n>4",
        "limit": 9,
        "head": 3,
        "tail": 4,
        "sample": 0.01,
        "seed": 5,
        "shuffle": 7,
        "epoch": 2,
        "rank": (0, 8),
        "exact": True,
    }


def test_unpack_prints_the_index_and_counts(flare):
    answer = SimpleNamespace(
        files=4,
        bytes=1000,
        rows=5,
        failed=1,
        reasons={"404": 1},
        index="files/index.jsonl",
        as_json=lambda: {"files": 4},
    )
    unpack = Recorder(answer)
    line = "a files -s x -c id -r ::2 --where n>4 --limit 9 --key id --fetch u --name {key}.{ext} --index csv --resume --overwrite --on-error skip"
    ran = flare("unpack", *line.split(), unpack=unpack)
    assert (ran.code, ran.out) == (1, "files/index.jsonl\n")
    assert ran.err.startswith("1 row failed: 404\nunpacked 5 rows into 4 files, 1.0 kB in ")
    defaults = {"max_object": 10**9, "per_host": None, "user_agent": None}
    options = options_of(unpack, {**CACHE, **defaults, "ignore_robots_tag": False})
    assert unpack.args == (["a"], "files")
    assert options == {
        "format": None,
        "input": None,
        "csv": (),
        "streams": ["x"],
        "columns": ["id"],
        "rows": "::2",
        "where": "n>4",
        "limit": 9,
        "key": "id",
        "fetch": ["u"],
        "name": "{key}.{ext}",
        "index": "csv",
        "resume": True,
        "overwrite": True,
        "on_error": "skip",
    }
    assert flare("unpack", "a", "files", "--json", unpack=unpack).out == '{"files": 4}\n'
    assert flare("unpack", "a", "-", unpack=unpack).out == ""
    unpack.tell = lambda progress: unpack.options["stream"].write(b"\xffbytes")
    assert flare("unpack", "a", "-", unpack=unpack).data == b"\xffbytes"
    assert flare("unpack", "a", "-", terminal=True).code == 2


def test_playlist_prints_yaml_or_the_written_file(flare):
    playlist = Recorder("images:\n  content:\n    - a\x1b.mds\n# flare\n")
    ran = flare(
        "playlist",
        "images=a",
        "b",
        "--base",
        "http://h/",
        "--rebase",
        "o=n",
        "--hash",
        "sha1",
        "--header",
        "k=v",
        "--no-open",
        playlist=playlist,
    )
    assert (ran.code, ran.out, ran.err) == (
        0,
        "images:\n  content:\n    - a\\x1b.mds\n# flare\n",
        "",
    )
    options = options_of(playlist, CACHE)
    assert playlist.args == (["images=a", "b"],)
    assert options == {
        "out": None,
        "input": None,
        "csv": (),
        "format": None,
        "base": "http://h/",
        "rebase": {"o": "n"},
        "hash": ["sha1"],
        "header": {"k": "v"},
        "open": False,
        "overwrite": False,
    }
    assert flare("playlist", "a", "-o", "set.yaml", playlist=playlist).out == "set.yaml\n"
    assert flare("playlist", "a", "-o", "-", playlist=playlist).out == ran.out
    assert playlist.options["out"] is None
    assert playlist.options["hash"] == ("xxh3_128",)


def test_playlist_checks_and_compares_playlists(flare):
    findings = Recorder([Finding("set.yaml", "duplicate", "images is named twice", line=3)])
    ran = flare("playlist", "--check", "set.yaml", check_playlist=findings)
    assert (ran.code, ran.out) == (1, "set.yaml:3: images is named twice\n")
    assert flare("playlist", "--check", "set.yaml", check_playlist=Recorder([])).code == 0
    changes = Recorder(SimpleNamespace(added=["c.mds"], removed=["a.mds"], changed=["b.mds"]))
    ran = flare("playlist", "old.yaml", "--diff", "new.yaml", diff_playlists=changes)
    assert (ran.code, ran.out, changes.args[:2]) == (
        1,
        "+ c.mds\n- a.mds\n~ b.mds\n",
        ("old.yaml", "new.yaml"),
    )
    ran = flare("playlist", "old.yaml", "--diff", "new.yaml", "--json", diff_playlists=changes)
    assert json.loads(ran.out) == {"added": ["c.mds"], "removed": ["a.mds"], "changed": ["b.mds"]}
    assert ran.code == 1
    same = Recorder(SimpleNamespace(added=[], removed=[], changed=[]))
    ran = flare("playlist", "old.yaml", "--diff", "new.yaml", diff_playlists=same)
    assert (ran.code, ran.out) == (0, "")
