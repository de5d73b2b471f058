"""pack: links of an index become shards in the order of the index, with reproducible bytes; lost
rows are reported.
"""

import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli import commands, playlists, read
from flarecli.__main__ import main
from flarecli.errors import FormatError, ReachError, UsageError, ValueFitError
from flarecli.progress import Progress
from flarecli.storage import locate
from flarecli.write.journal import Journal
from tests.commands.packing.note_collector import NoteCollector
from tests.conftest import Web
from tests.outputs import files_of

SECRET = "hunter2"


def body(number):
    return b"\xff\xd8\xff\xe0" + random.Random(number).randbytes(200 + 37 * number % 3000)


class Images(Web):
    """Answers in any order: `/N.jpg` is an image, all other paths are missing."""

    def other_page(self, handler, times):
        time.sleep(0.005 * random.random())
        name = handler.path.partition("?")[0].rpartition("/")[2].partition(".")[0]
        if not name.isdecimal():
            return handler.answer(404, b"no")
        return handler.answer(200, body(int(name)), Content_Type="image/jpeg")


@pytest.fixture(scope="module")
def server():
    images = Images()
    yield images
    images.close()


def index(folder, server, rows=120, bad=()):
    path = Path(folder) / "index.parquet"
    urls = [f"{server.url('')}/{'gone' if i in bad else i}.jpg" for i in range(rows)]
    table = {
        "data_id": [f"k{i:04d}" for i in range(rows)],
        "data_url": urls,
        "caption": [f"é {i}" for i in range(rows)],
        "score": [i / 7 for i in range(rows)],
    }
    pq.write_table(pa.table(table), path, row_group_size=50, write_page_checksum=True)
    return str(path)


LINK = {
    "fetch": ["data_url:image"],
    "key": "data_id",
    "shard_size": 30_000,
    "allow_host": "127.0.0.0/8",
}


def test_links_are_packed_in_the_order_of_the_index(tmp_path, server):
    packed = commands.pack(index(tmp_path, server), f"{tmp_path}/out", **LINK)
    assert (packed.rows, packed.failed, packed.playlist) == (
        120,
        0,
        f"{tmp_path}/out/playlist.yaml",
    )
    assert {c.name: c.encoding for c in packed.columns} == {
        "caption": "str",
        "data_id": "str",
        "image": "jpeg",
        "score": "float64",
    }
    data = read.open(f"{tmp_path}/out")
    assert packed.shards > 3
    for i, row in enumerate(data.rows(range(120))):
        assert row["image"] == body(i)
        assert (row["data_id"], row["caption"]) == (f"k{i:04d}".encode(), f"é {i}".encode())
    (stream,) = data.playlists[0].streams
    assert stream.headers["source"]["address"] == "index.parquet"
    assert set(stream.headers["source"]) == {"address", "xxh3_128", "options"}


def test_the_bytes_do_not_depend_on_the_order_of_arrival(tmp_path, server):
    source = index(tmp_path, server)
    commands.pack(source, f"{tmp_path}/one", jobs=1, **LINK)
    commands.pack(source, f"{tmp_path}/many", jobs=24, **LINK)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "many")


def test_failed_rows_are_skipped_and_listed(tmp_path, server):
    packed = commands.pack(
        index(tmp_path, server, bad={0, 7, 119}), f"{tmp_path}/out", on_error="skip", **LINK
    )
    assert (packed.rows, packed.failed) == (117, 3)
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "failed.jsonl").read_text().splitlines()
    ]
    assert [(line["row"], line["key"]) for line in lines] == [
        (0, "k0000"),
        (7, "k0007"),
        (119, "k0119"),
    ]
    assert all("404" in line["reason"] and "/gone.jpg" in line["reason"] for line in lines)
    assert [
        row["data_id"] for row in read.open(f"{tmp_path}/out").rows([0, 6, -1], ["data_id"])
    ] == [b"k0001", b"k0008", b"k0118"]


def test_a_resume_of_a_finished_pack_reports_the_failed_rows(tmp_path, capsys):
    source = tmp_path / "i.csv"
    source.write_text("n\n1\n300\n2\n")
    argv = ["pack", str(source), f"{tmp_path}/out", "--encode", "n=uint8", "--on-error", "skip"]
    for _ in range(2):
        capsys.readouterr()
        assert main([*argv, "--resume"]) == 1
        lines = capsys.readouterr().err.splitlines()
        assert "1 row failed: value" in lines
    summary = r"packed 2 rows in 1 shard, \d+ B \(2 rows in an earlier run\) in \d+\.\d s"
    assert re.fullmatch(summary, lines[-1])
    assert main([*argv, "--resume", "--json"]) == 1
    assert json.loads(capsys.readouterr().out)["reasons"] == {"value": 1}


def test_the_first_failed_row_ends_the_pack_without_a_dataset(tmp_path, server):
    with pytest.raises(ReachError) as caught:
        commands.pack(index(tmp_path, server, bad={90}), f"{tmp_path}/out", **LINK)
    assert str(caught.value).startswith(f"{tmp_path}/index.parquet[90]: k0090: ")
    assert (
        caught.value.hint == "Use --on-error skip to omit such rows and list them in failed.jsonl."
    )
    assert not {"index.json", "playlist.yaml"} & set(files_of(tmp_path / "out"))


@pytest.mark.parametrize("recorded", [True, False])
def test_a_resumed_pack_has_the_bytes_of_an_uninterrupted_pack(
    tmp_path, server, monkeypatch, recorded
):
    """Interrupt the pack many times, just before or after a shard is recorded in the journal."""
    source = index(tmp_path, server, bad={3, 40, 41, 100})
    complete = commands.pack(source, f"{tmp_path}/whole", on_error="skip", **LINK)
    record_shard = Journal.record_shard

    def interrupting(self, *args):
        if recorded:
            record_shard(self, *args)
        if len(self.shards) >= self.stop:
            raise KeyboardInterrupt
        if not recorded:
            record_shard(self, *args)

    monkeypatch.setattr(Journal, "record_shard", interrupting)
    for stop in (1, 2, complete.shards - 1):
        monkeypatch.setattr(Journal, "stop", stop, raising=False)
        with pytest.raises(KeyboardInterrupt):
            commands.pack(source, f"{tmp_path}/out", on_error="skip", resume=True, **LINK)
        assert not {"index.json", "playlist.yaml"} & set(files_of(tmp_path / "out"))
    monkeypatch.undo()
    second = commands.pack(source, f"{tmp_path}/out", on_error="skip", resume=True, **LINK)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")
    assert (second.rows, second.failed, second.reasons) == (
        complete.rows,
        complete.failed,
        complete.reasons,
    )
    assert second.resumed_rows > 0


def test_a_resume_needs_the_same_access_options_if_they_select_rows(tmp_path, monkeypatch):
    for i in range(12):
        (tmp_path / f"{i}.bin").write_bytes(bytes(50 + i))
    pq.write_table(pa.table({"file": [f"{i}.bin" for i in range(12)]}), tmp_path / "i.parquet")

    def run(out, stop=99, **options):
        with monkeypatch.context() as patch:
            patch.setattr(Journal, "record_shard", _interrupting(stop))
            return commands.pack(
                str(tmp_path / "i.parquet"),
                str(tmp_path / out),
                fetch=["file"],
                shard_rows=2,
                **options,
            )

    less, more = {"max_object": 57}, {"max_object": 58}
    with pytest.raises(KeyboardInterrupt):
        run("out", 2, on_error="skip", **less)
    with pytest.raises(UsageError) as caught:
        run("out", on_error="skip", **more, resume=True)
    assert (
        str(caught.value)
        == f"{tmp_path}/out: the unfinished pack was started with max_object 57, not 58"
    )
    with pytest.raises(UsageError, match="was started with allow_local false, not true(?m:$)"):
        run("out", on_error="skip", **less, allow_local=True, resume=True)
    assert run("out", on_error="skip", max_object=57, jobs=1, retries=0, resume=True).failed == 4
    with pytest.raises(ReachError, match="larger than the limit of 57 bytes(?m:$)"):
        run("fails", **less)
    assert run("fails", resume=True).rows == 12


def _interrupting(stop):
    record_shard = Journal.record_shard

    def interrupting(self, *args):
        record_shard(self, *args)
        if len(self.shards) >= stop:
            raise KeyboardInterrupt

    return interrupting


def test_a_pack_killed_at_any_time_is_resumed(tmp_path, server):
    source = index(tmp_path, server, bad={5, 50})
    options = [
        "--fetch",
        "data_url:image",
        "--key",
        "data_id",
        "--shard-size",
        "30kB",
        "--on-error",
        "skip",
        "--resume",
        "-q",
        "--allow-private",
    ]
    assert main(["pack", source, f"{tmp_path}/whole", *options]) == 1
    rng = random.Random(7)
    for round in range(4):
        out = f"{tmp_path}/out{round}"
        arguments = ["pack", source, out, *options]
        process = subprocess.Popen(
            [sys.executable, "-m", "flarecli", *arguments],
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
        )
        time.sleep(rng.uniform(0.3, 1.2))
        process.send_signal(signal.SIGKILL)
        process.wait()
        if os.path.exists(f"{out}/.flare/journal"):
            assert list(commands.verify(out))
        assert main(arguments) == 1
        assert files_of(out) == files_of(tmp_path / "whole")


def test_resuming_a_finished_pack_returns_the_same_result_and_refuses_another_source(
    tmp_path, server
):
    source = index(tmp_path, server)
    first = commands.pack(source, f"{tmp_path}/out", **LINK)
    before = files_of(tmp_path / "out")
    second = commands.pack(source, f"{tmp_path}/out", resume=True, **LINK)
    assert (second.rows, second.shards, second.bytes, second.playlist) == (
        first.rows,
        first.shards,
        first.bytes,
        first.playlist,
    )
    with pytest.raises(
        UsageError,
        match="the folder contains a dataset from a different source or with different options(?m:$)",
    ):
        commands.pack(source, f"{tmp_path}/out", resume=True, limit=3, **LINK)
    assert files_of(tmp_path / "out") == before


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"where": "score > 16"}, range(113, 120)),
        ({"where": "SELECT * FROM dataframe WHERE data_id LIKE '%5' AND score < 4"}, [5, 15, 25]),
        ({"limit": 4}, range(4)),
        ({"where": "score > 10", "limit": 2}, [71, 72]),
    ],
)
def test_where_limit_and_columns_select_rows(tmp_path, server, options, expected):
    commands.pack(index(tmp_path, server), f"{tmp_path}/out", columns=["data_id"], **options)
    assert [row["data_id"] for row in read.open(f"{tmp_path}/out")] == [
        f"k{i:04d}" for i in expected
    ]


def test_a_shuffle_keeps_every_row_and_depends_on_the_seed(tmp_path, server):
    source = index(tmp_path, server)
    orders = []
    for name, seed in (("a", 1), ("b", 1), ("c", 2)):
        commands.pack(source, f"{tmp_path}/{name}", columns=["data_id"], shuffle=seed)
        orders.append([row["data_id"] for row in read.open(f"{tmp_path}/{name}")])
    assert orders[0] == orders[1] != orders[2]
    assert sorted(orders[0]) == sorted(orders[2]) == [f"k{i:04d}" for i in range(120)]


def test_a_dry_run_writes_nothing(tmp_path, server):
    would = commands.pack(index(tmp_path, server, rows=20), f"{tmp_path}/out", dry_run=True, **LINK)
    assert not (tmp_path / "out").exists()
    did = commands.pack(index(tmp_path, server, rows=20), f"{tmp_path}/out", **LINK)
    assert (would.rows, would.columns, would.estimated, would.dry_run) == (
        did.rows,
        did.columns,
        False,
        True,
    )
    assert would.shards == did.shards
    large = commands.pack(index(tmp_path, server), f"{tmp_path}/out2", dry_run=True, **LINK)
    assert (large.rows, large.estimated) == (120, True)


@pytest.mark.parametrize("options", [{}, {"part_rows": 1}, {"part": "1/2"}], ids=str)
def test_a_dry_run_refuses_the_targets_that_a_pack_refuses(tmp_path, options):
    source, full = tmp_path / "t.csv", tmp_path / "full"
    source.write_text("n\n1\n2\n")
    full.mkdir()
    (full / "mine").write_text("x")
    for out in (source, full):
        errors = []
        for dry_run in (True, False):
            with pytest.raises(UsageError) as caught:
                commands.pack(str(source), str(out), dry_run=dry_run, **options)
            errors.append((str(caught.value), caught.value.hint))
        assert errors[0] == errors[1]
        reason = "expected a folder, got a file" if out is source else "output folder is not empty"
        assert errors[0][0] == f"{out}: {reason}"
    assert os.listdir(full) == ["mine"]
    assert source.read_text() == "n\n1\n2\n"


@pytest.mark.parametrize("format", ["mds", "ffrecord", "webdataset", "tfrecord", "granular"])
@pytest.mark.parametrize(
    "options",
    [{"shard_size": 100_000}, {"shard_rows": 3}, {"part_rows": 4, "shard_size": 130_000}],
    ids=str,
)
def test_a_dry_run_of_few_rows_has_the_numbers_of_the_pack(tmp_path, format, options):
    """Rows of 60 kB fill shards badly, so the total size alone does not determine their number."""
    table, out = pa.table({"b": pa.array([bytes(60_000)] * 10)}), f"{tmp_path}/out"
    would = commands.pack(table, out, format=format, dry_run=True, **options)
    did = commands.pack(table, out, format=format, **options)
    assert (would.rows, would.shards) == (did.rows, did.shards)
    assert would.estimated or would.bytes == did.bytes
    assert would.estimated == (format not in ("mds", "ffrecord"))


def test_a_dry_run_tries_the_first_links_and_reports_how_many_succeeded(tmp_path, server):
    urls = [f"{server.url('')}/{i % 5 or 'gone'}.jpg" for i in range(1, 101)]
    pq.write_table(pa.table({"url": urls}), tmp_path / "i.parquet")
    options = {"fetch": ["url"], "allow_host": "127.0.0.0/8", "dry_run": True}
    index, out, notes = f"{tmp_path}/i.parquet", f"{tmp_path}/out", NoteCollector()
    would = commands.pack(index, out, progress=notes, on_error="skip", **options)
    assert notes.notes == ["tried the links of 32 rows: 26 succeeded, 6 failed"]
    assert (would.rows, would.failed, would.reasons) == (100, 6, {"missing": 6})
    assert [key for key, _ in notes.failures] == [f"{index}[{i}]" for i in range(4, 32, 5)]
    notes = NoteCollector()
    with pytest.raises(
        ReachError, match=r"i.parquet\[4\]: http://.*/gone.jpg: 404 Not Found(?m:$)"
    ):
        commands.pack(index, out, progress=notes, **options)
    assert notes.notes == ["tried the links of 32 rows: 26 succeeded, 6 failed"]
    assert len(notes.failures) == 6
    assert not os.path.exists(out)


def test_a_dry_run_does_not_try_links_that_the_pack_would_refuse(tmp_path, server):
    before = len(server.requests)
    (tmp_path / "i.csv").write_text(f"url\n{server.url('')}/1.jpg\n")
    notes = NoteCollector()
    options = {"fetch": ["url"], "dry_run": True, "on_error": "skip", "progress": notes}
    would = commands.pack(f"{tmp_path}/i.csv", f"{tmp_path}/out", **options)
    assert would.reasons == {"unsafe": 1}
    assert notes.notes[-1] == "tried the links of 1 row: 0 succeeded, 1 failed"
    assert len(server.requests) == before


def test_a_dataset_is_converted_without_recoding(tmp_path, server):
    commands.pack(index(tmp_path, server), f"{tmp_path}/out", **LINK)
    packed = commands.pack(
        f"{tmp_path}/out",
        f"{tmp_path}/zipped",
        compress="zstd:5",
        hash=["sha1"],
        columns=["image", "score"],
    )
    assert {c.name: c.encoding for c in packed.columns} == {"image": "jpeg", "score": "float64"}
    one, two = read.open(f"{tmp_path}/out"), read.open(f"{tmp_path}/zipped")
    assert one.rows(range(120), ["image", "score"]) == two.rows(range(120))
    assert list(commands.verify(f"{tmp_path}/zipped")) == []


def test_relative_links_start_at_the_index_and_may_not_leave_its_folder(tmp_path):
    (tmp_path / "d" / "pics").mkdir(parents=True)
    (tmp_path / "secret.txt").write_text(SECRET)
    (tmp_path / "d" / "pics" / "a.txt").write_text("é")
    (tmp_path / "d" / "i.csv").write_text(
        "url\npics/a.txt\n../secret.txt\nfile:///etc/hostname\npics/none.txt\n"
    )
    packed = commands.pack(f"{tmp_path}/d/i.csv", f"{tmp_path}/out", fetch=["url"], on_error="skip")
    assert (packed.rows, packed.failed) == (1, 3)
    assert read.open(f"{tmp_path}/out")[0] == {"url": "é"}
    assert not any(SECRET.encode() in data for data in files_of(tmp_path / "out").values())


def test_secrets_in_links_are_not_in_the_output(tmp_path, server, capfd):
    port = server.port
    (tmp_path / "i.csv").write_text(
        f"url\nhttp://user:{SECRET}@127.0.0.1:{port}/gone.jpg?X-Amz-Signature={SECRET}\nhttp://127.0.0.1:{port}/1.jpg?sig={SECRET}\n"
    )
    from flarecli.__main__ import main

    assert (
        main(
            [
                "pack",
                f"{tmp_path}/i.csv",
                f"{tmp_path}/out",
                "--fetch",
                "url:image",
                "--on-error",
                "skip",
                "-v",
                "--allow-private",
            ]
        )
        == 1
    )
    out, err = capfd.readouterr()
    assert SECRET not in out + err
    assert not any(SECRET.encode() in data for data in files_of(tmp_path / "out").values())


def test_a_column_of_addresses_that_is_not_fetched_is_a_note(tmp_path, server):
    notes = []

    class Notes(Progress):
        def note(self, text, verbose=False):
            if not verbose:
                notes.append(text)

    commands.pack(index(tmp_path, server), f"{tmp_path}/out", progress=Notes())
    assert notes == [
        "column 'data_url' contains addresses; add --fetch data_url to pack the linked files"
    ]
    notes.clear()
    (tmp_path / "b.csv").write_text(
        "n,s,f,g,t\n1,s3://b/x,FILE:///x,gs://b/x,see http://x\n2,https://h/x,hf://x,az://x,t\n"
    )
    commands.pack(f"{tmp_path}/b.csv", f"{tmp_path}/b", progress=Notes())
    assert notes == [
        f"column {name!r} contains addresses; add --fetch {name} to pack the linked files"
        for name in "sfg"
    ]


def test_a_flipped_bit_in_an_index_is_detected(tmp_path):
    path = tmp_path / "i.parquet"
    pq.write_table(
        pa.table({"t": [f"row {i}" for i in range(5000)]}),
        path,
        write_page_checksum=True,
        compression="none",
        use_dictionary=False,
    )
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 4
    path.write_bytes(data)
    with pytest.raises(FormatError, match=r"i.parquet: not valid parquet: .*CRC"):
        commands.pack(str(path), f"{tmp_path}/out")
    assert not (tmp_path / "out").exists()


def test_the_playlist_lists_every_file_it_needs(tmp_path, server):
    commands.pack(index(tmp_path, server, bad={1}), f"{tmp_path}/out", on_error="skip", **LINK)
    result = playlists.read(locate(f"{tmp_path}/out/playlist.yaml"))
    (stream,) = result.streams
    assert result.protected
    assert {*stream.urls, *stream.files, "playlist.yaml"} == set(files_of(tmp_path / "out"))


def test_the_column_of_links_may_be_the_key(tmp_path, server):
    source = index(tmp_path, server, bad={2})
    options = {
        "fetch": ["data_url:image"],
        "key": "data_url",
        "encode": {"score": "int8"},
        "on_error": "skip",
        "limit": 9,
        "allow_host": "127.0.0.0/8",
    }
    packed = commands.pack(source, f"{tmp_path}/out", **options)
    assert (packed.rows, packed.failed) == (2, 7)  # 0/7 and 7/7 are whole numbers
    lines = [
        json.loads(line) for line in (tmp_path / "out" / "failed.jsonl").read_text().splitlines()
    ]
    assert [(line["row"], line["kind"]) for line in lines] == [
        (i, "missing" if i == 2 else "value") for i in range(9) if i % 7
    ]
    assert lines[1]["key"] == server.url("/gone.jpg")


def test_links_of_unselected_columns_are_not_fetched(tmp_path, server):
    packed = commands.pack(
        index(tmp_path, server, bad={0}), f"{tmp_path}/out", columns=["caption"], **LINK
    )
    assert (packed.rows, packed.failed) == (120, 0)


def test_an_unfinished_pack_is_resumed_for_any_spelling_of_its_source(
    tmp_path, server, in_tmp_path
):
    source = index(tmp_path, server)
    commands.pack(source, f"{tmp_path}/whole", columns=["caption"])
    assert commands.pack("./index.parquet", "whole", columns=["caption"], resume=True).rows == 120


def test_rows_that_a_format_cannot_store_fail_one_by_one(tmp_path):
    pq.write_table(
        pa.table(
            {"id": list("abcde"), "text": ["fine", "one, two", "fine too", "line\nline", ",,"]}
        ),
        tmp_path / "i.parquet",
    )
    with pytest.raises(ValueFitError) as caught:
        commands.pack(str(tmp_path / "i.parquet"), str(tmp_path / "out"), format="csv", key="id")
    assert (
        str(caught.value)
        == f"{tmp_path}/i.parquet[1]: b: column 'text': value contains the separator ','"
    )
    packed = commands.pack(
        str(tmp_path / "i.parquet"), str(tmp_path / "skip"), format="csv", key="id", on_error="skip"
    )
    assert (packed.rows, packed.failed) == (2, 3)
    assert [
        json.loads(line)["key"]
        for line in (tmp_path / "skip" / "failed.jsonl").read_text().splitlines()
    ] == ["b", "d", "e"]
    assert list(commands.verify(str(tmp_path / "skip"))) == []


@pytest.mark.parametrize("options", [{"dry_run": True}, {"part_rows": 10}], ids=str)
def test_a_dry_run_and_parts_treat_rows_that_a_format_cannot_store_like_a_pack(tmp_path, options):
    table = pa.table({"id": list("abcd"), "text": ["fine", "one, two", "fine too", ",,"]})
    pq.write_table(table, tmp_path / "i.parquet")
    source, fixed = str(tmp_path / "i.parquet"), {"format": "csv", "key": "id", **options}
    with pytest.raises(ValueFitError) as caught:
        commands.pack(source, str(tmp_path / "out"), **fixed)
    error, hint = (
        f"{source}[1]: b: column 'text': value contains the separator ','",
        caught.value.hint,
    )
    assert str(caught.value).removeprefix("part 00000: ") == error
    assert hint == (
        "Use -f json or -f mds, which can store any text, or use -f xsv with another --separator "
        "or --newline, or use --on-error skip to omit such rows."
    )
    packed = commands.pack(source, str(tmp_path / "skip"), on_error="skip", **fixed)
    assert packed.failed == 2
    assert packed.rows == (4 if packed.dry_run else 2)


@pytest.mark.parametrize("options", [{"dry_run": True}, {"part_rows": 10}, {}], ids=str)
def test_nulls_are_not_failures_in_a_format_that_stores_nulls(tmp_path, options):
    pq.write_table(pa.table({"id": ["a", None], "n": [1, None]}), tmp_path / "i.parquet")
    packed = commands.pack(
        str(tmp_path / "i.parquet"), str(tmp_path / "out"), format="tfrecord", **options
    )
    assert (packed.rows, packed.failed) == (2, 0)


@pytest.mark.parametrize("dry_run", [True, False])
def test_a_dry_run_counts_skipped_duplicates(tmp_path, dry_run):
    pq.write_table(pa.table({"id": list("abac")}), tmp_path / "i.parquet")
    packed = commands.pack(
        str(tmp_path / "i.parquet"),
        str(tmp_path / "out"),
        key="id",
        on_duplicate="first",
        dry_run=dry_run,
    )
    assert (packed.rows, packed.duplicates) == (3, 1)


def test_progress_counts_rows_and_their_stored_bytes(tmp_path):
    class Counts(Progress):
        rows = bytes = 0

        def advance(self, rows, bytes):
            self.rows, self.bytes = self.rows + rows, self.bytes + bytes

    pq.write_table(
        pa.table({"n": range(9000), "text": [f"{i}" * (i % 7) for i in range(9000)]}),
        tmp_path / "index.parquet",
    )
    seen = Counts()
    done = commands.pack(str(tmp_path / "index.parquet"), str(tmp_path / "out"), progress=seen)
    (chunk,) = playlists.read(locate(done.playlist)).streams[0]
    with chunk.at.store.opened(chunk.at.path) as fd:
        start = int.from_bytes(
            os.pread(fd, 4, 4), "little"
        )  # of the first row, after the table of offsets and the config
    assert (seen.rows, seen.bytes) == (9000, done.bytes - start + 4 * 9000)
