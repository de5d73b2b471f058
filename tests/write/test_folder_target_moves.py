"""The folder of a pack is moved or deleted, or loses a file, during the pack or before a resume."""

import os
import shutil
import subprocess
import sys
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import pytest

from flarecli import commands
from flarecli.errors import FlareError, IntegrityError, MissingError, ReachError
from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.write import Failure, Writer, parts
from tests.outputs import files_of
from tests.servers import stop_server

COLUMNS = {"n": "int"}
MOVED = "the folder was moved or deleted during the write"
AGAIN = "Run the same command with --resume to write the file again."


def opened(out, **options):
    options = {"settings": Settings(shard_rows=2), **options}
    return Writer(str(out), columns=COLUMNS, **options)


def write(writer, rows):
    for row in range(writer.rows, rows):
        writer.write({"n": row})
        writer._write_samples()


def pack(out, rows, **options):
    with opened(out, **options) as writer:
        write(writer, rows)
    return files_of(out)


def move(out):
    out.rename(out.with_name("moved"))


def exchange(out):
    """Replace the folder of the pack by another folder."""
    out.rename(out.with_name("moved"))
    pack(out, 1)


@pytest.mark.parametrize("how", [move, shutil.rmtree, exchange])
@pytest.mark.parametrize("rows", [0, 1, 5])
def test_a_target_that_was_moved_or_deleted_is_not_created_again(tmp_path, how, rows):
    """Move or delete the folder before or after the first shard; a folder at its path is
    unchanged.
    """
    out = tmp_path / "out"
    with pytest.raises(ReachError) as caught, opened(out) as writer:
        write(writer, rows)
        how(out)
        existing = files_of(out) if out.exists() else None
        write(writer, 9)
    assert str(caught.value) == f"{out}: {MOVED}"
    assert caught.value.exit_code == 3
    assert (files_of(out) if out.exists() else None) == existing


def test_a_moved_target_can_be_resumed_at_its_new_path(tmp_path):
    with pytest.raises(ReachError), opened(tmp_path / "out") as writer:
        write(writer, 5)
        move(tmp_path / "out")
        write(writer, 9)
    assert not (tmp_path / "moved" / "playlist.yaml").exists()
    assert pack(tmp_path / "moved", 9, resume=True) == pack(tmp_path / "whole", 9)


def test_a_target_that_was_moved_after_the_last_row_gets_no_playlist(tmp_path):
    writer = opened(tmp_path / "out")
    write(writer, 4)
    writer._flush(4)
    move(tmp_path / "out")
    with pytest.raises(ReachError) as caught:
        writer.close()
    writer.abandon()
    assert str(caught.value) == f"{tmp_path}/out: {MOVED}"
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "moved" / "playlist.yaml").exists()


def test_a_moved_new_dataset_of_an_overwrite_is_detected(tmp_path):
    old = pack(tmp_path / "out", 3)
    with (
        pytest.raises(ReachError),
        opened(tmp_path / "out", overwrite=True) as writer,
    ):
        write(writer, 5)
        move(tmp_path / ".out.flare-new")
        write(writer, 9)
    assert files_of(tmp_path / "out") == old


def test_a_deleted_scratch_folder_is_reported(tmp_path):
    with pytest.raises(ReachError) as caught, opened(tmp_path / "out") as writer:
        write(writer, 3)
        shutil.rmtree(tmp_path / "out" / ".flare")
        write(writer, 9)
    assert str(caught.value) == (
        f"{tmp_path}/out/.flare: the scratch folder was moved or deleted during the run"
    )
    assert not (tmp_path / "out" / "playlist.yaml").exists()


def removed(path):
    path.unlink()
    return MissingError, "the file is missing, expected {} bytes"


def truncated(path):
    os.truncate(path, 5)
    return IntegrityError, "file is 5 bytes; expected {}"


def replaced_by_link(path):
    path.rename(path.with_name("other"))
    path.symlink_to("other")
    return IntegrityError, "not a regular file"


@pytest.mark.parametrize("how", [removed, truncated, replaced_by_link])
@pytest.mark.parametrize(
    ("form", "name"),
    [
        ("mds", "shard.00000.mds"),
        ("csv", "shard.00000.csv.meta"),
        ("granular", "shards/00000/n.bag"),
    ],
)
def test_a_shard_that_changed_before_the_commit_is_an_error(tmp_path, how, form, name):
    complete = pack(tmp_path / "whole", 9, format=form)
    name = name if name in complete else next(one for one in complete if one.startswith("shards/"))
    path = tmp_path / "out" / name
    with pytest.raises(FlareError) as caught, opened(tmp_path / "out", format=form) as writer:
        write(writer, 9)
        kind, message = how(path)
    assert type(caught.value) is kind
    assert str(caught.value) == f"{path}: {message.format(len(complete[name]))}"
    assert caught.value.hint == AGAIN
    assert not (tmp_path / "out" / "playlist.yaml").exists()
    if how is replaced_by_link:
        path.unlink()
        (path.with_name("other")).unlink()
    assert pack(tmp_path / "out", 9, format=form, resume=True) == complete


def test_a_deleted_list_of_failed_rows_is_an_error_before_the_commit(tmp_path):
    with pytest.raises(MissingError) as caught, opened(tmp_path / "out") as writer:
        writer.failed.add(Failure(0, "k", "n", "null", "n is null"))
        write(writer, 5)
        (tmp_path / "out" / "failed.jsonl").unlink()
    assert str(caught.value).startswith(f"{tmp_path}/out/failed.jsonl: the file is missing")


@pytest.mark.parametrize("how", [removed, truncated])
@pytest.mark.parametrize("name", ["shard.00001.mds", "index.json"])
def test_a_finished_dataset_with_a_missing_file_is_not_resumed(tmp_path, how, name):
    size = len(pack(tmp_path / "out", 5)[name])
    kind, message = how(tmp_path / "out" / name)
    with pytest.raises(kind) as caught:
        pack(tmp_path / "out", 5, resume=True)
    assert str(caught.value) == f"{tmp_path}/out/{name}: {message.format(size)}"
    assert caught.value.hint == "Use --overwrite to pack the dataset again."


def source(path, rows):
    path.write_text("n\n" + "".join(f"{row}\n" for row in range(rows)))
    return str(path)


def test_packing_a_finished_dataset_again_reports_a_missing_shard(tmp_path):
    rows, out = source(tmp_path / "rows.csv", 9), str(tmp_path / "out")
    commands.pack(rows, out, shard_rows=2)
    assert commands.pack(rows, out, shard_rows=2, resume=True).rows == 9
    (tmp_path / "out" / "shard.00003.mds").unlink()
    with pytest.raises(MissingError):
        commands.pack(rows, out, shard_rows=2, resume=True)
    commands.pack(rows, out, shard_rows=2, overwrite=True)
    assert files_of(out).keys() >= {"shard.00003.mds"}


def test_a_finished_pack_in_parts_with_a_missing_shard_is_not_resumed(tmp_path):
    rows, out = source(tmp_path / "rows.csv", 9), tmp_path / "out"
    commands.pack(rows, str(out), part_rows=3)
    (out / "00001" / "shard.00000.mds").unlink()
    with pytest.raises(MissingError) as caught:
        commands.pack(rows, str(out), part_rows=3, resume=True)
    assert caught.value.where == f"{out}/00001/shard.00000.mds"


def test_parts_with_a_missing_shard_are_not_joined(tmp_path):
    rows, out = source(tmp_path / "rows.csv", 9), tmp_path / "out"
    commands.pack(rows, str(out), part_rows=3)
    (out / "00001" / "shard.00000.mds").unlink()
    (out / "playlist.yaml").unlink()
    with pytest.raises(MissingError) as caught:
        parts.join(locate(str(out)), ["00000", "00001", "00002"], {})
    assert caught.value.where == f"{out}/00001/shard.00000.mds"
    assert not (out / "playlist.yaml").exists()


class _Slow(BaseHTTPRequestHandler):
    """The first objects are large, so that shards are written; the last object waits for an
    event.
    """

    def do_GET(self):
        number = int(self.path[1:])
        if number == 3:
            self.server.may_end.wait(60)
        data = b"%d" % number * (5 << 20 if number < 3 else 1)
        self.send_response(200)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def log_message(self, *_):
        pass


@pytest.fixture
def slow():
    with ThreadingHTTPServer(("127.0.0.1", 0), _Slow) as server:
        server.may_end = threading.Event()
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.may_end.set()
        stop_server(server)


@pytest.mark.parametrize("how", ["move", "unlink"])
def test_a_command_whose_target_was_moved_exits_3_and_commits_nothing(tmp_path, slow, how):
    out, index = tmp_path / "out", tmp_path / "index.csv"
    host = f"127.0.0.1:{slow.server_port}"
    rows = "".join(f"http://{host}/{row}\n" for row in range(4))
    index.write_text(f"url\n{rows}")
    argv = ["pack", str(index), str(out), "--fetch", "url:data", "--shard-rows", "1", "-q"]
    argv += ["--allow-host", host]
    with subprocess.Popen(
        [sys.executable, "-m", "flarecli", *argv], stderr=subprocess.PIPE
    ) as packing:
        for _ in range(1000):
            if (out / "shard.00001.mds").exists() or packing.poll() is not None:
                break
            time.sleep(0.02)
        if how == "move":
            out.rename(tmp_path / "moved")
            expected = f"error: {out}: {MOVED}\n"
        else:
            size = (out / "shard.00001.mds").stat().st_size
            (out / "shard.00001.mds").unlink()
            expected = f"error: {out}/shard.00001.mds: the file is missing, expected {size} bytes\n"
        slow.may_end.set()
        _, output = packing.communicate()
    assert packing.returncode == 3
    assert output.decode().startswith(expected)
    assert not [*tmp_path.rglob("playlist.yaml")]
    assert out.exists() == (how == "unlink")
