"""Pack into a bucket: one pack at a time, complete objects, the playlist last, and the same objects
after any kill.
"""

import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli import commands
from flarecli.__main__ import main
from flarecli.errors import BusyError, FlareError, MissingError, UnfinishedError, UsageError
from flarecli.formats import names
from flarecli.model import Settings
from flarecli.storage import locate
from flarecli.storage.cloud.store import NoConditionalWrites, ObjectStore
from flarecli.storage.fsspec_store import FsspecStore
from flarecli.write import Failure, Writer, bucket_target
from tests.conftest import NumberedImages

ROWS = 400


@pytest.fixture(scope="module")
def index(tmp_path_factory):
    rng, path = random.Random(5), tmp_path_factory.mktemp("index") / "index.parquet"
    images = [b"\xff\xd8\xff\xe0" + rng.randbytes(rng.randrange(500, 1500)) for _ in range(ROWS)]
    pq.write_table(
        pa.table(
            {
                "id": list(range(ROWS)),
                "image": images,
                "bad": [None if i in (7, 250) else i for i in range(ROWS)],
            }
        ),
        path,
    )
    return str(path)


def objects(address):
    """Name -> bytes of all objects below an address, in the bucket as it is now."""
    at = locate(address)
    try:
        return {entry.name: (at / entry.name).read() for entry in at.list()}
    except FileNotFoundError:
        return {}


def put(address, name, data):
    (locate(address) / name).write([data])


def options(**more):
    return {"shard_size": 40_000, "on_error": "skip", **more}


HOLDS = {
    "json": ["id"],
    "csv": ["id"],
    "tsv": ["id"],
    "ffrecord": ["image"],
    "webdataset": ["key", "image"],
}


@pytest.mark.parametrize("format", [name for name in names(writable=True) if name != "xsv"])
def test_each_format_is_the_same_in_a_bucket_as_on_a_disk(s3, index, tmp_path, format):
    more = (
        {"key": "key"}
        if format == "webdataset"
        else {"columns": HOLDS.get(format, ["id", "image"])}
    )
    if format == "webdataset":
        table = pq.read_table(index).append_column("key", pa.array([f"k{i}" for i in range(ROWS)]))
        index = str(tmp_path / "keyed.parquet")
        pq.write_table(table.select(HOLDS[format]), index)
    local = commands.pack(index, str(tmp_path / "out"), format=format, shard_size=40_000, **more)
    packed = commands.pack(index, f"{s3}/deep/out", format=format, shard_size=40_000, **more)
    assert (packed.rows, packed.shards, packed.playlist) == (
        local.rows,
        local.shards,
        f"{s3}/deep/out/playlist.yaml",
    )
    on_disk = {
        str(path.relative_to(tmp_path / "out")): path.read_bytes()
        for path in (tmp_path / "out").rglob("*")
        if path.is_file()
    }
    assert objects(f"{s3}/deep/out") == on_disk
    assert [*commands.verify(f"{s3}/deep/out")] == []


def test_failed_rows_are_published_as_one_object(s3, index, tmp_path):
    commands.pack(index, str(tmp_path / "out"), **options())
    packed = commands.pack(index, f"{s3}/out", **options())
    assert packed.failed == 2
    assert objects(f"{s3}/out")["failed.jsonl"] == (tmp_path / "out" / "failed.jsonl").read_bytes()


def test_an_existing_dataset_is_refused_resumed_or_replaced(s3, index):
    out = f"{s3}/out"
    commands.pack(index, out, **options())
    first = objects(out)
    with pytest.raises(UsageError) as caught:
        commands.pack(index, out, **options())
    assert (
        str(caught.value) == f"{out}: output folder is not empty"
        and "--resume" in caught.value.hint
        and "--overwrite" in caught.value.hint
    )
    assert commands.pack(index, out, **options(resume=True)).resumed_rows == ROWS - 2
    assert objects(out) == first
    with pytest.raises(
        UsageError,
        match="the folder contains a dataset from a different source or with different options",
    ):
        commands.pack(index, out, **options(resume=True, shard_rows=10))
    commands.pack(index, out, **options(overwrite=True, shard_rows=100))
    second = objects(out)
    assert second != first and not any(name.startswith(".flare/") for name in second)
    assert [*commands.verify(out)] == []
    put(out, "thesis.doc", b"mine")
    with pytest.raises(
        UsageError,
        match=r"contains a file 'thesis.doc', which is not part of the dataset",
    ):
        commands.pack(index, out, **options(overwrite=True))
    assert objects(out) == {**second, "thesis.doc": b"mine"}


def test_an_overwrite_that_fails_leaves_the_old_dataset(s3, index):
    out = f"{s3}/out"
    commands.pack(index, out, **options())
    first = objects(out)
    with pytest.raises(ValueError):
        commands.pack(index, out, shard_size=20_000, overwrite=True)  # row 7 has no `bad`
    assert {
        name: data for name, data in objects(out).items() if not name.startswith(".flare/")
    } == first
    assert commands.inspect(out).rows == ROWS - 2
    commands.pack(index, out, **options(overwrite=True))
    assert objects(out) == first


def test_a_failure_before_the_first_shard_leaves_nothing(s3, index):
    with pytest.raises(ValueError):
        commands.pack(index, f"{s3}/out", shard_size=20_000)
    assert objects(f"{s3}/out") == {}


def test_an_unfinished_pack_is_restarted_only_with_overwrite(s3, index, tmp_path):
    out = f"{s3}/out"
    with pytest.raises(ValueError):
        commands.pack(index, out, shard_size=6_000)
    assert ".flare/lock" not in objects(out) and ".flare/journal/00000.json" in objects(out)
    with pytest.raises(UnfinishedError) as caught:
        commands.pack(index, out, shard_size=6_000)
    assert str(caught.value) == f"{out}: folder contains an unfinished pack"
    with pytest.raises(UnfinishedError):
        commands.inspect(out)
    with pytest.raises(UsageError, match="the unfinished pack was started with on_error"):
        commands.pack(index, out, shard_size=6_000, resume=True, on_error="skip")
    commands.pack(index, out, **options(overwrite=True))
    commands.pack(index, str(tmp_path / "out"), **options())
    assert objects(out) == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}


@pytest.mark.parametrize("kind", ["s3", "google", "azure"])
def test_a_second_pack_into_a_folder_is_refused(request, kind):
    out = f"{request.getfixturevalue(kind)}/out"
    first = Writer(out, columns={"id": "int"})
    owner = json.loads(objects(out)[".flare/lock"])
    for more in ({}, {"resume": True}, {"overwrite": True}):
        with pytest.raises(BusyError) as caught:
            Writer(out, columns={"id": "int"}, **more)
        named = f"process {os.getpid()} on {owner['host']}, since {owner['start']}"
        assert (str(caught.value), caught.value.exit_code) == (
            f"{out}: another pack is writing to this folder ({named})",
            3,
        )
    first.write({"id": 1})
    first.close()
    assert ".flare/lock" not in objects(out)


def test_one_of_many_concurrent_packs_gets_the_lock(s3):
    won, lost, start = [], [], threading.Barrier(6)

    def begin():
        start.wait()
        try:
            won.append(Writer(f"{s3}/out", columns={"id": "int"}))
        except BusyError as error:
            lost.append(error)

    threads = [threading.Thread(target=begin) for _ in range(6)]
    [thread.start() for thread in threads]
    [thread.join() for thread in threads]
    assert (len(won), len(lost)) == (1, 5)
    won[0].abandon()


def elsewhere(s3, **more):
    """Write a lock of another machine."""
    lock = {
        "pid": 4,
        "host": "far",
        "start": "2020-01-01 00:00:00",
        "machine": "another",
        "ticks": 5,
        "token": "t",
        "beat": 3,
        **more,
    }
    put(f"{s3}/out", ".flare/lock", json.dumps(lock).encode())


def test_only_a_lock_that_does_not_change_is_taken_over(s3, monkeypatch):
    monkeypatch.setattr(bucket_target, "DEAD_S", 1.0)
    elsewhere(s3)
    with pytest.raises(
        BusyError,
        match=r"another pack is writing to this folder \(process 4 on far, since 2020-01-01 00:00:00\)",
    ):
        Writer(f"{s3}/out", columns={"id": "int"})
    beats = threading.Timer(0.4, lambda: elsewhere(s3, beat=4))
    beats.start()
    with pytest.raises(BusyError, match="far"):
        Writer(f"{s3}/out", columns={"id": "int"}, resume=True)
    writer = Writer(f"{s3}/out", columns={"id": "int"}, resume=True)
    assert json.loads(objects(f"{s3}/out")[".flare/lock"])["pid"] == os.getpid()
    writer.abandon()


def test_a_dead_owner_on_this_machine_is_detected(s3, monkeypatch):
    ended = subprocess.Popen([sys.executable, "-c", ""])
    ended.wait()
    elsewhere(s3, machine=bucket_target._machine(), pid=ended.pid)
    Writer(f"{s3}/out", columns={"id": "int"}, resume=True).abandon()
    elsewhere(
        s3, machine=bucket_target._machine(), pid=os.getpid()
    )  # the id belongs to another process now
    Writer(f"{s3}/out", columns={"id": "int"}, resume=True).abandon()
    elsewhere(
        s3,
        machine=bucket_target._machine(),
        pid=os.getpid(),
        ticks=bucket_target._start_ticks(os.getpid()),
    )
    with pytest.raises(BusyError, match="far"):
        Writer(f"{s3}/out", columns={"id": "int"}, resume=True)


def test_without_conditional_writes_the_lock_is_read_before_and_after(s3, index, monkeypatch):
    def put_if(self, path, data, version):
        raise NoConditionalWrites("conditional writes are not supported")

    monkeypatch.setattr(ObjectStore, "put_if", put_if)
    first = Writer(f"{s3}/out", columns={"id": "int"})
    with pytest.raises(BusyError, match="another pack is writing to this folder"):
        Writer(f"{s3}/out", columns={"id": "int"}, resume=True)
    first.abandon()
    assert commands.pack(index, f"{s3}/out", **options()).failed == 2


def test_a_pack_whose_lock_was_taken_over_stops(s3, monkeypatch):
    monkeypatch.setattr(bucket_target, "BEAT_S", 0.1)
    writer = Writer(f"{s3}/out", columns={"id": "int"})
    elsewhere(s3)
    time.sleep(0.5)
    writer.write({"id": 1})
    with pytest.raises(BusyError, match="another process took over the lock"):
        writer.close()
    assert json.loads(objects(f"{s3}/out")[".flare/lock"])["host"] == "far"
    assert "playlist.yaml" not in objects(f"{s3}/out")


@pytest.mark.parametrize("kind", ["memory", "google", "azure"])
def test_a_pack_writes_to_fsspec_stores(index, tmp_path, request, kind):
    out = (
        f"memory://bucket{time.monotonic_ns()}/out"
        if kind == "memory"
        else f"{request.getfixturevalue(kind)}/out"
    )
    commands.pack(index, out, **options())
    commands.pack(index, str(tmp_path / "out"), **options())
    assert objects(out) == {path.name: path.read_bytes() for path in (tmp_path / "out").iterdir()}
    with pytest.raises(UsageError, match="output folder is not empty"):
        commands.pack(index, out, **options())
    assert commands.pack(index, out, **options(resume=True)).resumed_rows == ROWS - 2


def test_a_pack_to_a_web_server_is_refused(index):
    with pytest.raises(UsageError, match="http://127.0.0.1/out: cannot write to a web server"):
        commands.pack(index, "http://127.0.0.1/out")


def test_unpack_to_a_bucket_is_refused(s3, index):
    commands.pack(index, f"{s3}/out", **options())
    with pytest.raises(UsageError) as caught:
        commands.unpack(f"{s3}/out", f"{s3}/files")
    assert str(caught.value) == f"{s3}/files: cannot write to this address: expected a local folder"


def test_a_missing_bucket_is_named(s3, index):
    with pytest.raises(FileNotFoundError, match="no such bucket"):
        commands.pack(index, "s3://no-such-bucket-here/out", retries=0)


class Watcher(threading.Thread):
    """Watches the bucket for a playlist that exists before all objects that it lists."""

    def __init__(self, out):
        super().__init__(daemon=True)
        self.out, self.over, self.wrong, self.looks = out, threading.Event(), [], 0

    def run(self):
        while not self.over.is_set():
            self.looks += 1
            found = objects_named(self.out)
            if "playlist.yaml" in found and not self.all <= found:
                self.wrong.append(sorted(found))
            time.sleep(0.1)


def objects_named(address):
    try:
        return {entry.name for entry in locate(address).list()}
    except FileNotFoundError:
        return set()


@pytest.mark.parametrize("overwrite", [False, True])
def test_a_pack_killed_anywhere_resumes_to_the_same_objects(s3, index, tmp_path, overwrite):
    commands.pack(index, f"{s3}/whole", **options(shard_size=16_000))
    wanted = objects(f"{s3}/whole")
    out, rng = f"{s3}/out", random.Random(overwrite)
    if overwrite:
        commands.pack(index, out, **options(shard_size=30_000))
    watcher = Watcher(out)
    watcher.all = set() if overwrite else set(wanted)
    watcher.start()
    argv = [
        sys.executable,
        "-m",
        "flarecli",
        "pack",
        index,
        out,
        "--shard-size",
        "16000",
        "--on-error",
        "skip",
        "--resume",
        "-q",
    ]
    argv += ["--overwrite"] if overwrite else []
    kills = 0
    for _ in range(12):
        began = time.monotonic()
        process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
        while (
            process.poll() is None
            and not locate(f"{out}/.flare/lock").exists()
            and time.monotonic() - began < 5
        ):
            time.sleep(0.02)
        try:
            process.wait(rng.uniform(0, 0.1) if kills < 2 else 30)  # soon after it locked
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGKILL)
            kills += 1
        said = process.communicate()[1].decode()
        if process.returncode >= 0:
            assert process.returncode in (0, 1), said
            break
    watcher.over.set()
    watcher.join()
    assert objects(out) == wanted
    assert watcher.wrong == [] and watcher.looks > 3
    assert kills


def test_a_pack_stopped_at_any_step_resumes_to_the_same_objects(index, monkeypatch):
    """Stop the pack after each write or delete, with and without an old dataset."""
    bucket = f"memory://bucket{time.monotonic_ns()}"

    class Killed(BaseException):
        pass

    with_failures = options(shard_size=150_000)
    commands.pack(index, f"{bucket}/whole", **with_failures)
    wanted = objects(f"{bucket}/whole")
    real = {name: getattr(FsspecStore, name) for name in ("write", "delete")}
    for overwrite in (False, True):
        for step in range(200):
            out, count = f"{bucket}/out{overwrite}{step}", [0]
            if overwrite:
                commands.pack(index, out, **options(shard_size=300_000))

            def dying(name, out=out, count=count, step=step):
                def call(self, path, *more, **named):
                    if not path.endswith("/lock"):
                        count[0] += 1
                        if count[0] > step:
                            raise Killed
                    return real[name](self, path, *more, **named)

                return call

            for name in real:
                monkeypatch.setattr(FsspecStore, name, dying(name))
            try:
                commands.pack(index, out, **with_failures, overwrite=overwrite)
                ended = True
            except Killed:
                ended = False
            for name in real:
                monkeypatch.setattr(FsspecStore, name, real[name])
            if ended:
                break
            found = objects(out)
            if overwrite and "playlist.yaml" not in found:
                assert ".flare/new/playlist.yaml" in found
            if not overwrite and "playlist.yaml" in found:
                assert wanted.items() <= found.items()
            commands.pack(
                index,
                out,
                **with_failures,
                resume=True,
                overwrite=overwrite and (step % 2 == 0 or ".flare/new" not in "".join(found)),
            )
            assert objects(out) == wanted, (overwrite, step)
        assert step > 10


def test_failures_of_a_resumed_pack_are_listed_once(s3):
    out = f"{s3}/out"
    writer = Writer(out, columns={"id": "int"}, settings=None)
    writer.failed.add(Failure(0, "a", "id", "null", "is null"))
    writer.write({"id": 1})
    writer._write_samples()
    writer._flush(2)
    writer.failed.add(Failure(2, "b", "id", "null", "is null"))
    writer.failed.settle(3)  # not recorded
    writer.target.release()
    with Writer(out, columns={"id": "int"}, resume=True) as again:
        assert (again.rows, again.next, again.failed.count) == (1, 2, 1)
        again.failed.add(Failure(2, "b", "id", "null", "is null"))
        again.write({"id": 3})
    assert [json.loads(line)["row"] for line in objects(out)["failed.jsonl"].splitlines()] == [0, 2]
    assert sorted(objects(out)) == [
        "failed.jsonl",
        "index.json",
        "playlist.yaml",
        "shard.00000.mds",
        "shard.00001.mds",
    ]


def opened(out, **options):
    return Writer(out, columns={"n": "int"}, settings=Settings(shard_rows=2), **options)


def write(writer, rows):
    for row in range(writer.rows, rows):
        writer.write({"n": row})
        writer._write_samples()


def pack(out, rows, **options):
    with opened(out, **options) as writer:
        write(writer, rows)
    return objects(out)


def move(out, to):
    """Copy and delete each object, because a bucket has no folders."""
    for name, data in objects(out).items():
        (locate(to) / name).write([data])
        (locate(out) / name).delete()


@pytest.mark.parametrize("name", ["shard.00000.mds", ".flare/lock"])
def test_an_object_deleted_during_a_pack_ends_it_without_a_playlist(s3, name):
    out = f"{s3}/out"
    with pytest.raises(FlareError) as caught, opened(out) as writer:
        write(writer, 5)
        size = (locate(out) / name).size()
        (locate(out) / name).delete()
    lost = f"{out}/{name}: the file is missing, expected {size} bytes"
    assert str(caught.value) == {
        "shard.00000.mds": lost,
        ".flare/lock": f"{out}: the lock was deleted",
    }.get(name)
    assert caught.value.exit_code == 3
    assert "playlist.yaml" not in objects(out)
    assert pack(out, 5, resume=True) == pack(f"{s3}/whole", 5)


def test_a_pack_that_was_moved_ends_without_a_playlist_and_is_resumed_where_it_is(s3):
    with pytest.raises(FlareError) as caught, opened(f"{s3}/out") as writer:
        write(writer, 5)
        move(f"{s3}/out", f"{s3}/moved")
    assert caught.value.exit_code == 3
    assert "playlist.yaml" not in {**objects(f"{s3}/out"), **objects(f"{s3}/moved")}
    (locate(f"{s3}/moved/.flare") / "lock").delete()
    assert pack(f"{s3}/moved", 5, resume=True) == pack(f"{s3}/whole", 5)


def test_a_lost_lock_is_detected_before_the_commit(s3):
    """Also between two writes of the lock."""
    out = f"{s3}/out"
    with pytest.raises(BusyError) as caught, opened(out) as writer:
        write(writer, 5)
        (locate(out) / ".flare/lock").write([b'{"token": "another"}'])
    assert str(caught.value) == f"{out}: another process took over the lock"
    assert "playlist.yaml" not in objects(out)


def test_a_finished_dataset_that_lost_a_shard_is_not_resumed(s3):
    out = f"{s3}/out"
    pack(out, 5)
    size = (locate(out) / "shard.00001.mds").size()
    (locate(out) / "shard.00001.mds").delete()
    with pytest.raises(MissingError) as caught:
        pack(out, 5, resume=True)
    assert str(caught.value) == f"{out}/shard.00001.mds: the file is missing, expected {size} bytes"
    assert caught.value.hint == "Use --overwrite to pack the dataset again."
    assert "shard.00001.mds" in pack(out, 5, overwrite=True)


def test_a_resumed_pack_writes_a_missing_shard_again(s3):
    out = f"{s3}/out"
    writer = opened(out)
    write(writer, 7)
    writer.abandon()
    (locate(out) / "shard.00001.mds").delete()
    with opened(out, resume=True) as writer:
        assert writer.rows == 2
        write(writer, 7)
    assert objects(out) == pack(f"{s3}/whole", 7)


def test_a_new_dataset_that_lost_a_shard_does_not_replace_the_old_one(s3):
    """The pack was killed just before the new dataset replaced the old one."""
    out = f"{s3}/out"
    old = pack(out, 3)
    writer = opened(out, overwrite=True)
    write(writer, 7)
    with pytest.MonkeyPatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(type(writer.target), "_replace", _killed)
        writer.close()
    writer.target.release()
    assert ".flare/new/playlist.yaml" in objects(out)
    (locate(out) / ".flare/new/shard.00002.mds").delete()
    unfinished = opened(out, overwrite=True, resume=True)
    assert not unfinished.is_done
    assert {name: objects(out).get(name) for name in old} == old
    write(unfinished, 7)
    unfinished.close()
    assert objects(out) == pack(f"{s3}/whole", 7)


def _killed(self):
    raise KeyboardInterrupt


def test_the_owner_of_a_concurrent_pack_is_named(s3, monkeypatch):
    """The other pack has written shards, but no playlist."""
    out, looked, others = f"{s3}/out", bucket_target._has_objects, []

    def looking(at):
        found = looked(at)
        monkeypatch.setattr(bucket_target, "_has_objects", looked)
        others.append(opened(out, resume=True))
        write(others[0], 5)
        return found

    monkeypatch.setattr(bucket_target, "_has_objects", looking)
    with pytest.raises(BusyError) as caught:
        opened(out, resume=True)
    assert str(caught.value).startswith(f"{out}: another pack is writing to this folder (process ")
    others[0].close()


SPOOLED_ROWS, STUCK = 40, 30


@pytest.fixture
def server():
    images = NumberedImages(200_000, stuck=STUCK)
    yield images
    images.close()


def test_a_resumed_pack_into_a_bucket_downloads_nothing_twice(s3, server, tmp_path):
    host = f"127.0.0.1:{server.port}"
    (tmp_path / "index.csv").write_text(
        "url\n" + "".join(f"http://{host}/{row}\n" for row in range(SPOOLED_ROWS))
    )

    def command(out, *more):
        argv = ["pack", str(tmp_path / "index.csv"), f"{s3}/{out}", "--fetch", "url:data", "-q"]
        argv += ["--allow-host", host, "--shard-size", "1MB", *more]
        return [sys.executable, "-m", "flarecli", *argv]

    with subprocess.Popen(command("out"), stderr=subprocess.PIPE) as packing:
        for _ in range(2000):
            if len(server.sent) == SPOOLED_ROWS - 1 or packing.poll() is not None:
                break
            time.sleep(0.01)
        time.sleep(1.0)
        packing.send_signal(signal.SIGINT)
        packing.communicate()
    assert packing.returncode == 130
    kept = [name for name in objects(f"{s3}/out") if name.startswith(".flare/fetched.")]
    assert len(kept) == 2
    server.may_end.set()
    assert main(command("out", "--resume")[3:]) == 0
    assert sorted(server.requested) == sorted([*range(SPOOLED_ROWS), STUCK])
    assert main(command("whole")[3:]) == 0
    assert objects(f"{s3}/out") == objects(f"{s3}/whole")


def test_part_jobs_that_start_at_the_same_time_are_joined_to_the_objects_of_one_pack(
    s3, index, tmp_path
):
    out, given = f"{s3}/jobs", {"on_error": "skip", "encode": {"bad": "int"}, "shard_rows": 60}
    with ThreadPoolExecutor(4) as pool:
        jobs = [
            pool.submit(commands.pack, index, out, part=f"{number}/3", **given)
            for number in (1, 2, 3, 3)
        ]
        ended = [job.exception() or job.result().failed for job in jobs]
    busy = [one for one in ended if isinstance(one, BusyError)]  # part 3/3 has two jobs
    assert [one for one in ended if one not in busy][:3] == [1, 1, 0]
    assert len(busy) <= 1
    with pytest.raises(UnfinishedError) as caught:
        commands.inspect(out)
    assert caught.value.hint == (
        "Run `flare pack … --part K/3` for each missing part, then `flare pack … --join`."
    )
    with ThreadPoolExecutor(2) as pool:
        joins = [pool.submit(commands.pack, index, out, join=True, **given) for _ in range(2)]
        assert [(one.result().rows, one.result().failed) for one in joins] == [(ROWS - 2, 2)] * 2
    commands.pack(index, str(tmp_path / "one"), part_rows=134, **given)
    assert objects(out) == objects(str(tmp_path / "one"))


def test_a_part_killed_in_a_bucket_is_continued_by_the_same_command(s3, index, tmp_path):
    out = f"{s3}/killed"
    argv = [sys.executable, "-m", "flarecli", "pack", index, out, "--part", "1/2", "-q"]
    argv += ["--shard-rows", "10", "--on-error", "skip"]
    process = subprocess.Popen(argv, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
    stop = time.monotonic() + 60
    while not (locate(out) / "00000/shard.00003.mds").exists() and time.monotonic() < stop:
        assert process.poll() is None, process.stderr.read()
        time.sleep(0.01)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    for number in (1, 2):
        packed = commands.pack(index, out, part=f"{number}/2", shard_rows=10, on_error="skip")
        assert (packed.resumed_rows > 0) == (number == 1)
    commands.pack(index, out, join=True, shard_rows=10, on_error="skip")
    commands.pack(index, str(tmp_path / "one"), part_rows=200, shard_rows=10, on_error="skip")
    assert objects(out) == objects(str(tmp_path / "one"))
