"""Common mistakes on real commands, with the complete printed output."""

import os
import shutil
import subprocess
import sys

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli.__main__ import main

COMMANDS = "Choose one of pack, unpack, inspect, verify, playlist, cat, drop, compact, log, prune."


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("mistakes")
    pq.write_table(pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"]}), folder / "first.parquet")
    (folder / "files").mkdir()
    (folder / "empty").mkdir()
    for name in ("a.jpg", "a.txt", "b.jpg"):
        (folder / "files" / name).write_bytes(b"x")
    flarecli.pack(str(folder / "first.parquet"), str(folder / "out"))
    return folder


@pytest.fixture
def run_line(place, monkeypatch, capfd):
    """Run a command line in the folder, and return its exit code and stderr."""
    monkeypatch.chdir(place)

    def run(line):
        code = main(line.split())
        printed = capfd.readouterr()
        assert printed.out == ""
        return code, printed.err

    return run


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("pakc first.parquet new", "unknown command 'pakc'", f"Did you mean pack? {COMMANDS}"),
        ("convert out new", "unknown command 'convert'", f"Did you mean pack? {COMMANDS}"),
        ("ls out", "unknown command 'ls'", f"Did you mean inspect? {COMMANDS}"),
        ("help", "unknown command 'help'", "Run `flare --help`, or `flare COMMAND --help`."),
        ("--verion", "no such option: --verion", "Did you mean --version? Run `flare --help`."),
        (
            "pack a b --shardsize 1MB",
            "no such option: --shardsize",
            "Did you mean --shard-size? Run `flare pack --help`.",
        ),
        (
            "cat out -c id -c text",
            "--columns is set twice",
            "Separate values by commas, such as 3,1,4 or id,score.",
        ),
        (
            "cat out -r 1 --rows 2",
            "--rows is set twice",
            "Separate values by commas, such as 3,1,4 or id,score.",
        ),
        ("cat out --where id=1 --where id=2", "--where is set twice", "Use the option only once."),
        (
            "cat out -c Txt",
            "--columns: no column 'Txt'",
            "Did you mean text? Choose from id, text.",
        ),
        (
            "cat out --where txt='a'",
            "--where: no column 'txt'",
            "Did you mean text? Choose from id, text.",
        ),
        (
            "pack first.parquet new --key idd",
            "--key: no column 'idd'",
            "Did you mean id? Choose from id, text.",
        ),
        ("cat out --raw txt", "--raw: no column 'txt'", "Did you mean text? Choose from id, text."),
        (
            "unpack out new --key idd",
            "--key: no column 'idd'",
            "Did you mean id? Choose from id, text.",
        ),
        (
            "pack first.parquet out --add-column score",
            "--add-column: no column 'score'",
            "Choose from id, text.",
        ),
        (
            "pack first.parquet new --csv delimeter=;",
            "--csv: unknown key 'delimeter'",
            "Did you mean delimiter? Choose from the keys delimiter, header, quote, null,",
        ),
        (
            "pack first.parquet new -r 0:2",
            "first.parquet: rows of a table cannot be selected by number",
            "Use --where or --limit.",
        ),
        (
            "pack files new -r 0:2",
            "files: rows of a folder cannot be selected by number",
            "Use --where or --limit.",
        ),
        (
            "pack first.parquet new --part 5/4",
            "--part: expected K/N with K from 1 to N, got '5/4'",
            "Parts are numbered from 1, so 3/7 is the third of seven.",
        ),
        (
            "pack first.parquet new --shard-size 64",
            "--shard-size: '64' without a unit means 64 bytes",
            "Use 64MB; for 64 bytes, use 64B.",
        ),
        (
            "cat first.parquet --timeout 5x",
            "--timeout: invalid duration '5x'",
            "Use a form such as 30s, 10m or 2h.",
        ),
        (
            "prune out",
            "--keep is required",
            "Add the number of versions to keep, such as --keep 10.",
        ),
        (
            "pack first.parquet new -f arrow",
            "the format `arrow` is read-only",
            "Use -f mds or -f json, or choose another --format.",
        ),
        (
            "pack first.parquet new -z gzip",
            "unknown compression 'gzip'",
            "Did you mean gz? Choose one of br, bz2, gz, snappy, zstd, or NAME:LEVEL.",
        ),
        (
            "inspect out --field row",
            "unknown field 'row'",
            "Did you mean rows? The fields are address, format, rows, shards, bytes,",
        ),
        (
            "pack first.parquet new --fetch text:",
            "--fetch: expected COLUMN or COLUMN:NAME, got 'text:'",
            "Use COLUMN:NAME to store the downloaded bytes in column NAME (default: COLUMN).",
        ),
        (
            "unpack out new --name ../{key}.{ext}",
            "--name '../{key}.{ext}': the file name points outside the folder",
            "Use a pattern like '{key}.{ext}' or 'a/{key}.{ext}'.",
        ),
        (
            "verify out --quick --decode",
            "--decode and --quick cannot be combined",
            "Omit one of these options: --quick reads only headers, but --decode reads every value.",
        ),
        (
            "playlist out --reindex",
            "out/index.json: index already exists",
            "Delete the index first if `flare verify` reports it as damaged.",
        ),
        (
            "pack first.parquet first.parquet",
            "first.parquet: expected a folder, got a file",
            "Specify the output folder as the last argument.",
        ),
        (
            "pack first.parquet files --overwrite",
            "files: output folder is not empty",
            "Specify another folder: --overwrite replaces only output of `flare pack`.",
        ),
        (
            "unpack out files --overwrite",
            "files: output folder is not empty",
            "Specify another folder: --overwrite replaces only output of `flare unpack`.",
        ),
        (
            "pack files new -c jpg",
            "files: no column 'jpg'",
            "For .jpg files, use column 'image'.",
        ),
        (
            "cat out --to json",
            "--to: expected jsonl, csv, tsv, table, arrow or parquet, got 'json'",
            "Did you mean jsonl?",
        ),
        (
            "pack first.parquet new --encode id=string",
            "unknown encoding 'string'",
            "Did you mean str? Choose one of int, uint8,",
        ),
    ],
)
def test_mistakes_are_reported_with_a_suggestion(run_line, line, error, hint):
    code, err = run_line(line)
    assert code == 2
    assert err.startswith(f"error: {error}\nhint: {hint}")
    assert err.count("\n") == 2


@pytest.mark.parametrize(
    ("line", "error"),
    [
        ("playlist out --rebase x", "--rebase: expected OLD=NEW, got 'x'"),
        ("playlist out --header x", "--header: expected K=V, got 'x'"),
        (
            "pack first.parquet out --append --overwrite",
            "--append and --overwrite cannot be combined",
        ),
        ("cat out --limit x", "--limit: expected a whole number, got 'x'"),
        ("cat out -r 3", "row 3 is outside the data, which has 3 rows"),
        (
            "cat out --sample 200%",
            "--sample: expected a count or a share such as 100 or 1%, got '200%'",
        ),
        ("pack first.parquet new --quality 500", "--quality: expected 1 to 100, got 500"),
    ],
)
def test_a_mistake_whose_message_contains_the_solution_has_no_hint(run_line, line, error):
    assert run_line(line) == (2, f"error: {error}\n")


def test_a_missing_web_address_is_reported(run_line, web):
    address = web.url("/gone.parquet")
    for line in (f"inspect {address}", f"cat {address}", f"pack {address} new"):
        assert run_line(line) == (3, f"error: {address}: 404 Not Found\n")


_LIMITED = """
mkdir full readonly
mount -t tmpfs -o size=64k tmpfs full && mount -t tmpfs -o ro tmpfs readonly
exec "$0" -m flarecli "$@"
"""


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        ("pack {source} readonly/out -q", "readonly/out: read-only file system", ""),
        ("unpack {out} readonly/out -q", "readonly/out: read-only file system", ""),
        ("inspect {out} --html readonly/x.html", "readonly/x.html: read-only file system", ""),
        ("verify {out} --report readonly/x.xml", "readonly/x.xml: read-only file system", ""),
        (
            "pack numbers.csv full/out -q",
            "full/out/shard.00000.mds: the disk is full: No space left on device",
            "Free disk space, then run the same command again, with --resume if the command has this option.",
        ),
    ],
)
def test_a_full_and_a_read_only_disk_are_reported(place, tmp_path, line, error, hint):
    can_mount = ["unshare", "--mount", "mount", "-t", "tmpfs", "tmpfs", str(tmp_path)]
    if shutil.which("unshare") is None or subprocess.run(can_mount, check=False).returncode:
        pytest.skip("only root can mount a file system, with unshare of util-linux")
    (tmp_path / "numbers.csv").write_text(
        "n,text\n" + "".join(f"{i},text\n" for i in range(20_000))
    )
    args = line.format(source=place / "first.parquet", out=place / "out").split()
    ran = subprocess.run(
        ["unshare", "--mount", "sh", "-c", _LIMITED, sys.executable, *args],
        capture_output=True,
        text=True,
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        timeout=120,
    )
    expected = f"error: {error}\n" + (f"hint: {hint}\n" if hint else "")
    assert (ran.returncode, ran.stdout, ran.stderr) == (3, "", expected)


@pytest.mark.parametrize(
    ("line", "error", "hint"),
    [
        (
            "pack new first.parquet",
            "new: no such file or folder",
            "OUT is the last argument: `flare pack first.parquet new`.",
        ),
        (
            "pack first.parqet new",
            "first.parqet: no such file or folder",
            "Did you mean first.parquet?",
        ),
        (
            "pack frst.parquet new",
            "frst.parquet: no such file or folder",
            "Did you mean first.parquet?",
        ),
        ("unpack ./ot new", "./ot: no such file or folder", "Did you mean ./out?"),
        ("inspect fils/a.jpg", "fils/a.jpg: no such file or folder", "Did you mean files/a.jpg?"),
        (
            "verify out --against out/playlst.yaml",
            "out/playlst.yaml: no such file or folder",
            "Did you mean out/playlist.yaml?",
        ),
        (
            "cat out/playlist.yml",
            "out/playlist.yml: no such file or folder",
            "Did you mean out/playlist.yaml?",
        ),
        (
            "cat out/playlist.yaml/",
            "out/playlist.yaml: is a file, not a folder",
            "Remove the slash at the end.",
        ),
        (
            "cat out/index.json/x",
            "out/index.json/x: no such file or folder",
            "out/index.json is a file, not a folder.",
        ),
        (
            "cat files/deep/er",
            "files/deep/er: no such file or folder",
            "files exists, but contains no deep.",
        ),
        (
            "cat files/*.png",
            "files/*.png: no matches found",
            "files contains names such as a.jpg, a.txt, b.jpg.",
        ),
        (
            "cat *.csv",
            "*.csv: no matches found",
            "The current folder contains names such as empty, files, first.parquet.",
        ),
        (
            "cat out 5",
            "5: no such file or folder",
            "Select rows with an option: `flare cat SOURCE -r 5`.",
        ),
        (
            "cat s3:/bucket/x",
            "s3:/bucket/x: no such file or folder",
            "Use two slashes: s3://bucket/x",
        ),
        ("pack empty new", "empty: folder is empty", ""),
        ("playlist --check missing.yaml", "missing.yaml: no such file or folder", ""),
    ],
)
def test_a_missing_path_is_reported_with_similar_names(run_line, line, error, hint):
    assert run_line(line) == (3, f"error: {error}\n" + (f"hint: {hint}\n" if hint else ""))


def test_a_missing_shard_is_not_reported_as_mistyped(run_line, place, tmp_path, in_tmp_path, capfd):
    flarecli.pack(str(place / "first.parquet"), str(tmp_path / "out"), shard_rows=1)
    (tmp_path / "out" / "shard.00001.mds").unlink()
    assert main(["cat", "out"]) == 3
    assert capfd.readouterr().err == "error: out/shard.00001.mds: no such file or folder\n"


@pytest.mark.parametrize(
    ("length", "message"),
    [
        (0, "file is empty"),
        (30, "not valid JSON: Unterminated string starting at: line 1 column 14 (char 13)"),
    ],
)
def test_a_truncated_index_can_be_rebuilt(place, tmp_path, in_tmp_path, capfd, length, message):
    flarecli.pack(str(place / "first.parquet"), str(tmp_path / "out"))
    whole = (tmp_path / "out" / "index.json").read_bytes()
    (tmp_path / "out" / "playlist.yaml").unlink()
    (tmp_path / "out" / "index.json").write_bytes(whole[:length])
    assert main(["inspect", "out"]) == 4
    hint = "Fetch it again, or delete it and run `flare playlist out --reindex`."
    assert capfd.readouterr().err == f"error: out/index.json: {message}\nhint: {hint}\n"
    (tmp_path / "out" / "index.json").unlink()
    assert main(["inspect", "out"]) == 4
    hint = "If no shard is missing, run `flare playlist out --reindex` to create the index."
    assert capfd.readouterr().err == f"error: out: found 1 shard, but no index.json\nhint: {hint}\n"
    assert main(["playlist", "out", "--reindex"]) == 0
    assert (tmp_path / "out" / "index.json").read_bytes() == whole


@pytest.mark.parametrize(
    ("name", "reason", "advice"),
    [
        ("x.dat", "unknown extension", "use --input if the file is a table"),
        ("x.XLSX", "workbook", "save its sheets as CSV files to pack their rows"),
    ],
)
def test_a_file_that_is_packed_as_one_row_is_noted(
    tmp_path, in_tmp_path, capfd, name, reason, advice
):
    (tmp_path / name).write_text("PK")
    assert main(["pack", name, "out"]) == 0
    note = f"{name}: {reason}; packing the whole file as one row; {advice}"
    assert capfd.readouterr().err.splitlines()[0] == note


def test_the_help_fits_a_narrow_terminal(run_line, monkeypatch, capfd):
    monkeypatch.setenv("COLUMNS", "40")
    for command in ("pack", "unpack", "inspect", "verify", "playlist", "cat"):
        assert main([command, "--help"]) == 0
        lines = capfd.readouterr().out.splitlines()
        assert max(map(len, lines)) <= 40
        assert "  --retries N" in lines
        assert "        Maximum number of retries per" in lines
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["pack", "--help"]) == 0
    lines = capfd.readouterr().out.splitlines()
    assert lines[0] == "Usage: flare pack [OPTIONS] SOURCE... OUT"
    assert max(map(len, lines)) <= 80
