"""Errors of command lines: the complete message, the hint and the exit code are compared."""

import io
import json
import os
import shutil
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli.__main__ import main
from flarecli.model import Settings
from flarecli.write import Writer

GOLDEN = Path(__file__).parents[1] / "fixtures" / "mds"
SKIP = "Use --on-error skip to omit such rows and list them in failed.jsonl."
NULL = (
    "Use --null COL=VALUE or --null fill to store a value in place of a null, or --on-error skip "
    "to omit such rows and list them in failed.jsonl."
)


@pytest.fixture
def here(tmp_path, in_tmp_path):
    (tmp_path / "ok.csv").write_text("k,n,t\na,1,x\nb,2,y\nc,300,z\n")
    return tmp_path


def dataset(path, rows=50):
    with Writer(
        str(path), columns={"n": "int", "t": "str"}, settings=Settings(shard_bytes=1000)
    ) as writer:
        for i in range(rows):
            writer.write({"n": i, "t": "x" * i})


def check_error(capfd, args, code, error, hint=""):
    """Run a command line, and check its exit code, the last lines of stderr, and that stdout is
    empty.
    """
    assert main(args.split(" ")) == code
    out, err = capfd.readouterr()
    want = f"error: {error}\n" + (f"hint: {hint}\n" if hint else "")
    assert err[-len(want) :] == want
    assert "Traceback" not in err
    assert out == ""


def test_a_missing_file_is_reported(here, capfd):
    check_error(capfd, "pack nowhere.parquet out", 3, "nowhere.parquet: no such file or folder")
    check_error(capfd, "inspect nowhere", 3, "nowhere: no such file or folder")
    check_error(
        capfd, "verify nowhere/playlist.yaml", 3, "nowhere/playlist.yaml: no such file or folder"
    )
    assert not (here / "out").exists()


NO_STORE = "nosuch:// addresses are not supported"
STORES = "Use a path, or an http://, https://, s3://, gs://, az:// or hf:// address."


@pytest.mark.parametrize(
    "args",
    [
        "cat nosuch://x",
        "cat ok.csv nosuch://x",
        "inspect nosuch://x",
        "verify nosuch://x",
        "verify ok.csv nosuch://x",
        "verify ok.csv --against nosuch://x",
        "playlist nosuch://x",
        "playlist --check nosuch://x",
        "playlist ok.csv -o nosuch://x",
        "pack nosuch://x out",
        "pack ok.csv nosuch://x",
        "unpack nosuch://x out",
        "pack ok.csv nosuch://x --dry-run",
        "cat nosuch://me:secret@x",
        "pack NoSuch://x out",
    ],
)
def test_an_unknown_scheme_is_reported_as_a_mistyped_address(here, capfd, args):
    check_error(capfd, args, 2, f"nosuch://x: {NO_STORE}", STORES)
    assert not (here / "out").exists()


@pytest.mark.parametrize("args", ["cat nosuch://x/*.mds", "pack nosuch://x/*.csv out"])
def test_an_unknown_scheme_is_not_searched_for_similar_files(here, capfd, args):
    check_error(capfd, args, 2, f"nosuch://x: {NO_STORE}", STORES)


def test_an_unknown_scheme_in_a_list_is_refused_for_safety(here, capfd):
    (here / "list.txt").write_text("nosuch://x/a.csv\n")
    trust = "Pass --allow-local if you trust this dataset."
    check_error(
        capfd,
        "pack list.txt out",
        5,
        "list.txt: line 1: nosuch:// addresses are not allowed in data",
        trust,
    )
    check_error(
        capfd, "pack list.txt out --allow-local", 5, f"list.txt: line 1: {NO_STORE}", STORES
    )


def test_standard_input_is_refused_where_it_is_not_supported(here, capfd):
    for args in ("playlist -", "playlist -o set.yaml -"):
        check_error(
            capfd,
            args,
            2,
            "cannot read from standard input",
            "Write the data to a file and pass its name.",
        )


def test_a_closed_standard_input_is_reported(here, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin", None)  # the state of Python with a closed standard input
    for args in (
        "pack - out",
        "pack - out -0",
        "cat -",
        "unpack - out -f webdataset",
        "unpack - out --fetch data",
    ):
        check_error(capfd, args, 3, "-: standard input is closed")


def test_a_list_of_tables_instead_of_a_dataset_is_reported(here, capfd):
    Path("list.txt").write_text("ok.csv\n")
    for args in (["cat", "list.txt"], ["inspect", "list.txt"], ["verify", "list.txt"]):
        assert main(args) == 0
        err = capfd.readouterr().err
        assert (
            err.splitlines()[0] == "list.txt: reading this table as a single file; "
            "to read its rows, pack it with `flare pack`"
        )
        for more in (["--json"], ["-f", "files"]):
            assert main([*args, *more]) == 0
            assert "reading the table" not in capfd.readouterr().err


def test_an_unknown_column_is_reported(here, capfd):
    check_error(
        capfd,
        "pack ok.csv out --fetch url:image",
        2,
        "--fetch: no column 'url'",
        "Choose from k, n, t.",
    )
    check_error(
        capfd,
        "pack ok.csv out --key id",
        2,
        "--key: no column 'id'",
        "Choose from k, n, t.",
    )
    check_error(
        capfd,
        "pack ok.csv out -c n,x",
        2,
        "--columns: no column 'x'",
        "Choose from k, n, t.",
    )
    check_error(
        capfd,
        "pack ok.csv out --encode x=str",
        2,
        "--encode: no column 'x'",
        "Choose from k, n, t.",
    )
    assert not (here / "out").exists()


def test_duplicate_columns_are_reported(here, capfd):
    (here / "two.csv").write_text("a,a\n1,2\n")
    check_error(
        capfd,
        "pack two.csv out",
        4,
        "two.csv: duplicate column 'a'",
        "Rename one of the columns, or use --csv header=no if the first line contains values.",
    )
    pq.write_table(
        pa.Table.from_arrays([pa.array([1]), pa.array([2])], names=["a", "a"]), "two.parquet"
    )
    check_error(
        capfd,
        "pack two.parquet out",
        4,
        "two.parquet: duplicate column 'a'",
        "Rename one of the columns in the table.",
    )
    check_error(
        capfd,
        "pack ok.csv out --fetch k:t",
        2,
        "two columns would be named 't'",
        "Rename the fetched column: --fetch COLUMN:NAME.",
    )


def test_a_ragged_csv_is_reported(here, capfd):
    (here / "ragged.csv").write_text("a,b\n1,2\n3\n")
    hint = "Quote fields that contain a separator or a newline."
    check_error(
        capfd, "pack ragged.csv out", 4, "ragged.csv: line 3 has 1 field; the header has 2", hint
    )
    (here / "open.csv").write_text('a,b\n1,"2\n3,4\n')
    quotes = 'Put the whole field in quotes, and double each quote inside it: "5"" pipe".'
    check_error(
        capfd,
        "pack open.csv out",
        4,
        "open.csv: line 2: unclosed quote",
        quotes,
    )


def test_an_empty_index_is_reported(here, capfd):
    (here / "none.csv").write_text("")
    (here / "head.csv").write_text("a,b\n")
    pq.write_table(pa.table({"a": pa.array([], pa.int64())}), "none.parquet")
    check_error(capfd, "pack none.csv out", 4, "none.csv: file is empty")
    check_error(capfd, "pack head.csv out", 4, "head.csv: table has no rows")
    check_error(capfd, "pack none.parquet out", 4, "none.parquet: table has no rows")
    check_error(
        capfd,
        "pack ok.csv out --limit 0",
        4,
        "ok.csv: no rows to pack",
        "Check --rows, --where and --limit.",
    )
    assert not (here / "out").exists()


def test_a_null_link_and_a_null_value_are_reported(here, capfd):
    (here / "pic.bin").write_bytes(b"data")
    pq.write_table(
        pa.table({"id": ["a", "b"], "url": ["pic.bin", None], "t": ["x", "y"]}), "null.parquet"
    )
    check_error(
        capfd,
        "pack null.parquet out --fetch url --key id",
        4,
        "null.parquet[1]: b: url is null",
        SKIP,
    )
    pq.write_table(pa.table({"id": ["a", "b"], "t": [None, "y"]}), "value.parquet")
    check_error(capfd, "pack value.parquet out2", 4, "value.parquet[0]: t is null", NULL)
    assert not (here / "out").exists()
    assert not (here / "out2").exists()


def test_a_null_option_without_a_value_is_reported(here, capfd):
    error = "option '--null' requires an argument"
    hint = "Use -0 or --from0 for addresses on stdin that end with NUL."
    check_error(capfd, "pack - out --null", 2, error, hint)


def test_an_empty_target_name_is_reported(here, capfd):
    for command in ("pack ok.csv", "unpack ok.csv"):
        assert main([*command.split(), ""]) == 2
        error = capfd.readouterr().err
        assert error == "error: the name of the output folder is empty\nhint: Specify a folder.\n"


def test_a_target_that_cannot_be_created_is_reported(here, capfd):
    (here / "file").write_text("")
    check_error(
        capfd,
        "pack ok.csv file",
        2,
        "file: expected a folder, got a file",
        "Specify the output folder as the last argument.",
    )
    check_error(capfd, "pack ok.csv file/out", 3, f"{here}/file: is a file; expected a folder")
    hint = "Specify a folder, or a bucket such as s3://bucket/folder."
    check_error(
        capfd,
        "pack ok.csv http://127.0.0.1:9/out",
        2,
        "http://127.0.0.1:9/out: cannot write to a web server",
        hint,
    )


@pytest.mark.skipif(os.geteuid() == 0, reason="permissions do not bind root")
def test_a_target_without_permission_is_reported(here, capfd):
    (here / "locked").mkdir(mode=0o500)
    check_error(capfd, "pack ok.csv locked/out", 3, "locked/out: permission denied")


def test_a_target_that_is_not_empty_is_reported(here, capfd):
    (here / "out").mkdir()
    (here / "out" / "notes.txt").write_text("mine")
    hint = "Use --resume to continue an unfinished pack, --append to add rows, --overwrite to replace a dataset, or specify another folder."
    check_error(capfd, "pack ok.csv out", 2, "out: output folder is not empty", hint)
    check_error(capfd, "pack ok.csv out --resume", 2, "out: output folder is not empty", hint)
    hint = "Specify another folder: --overwrite replaces only output of `flare pack`."
    check_error(capfd, "pack ok.csv out --overwrite", 2, "out: output folder is not empty", hint)
    assert [p.name for p in (here / "out").iterdir()] == ["notes.txt"]


def test_an_unknown_encoding_is_reported(here, capfd):
    main(["pack", "ok.csv", "out", "--encode", "t=txt"])
    out, err = capfd.readouterr()
    lines = err.splitlines()
    assert lines[0] == "error: unknown encoding 'txt'"
    assert lines[1].startswith("hint: Choose one of int, uint8, ")
    assert len(lines) == 2
    assert out == ""


def test_a_value_that_does_not_fit_is_reported(here, capfd):
    check_error(
        capfd,
        "pack ok.csv out --encode n=uint8 --key k",
        4,
        "ok.csv[2]: c: n 300 cannot be stored as uint8 (0 to 255)",
        SKIP,
    )
    assert not (here / "out").exists()


def test_hints_for_a_first_row_that_fails_name_the_option(here, capfd, web):
    (here / "links.csv").write_text(f"url,n\n{web.url('/gone')},x\n")
    skip = ", or use --on-error skip to omit such rows."
    for args, code, error, hint in (
        (
            "--encode n=int",
            4,
            "n 'x' cannot be stored as int (-9223372036854775808 to 9223372036854775807)",
            "Use a different encoding instead of --encode n=int, or use --on-error skip to omit such rows.",
        ),
        (
            "--fetch n",
            3,
            "x: no such file or folder",
            "Check that --fetch names a column of URLs, or of paths relative to the folder of the "
            f"source{skip}",
        ),
        (
            "--fetch url --allow-private",
            3,
            f"{web.url('/gone')}: 404 Not Found",
            f"Check whether the links still exist{skip}",
        ),
    ):
        check_error(capfd, f"pack links.csv out {args}", code, f"links.csv[0]: {error}", hint)
        shutil.rmtree(here / "out", ignore_errors=True)


def test_a_wrong_input_option_is_named_in_the_hint(here, capfd, monkeypatch):
    (here / "dir").mkdir()
    for args, code, error, hint in (
        (
            "ok.csv out --input parquet",
            4,
            "ok.csv: not a parquet file: it does not start with PAR1",
            "If the source is not parquet, change --input.",
        ),
        (
            "ok.csv out --input tar",
            4,
            f"ok.csv: data ends at byte {os.path.getsize('ok.csv')}, without an end marker",
            "The file was damaged or cut short; fetch or pack it again. "
            "If the source is not tar, change --input.",
        ),
        (
            "dir out --input csv",
            2,
            "dir: expected files for --input csv, got a folder",
            "Use a wildcard, such as 'dir/*'.",
        ),
        (
            "ok.csv out --input json",
            2,
            "--input: expected arrow, parquet, jsonl, csv, tsv, lines, tar or files, got 'json'",
            "Did you mean jsonl?",
        ),
    ):
        check_error(capfd, f"pack {args}", code, error, hint)
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"hello, world\nhello\n")))
    hint = (
        "Quote fields that contain a separator or a newline. "
        "If the source is not csv, set its kind with --input."
    )
    check_error(capfd, "pack - out", 4, "-: line 2 has 1 field; the header has 2", hint)


def test_a_value_that_does_not_fit_is_listed_with_on_error_skip(here, capfd):
    assert (
        main(
            [
                "pack",
                "ok.csv",
                "out",
                "--encode",
                "n=uint8",
                "--key",
                "k",
                "--on-error",
                "skip",
                "-q",
            ]
        )
        == 1
    )
    (line,) = (here / "out" / "failed.jsonl").read_text().splitlines()
    told = {
        "file": "ok.csv",
        "row": 2,
        "key": "c",
        "column": "n",
        "kind": "value",
        "reason": "n 300 cannot be stored as uint8 (0 to 255)",
    }
    assert json.loads(line) == told


def test_a_column_that_is_not_text_cannot_be_fetched(here, capfd):
    with Writer(str(here / "data"), columns={"b": "bytes", "n": "int"}) as writer:
        writer.write({"b": b"\xff", "n": 1})
    hint = "Use a text column with --fetch."
    for verb in ("pack", "unpack"):
        for name, type in (("b", "large_binary"), ("n", "int64")):
            error = f"column {name!r}: expected text with addresses, got {type}"
            check_error(capfd, f"{verb} data out --fetch {name}", 2, error, hint)


def test_an_error_in_all_parts_is_reported_for_the_first_part(here, capfd):
    hint = "Did you mean gz? Choose one of br, bz2, gz, snappy, zstd, or NAME:LEVEL."
    line = "pack ok.csv out --part-rows 2 -z gzip"
    check_error(capfd, line, 2, "part 00000: unknown compression 'gzip'", hint)


def test_a_change_of_an_unfinished_pack_recommends_to_finish_the_pack(here, capfd):
    assert main(["pack", "ok.csv", "parts", "--part", "1/2", "-q"]) == 0
    (here / "killed" / ".flare").mkdir(parents=True)
    (here / "killed" / ".flare" / "journal").write_text("{}\n")
    capfd.readouterr()
    for folder, hint in (
        (
            "parts",
            "Run `flare pack … --part K/2` for each missing part, then `flare pack … --join`.",
        ),
        ("killed", "Run the same `flare pack` command again with --resume."),
    ):
        error = f"{folder}: folder contains an unfinished pack"
        for line in (
            f"pack ok.csv {folder} --append",
            f"pack ok.csv {folder} --add-column t",
            f"log {folder}",
            f"drop {folder} -r 0",
            f"compact {folder}",
            f"prune {folder} --keep 1",
        ):
            check_error(capfd, line, 4, error, hint)


@pytest.mark.parametrize("format", ["mds", "webdataset"])
def test_the_report_names_a_failed_file_of_a_list_as_the_list_does(here, capfd, format):
    (here / "a.jpg").write_bytes(b"GIF89a")
    (here / "list.txt").write_text("a.jpg\nb.jpg\nok.csv\n")
    line = ["pack", "list.txt", "out", "-f", format, "--strict", "--input", "lines"]
    assert main([*line, "--on-error", "skip"]) == 1
    reasons = [
        "a.jpg: content does not match the file extension: gif, not jpeg",
        "b.jpg: no such file or folder",
    ]
    _, err = capfd.readouterr()
    assert [line for line in err.splitlines() if line.startswith(("a", "b"))] == reasons
    lines = (here / "out" / "failed.jsonl").read_text().splitlines()
    assert [json.loads(line)["reason"] for line in lines] == reasons
    hint = "Use --on-error skip to omit such rows and list them in failed.jsonl."
    error = f"list.txt[0]: {reasons[0]}"
    check_error(capfd, " ".join(["pack", "list.txt", "out2", *line[3:]]), 4, error, hint)


def test_text_that_is_not_utf8_is_reported(here, capfd):
    (here / "latin.csv").write_bytes(b"a,b\n1,caf\xe9\n")
    check_error(
        capfd,
        "pack latin.csv out",
        4,
        "latin.csv: line 2: byte 9 is not UTF-8",
        "Save the file as UTF-8 text. Otherwise, set its encoding, such as --csv encoding=latin-1.",
    )
    text = pa.Array.from_buffers(pa.string(), 2, pa.array([b"ok", b"\xff\xfe"]).buffers())
    pq.write_table(pa.Table.from_arrays([text], names=["t"]), "latin.parquet")
    check_error(capfd, "pack latin.parquet out", 4, "latin.parquet[1]: t is not UTF-8", SKIP)


def test_a_name_that_leaves_the_folder_is_reported(here, capfd):
    shutil.copytree(GOLDEN / "mds_scalars" / "data", here / "d")
    index = json.loads((here / "d" / "index.json").read_text())
    index["shards"][0]["raw_data"]["basename"] = "../../etc/passwd"
    (here / "d" / "index.json").write_text(json.dumps(index))
    error = (
        "d/index.json: shards[0].raw_data: the name '../../etc/passwd' points outside the folder"
    )
    hint = "Repair the file that contains the name. No file with this name was read or written."
    for command in ("cat d", "inspect d", "unpack d files", "pack d out"):
        check_error(capfd, command, 5, error, hint)
    assert main(["verify", "d"]) == 1
    assert "points outside the folder" in capfd.readouterr().out


def test_a_truncated_shard_is_reported(here, capfd):
    dataset(here / "d")
    shard = here / "d" / "shard.00001.mds"
    size = shard.stat().st_size
    os.truncate(shard, size - 10)
    error = f"d/shard.00001.mds: file is {size - 10} bytes; the listed size is {size}"
    assert main(["cat", "d", "-q"]) == 4
    assert (
        capfd.readouterr().err
        == f"error: {error}\nhint: The file was cut short; fetch or pack it again.\n"
    )
    assert main(["verify", "d"]) == 1
    assert "shard.00001.mds" in capfd.readouterr().out


def test_a_pickle_is_not_decoded(here, capfd):
    shutil.copytree(GOLDEN / "mds_pkl" / "data", here / "d")
    assert main(["cat", "d", "--head", "1"]) == 0
    assert capfd.readouterr().out == '{"p": "<pickle, 21 B, not decoded>"}\n'
    (here / "index.json").write_text(json.dumps([1]))
    (here / "j.csv").write_text("j\n[1]\n")
    check_error(
        capfd,
        "pack j.csv out --encode j=pkl",
        5,
        "column 'j' would be packed as pkl; reading a pickle runs code",
        "Use --encode j=json or --encode j=bytes.",
    )


def test_an_unfinished_pack_is_reported(here, capfd):
    dataset(here / "d")
    (here / "d" / ".flare").mkdir()
    (here / "d" / ".flare" / "journal").write_text("{}\n")
    for command in ("cat d", "inspect d", "unpack d files"):
        check_error(
            capfd,
            command,
            4,
            "d: folder contains an unfinished pack",
            "Run the same `flare pack` command again with --resume.",
        )
    hint = "Run the same command with --resume, or use --overwrite to start again."
    check_error(capfd, "pack ok.csv d", 4, "d: folder contains an unfinished pack", hint)
    assert main(["verify", "d"]) == 1
    assert "folder contains an unfinished pack" in capfd.readouterr().out


def test_an_invalid_playlist_is_reported_despite_a_valid_index(here, capfd):
    dataset(here / "d")
    (here / "d" / "playlist.yaml").write_text("data: [\n")
    for command in ("cat d", "inspect d", "unpack d files", "pack d out"):
        check_error(
            capfd,
            command,
            4,
            "d/playlist.yaml:2:1: not valid YAML: did not find expected node content",
        )
    assert main(["verify", "d"]) == 1
    assert "d/playlist.yaml:2:1" in capfd.readouterr().out


def test_a_column_of_links_is_not_a_column_of_file_names(here, capfd):
    error = "column 'k' contains the addresses for --fetch, so it cannot be the key"
    check_error(
        capfd, "unpack ok.csv files --fetch k:data --key k", 2, error, "Use a different --key."
    )


def test_a_pack_cannot_write_to_stdout(here, capfd):
    error, hint = (
        "shards are written to a folder or a bucket, not to stdout",
        "Specify a folder; use `./-` for a folder named `-`.",
    )
    check_error(capfd, "pack ok.csv -", 2, error, hint)
    check_error(capfd, "pack ok.csv - --part-rows 1", 2, error, hint)
    assert main(["pack", "ok.csv", "./-", "-q"]) == 0
    assert capfd.readouterr().out == "./-/playlist.yaml\n"


def test_options_without_effect_are_refused(here, capfd):
    for option in ("--resize 8", "--quality 9", "--min-size 1", "--max-aspect 2", "--media-info"):
        hint = "Use --fetch to download the files that a column links to."
        check_error(
            capfd,
            f"pack ok.csv out {option}",
            2,
            f"{option.split(' ')[0]}: no column contains files",
            hint,
        )
        check_error(
            capfd,
            f"pack ok.csv out {option} --part-rows 1",
            2,
            f"{option.split(' ')[0]}: no column contains files",
            hint,
        )
    check_error(
        capfd,
        "pack ok.csv out --newline \\r\\n",
        2,
        "--newline: mds shards have no lines",
        "Omit --newline, or use one of these formats: json, csv, tsv and xsv.",
    )
    assert not (here / "out").exists()
    assert main(["pack", "ok.csv", "out", "-f", "csv", "--newline", "\\r\\n", "-q"]) == 0


def test_an_unknown_name_lists_the_known_names(here, capfd):
    check_error(
        capfd,
        "unpack ok.csv files --name {x}",
        2,
        "--name contains the unknown column {x}",
        "Choose from key, row, ext, column, n.",
    )
    (here / "one.csv").write_text("t\na\n")
    check_error(
        capfd,
        "unpack one.csv files --name {x}",
        2,
        "--name contains the unknown column {x}",
        "Choose from key, row, ext, column.",
    )


def test_duplicate_keys_are_reported(here, capfd):
    (here / "dup.csv").write_text("k,n\na,1\nb,2\na,3\n")
    hint = "Use `--on-duplicate first` to keep only the first row of each key, or `--on-duplicate keep` to keep all rows."
    check_error(capfd, "pack dup.csv out --key k", 4, "dup.csv[2]: key 'a' was used in row 0", hint)
    assert main(["pack", "dup.csv", "out", "--key", "k", "--on-duplicate", "first", "-q"]) == 0
    assert main(["cat", "out", "-c", "n"]) == 0
    assert capfd.readouterr().out.endswith('{"n": 1}\n{"n": 2}\n')


def test_standard_input_that_is_not_a_tar_is_reported(here, capfd, monkeypatch):
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"k,n\n" + b"a,1\n" * 200)))
    error = "-[0]: header checksum mismatch at byte 0"
    hint = "The file was damaged or cut short; fetch or pack it again."
    check_error(capfd, "cat - --input tar", 4, error, hint)


def test_verbose_notes_describe_the_source(here, capfd):
    dataset(here / "d", rows=3)
    told = "d/playlist.yaml: stream 'data': format mds, 3 rows in 1 shard\n"
    for command in ("cat d", "inspect d", "verify d", "unpack d files"):
        assert main([*command.split(), "-v"]) == 0
        loud = capfd.readouterr().err
        assert told in loud, command
        assert main([*command.replace("files", "more").split()]) == 0
        assert told not in capfd.readouterr().err


def test_a_link_that_leaves_the_folder_suggests_allow_local(here, capfd):
    (here / "l.csv").write_text("u\nfile:///etc/passwd\n")
    hint = "Pass --allow-local if you trust this dataset, or --on-error skip to omit such rows."
    check_error(
        capfd,
        "pack l.csv out --fetch u",
        5,
        "l.csv[0]: the address 'file:///etc/passwd' points outside the folder",
        hint,
    )


def test_a_resume_with_other_options_is_refused(here, capfd):
    (here / "bad.csv").write_text("k,n\n" + "".join(f"{i},{i}\n" for i in range(100)) + "x,\n")
    assert main(["pack", "bad.csv", "out", "--shard-rows", "10"]) == 4
    capfd.readouterr()
    check_error(
        capfd,
        "pack bad.csv out --shard-rows 20 --resume",
        2,
        "out: the unfinished pack was started with shard_rows 10, not 20",
        "Use --overwrite to start again.",
    )
