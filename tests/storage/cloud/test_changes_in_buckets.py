"""Datasets in buckets that change: commits by conditional puts, lost responses, and stores without
conditional puts.
"""

import itertools
import json
import os
import re
import signal
import threading
import traceback
import urllib.request
from urllib.parse import unquote, urlsplit

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli as flare
from flarecli.__main__ import main
from flarecli.errors import BusyError, IntegrityError, MissingError, UsageError
from flarecli.formats.mds.format import MDS
from flarecli.storage import locate
from flarecli.storage.append_log import open_log
from flarecli.storage.cloud.store import ObjectStore
from flarecli.write import bucket_target, versions

IS_FULL = "FLARE_TEST_CHANGES" in os.environ
WRITERS = (8, 50) if IS_FULL else (3, 3)  # processes, and appends of each


def table(first, count, path):
    pq.write_table(pa.table({"id": range(first, first + count)}), path)
    return str(path)


def ids(address):
    return flare.open(address).to_arrow()["id"].to_pylist()


@pytest.mark.parametrize("kind", ["s3", "azure", "google"])
def test_an_address_without_a_dataset_is_reported(kind, request, tmp_path):
    bucket = request.getfixturevalue(kind)
    if kind != "google":  # the server lists any bucket
        with pytest.raises(MissingError) as absent:
            flare.log(bucket.rpartition("/")[0] + "/missing-bucket/out")
        assert absent.value.message == "no such bucket"
    with pytest.raises(UsageError) as empty:
        flare.log(f"{bucket}/empty")
    assert empty.value.message == "no dataset in this folder"
    flare.pack(table(0, 3, tmp_path / "0.parquet"), f"{bucket}/file")
    with pytest.raises(UsageError) as file:
        flare.drop(f"{bucket}/file/playlist.yaml", rows="0")
    assert file.value.message == "expected the folder of a dataset, got a file"


@pytest.mark.parametrize("kind", ["s3", "azure", "google"])
def test_a_dataset_in_a_bucket_is_changed(kind, request, tmp_path):
    out = f"{request.getfixturevalue(kind)}/living/{kind}"
    flare.pack(table(0, 10, tmp_path / "0.parquet"), out, shard_rows=4)
    assert flare.pack(table(10, 5, tmp_path / "1.parquet"), out, append=True).version == 2
    assert flare.drop(out, where="id % 5 = 0").version == 3
    kept = [i for i in range(15) if i % 5]
    assert ids(out) == kept
    assert flare.compact(out).version == 4
    assert [(one.number, one.rows) for one in flare.log(out)] == [
        (1, 10),
        (2, 15),
        (3, 12),
        (4, 12),
    ]
    for number in range(1, 5):
        assert list(flare.verify(f"{out}/playlist.{number:06d}.yaml")) == []
    pruned = flare.prune(out, keep=1)
    assert pruned.versions == (1, 2, 3)
    assert ids(out) == kept
    assert list(flare.verify(out)) == []
    names = {entry.name.partition("/")[0] for entry in locate(out).list()}
    assert names == {
        "index.000001.json",
        "index.json",
        "playlist.000004.yaml",
        "playlist.yaml",
        *(name for name in names if name.startswith("fragment.")),
    }
    assert len([name for name in names if name.startswith("fragment.")]) == 1


@pytest.mark.parametrize("kind", ["s3", "azure", "google"])
def test_no_row_is_lost_if_the_newest_list_in_a_bucket_is_damaged_or_missing(
    kind, request, tmp_path
):
    out = f"{request.getfixturevalue(kind)}/damaged/{kind}"
    flare.pack(table(0, 4, tmp_path / "0.parquet"), out)
    flare.pack(table(4, 2, tmp_path / "1.parquet"), out, append=True)
    more = table(6, 2, tmp_path / "2.parquet")
    newest = locate(f"{out}/playlist.000002.yaml")
    data = newest.read()
    newest.write([data.replace(b"added: 2", b"added: 3")])
    with pytest.raises(IntegrityError) as damaged:
        flare.pack(more, out, append=True)
    newest.delete()
    with pytest.raises(MissingError) as missing:
        flare.pack(more, out, append=True)
    assert (str(damaged.value), str(missing.value)) == (
        f"{newest}: the last line is not the checksum of the lines above",
        f"{newest}: the file is missing, but playlist.yaml is version 2",
    )
    hint = "Copy playlist.yaml to playlist.000002.yaml."
    assert (damaged.value.hint, missing.value.hint) == (hint, hint)
    newest.write([data])
    flare.pack(more, out, append=True)
    assert ids(out) == [*range(8)]


@pytest.fixture
def faulty(request, proxy, monkeypatch):
    """Return a function: kind of bucket -> its address, and a proxy in front of its server."""

    def start(kind):
        address = request.getfixturevalue(kind)
        name = {"s3": "AWS_ENDPOINT_URL", "azure": "AZURITE_BLOB_STORAGE_URL"}.get(kind)
        if name is None:
            server = proxy(f"http://{os.environ['STORAGE_EMULATOR_HOST']}")
            monkeypatch.setenv("STORAGE_EMULATOR_HOST", f"127.0.0.1:{server.server_port}")
        else:
            server = proxy(os.environ[name])
            monkeypatch.setenv(name, f"http://127.0.0.1:{server.server_port}")
        return address, server

    return start


def fails(name, answer, is_done, count=1, commands=("PUT",)):
    """Return a fault of a proxy: the answer to the first `count` requests for an object.

    is_done  whether the server executes these requests
    """
    numbers = itertools.count()

    def fault(request):
        path = unquote(urlsplit(request.path).path)
        is_chosen = request.command in commands and path.endswith(f"/{name}")
        return (is_done, answer) if is_chosen and next(numbers) < count else None

    return fault


CHANGES = {  # name -> arguments, and the rows after the change
    "append": (["pack", "{source}", "{out}", "--append"], [0, 1, 2, 3, 4, 5]),
    "drop": (["drop", "{out}", "--where", "id = 1"], [0, 2, 3]),
    "compact": (["compact", "{out}"], [0, 1, 2, 3]),
}
ANSWERS = {
    "500": (500, "InternalError"),
    "409": (409, "ConditionalRequestConflict"),
    "timeout": "timeout",
    "cut": "cut",
}


def changed(change, out, source, *options):
    """Run a change with the command line. Return its exit code."""
    arguments = [text.format(out=out, source=source) for text in CHANGES[change][0]]
    return main([*arguments, "--quiet", *options])


def fragments(out):
    names = {entry.name.partition("/")[0] for entry in locate(out).list()}
    return {name for name in names if name.startswith("fragment.")}


LOST = [  # kind, answer, and options
    ("s3", "cut", ["--retries", "0"]),
    ("google", "500", ["--retries", "0"]),
    ("google", "409", ["--retries", "0"]),
]
if IS_FULL:
    LOST = [
        (kind, answer, options)
        for kind in ("s3", "google", "azure")
        for answer in ANSWERS
        for options in ([], ["--retries", "0"])
    ]


@pytest.mark.parametrize("kind, answer, options", LOST)
def test_a_commit_whose_answer_is_lost_is_one_version(kind, answer, options, faulty, tmp_path):
    """The server executes the first request for the commit of each change, or does not."""
    bucket, server = faulty(kind)
    options = [*options, "--timeout", "5s"] if answer == "timeout" else options
    first = table(0, 4, tmp_path / "0.parquet")
    source = table(4, 2, tmp_path / "1.parquet")
    for change, is_done in itertools.product(CHANGES, (True, False)):
        out = f"{bucket}/living/{change}-{is_done}"
        flare.pack(first, out, shard_rows=2)
        server.fault = fails("playlist.000002.yaml", ANSWERS[answer], is_done)
        assert changed(change, out, source, *options) == 0
        assert server.faults == 1
        server.faults = 0
        assert ids(out) == CHANGES[change][1]
        assert [one.number for one in flare.log(out)] == [1, 2]
        assert list(flare.verify(out)) == []
        assert flare.prune(out, keep=9, dry_run=True).files == 0


@pytest.mark.parametrize("is_done", [True, False], ids=["done", "not-done"])
@pytest.mark.parametrize("answer", ["409", "cut"])
def test_a_commit_without_any_answer_keeps_its_rows_for_a_resume(
    answer, is_done, faulty, tmp_path, monkeypatch, capsys
):
    """Every request for the list of the new version fails, also those that would read it back."""
    monkeypatch.setattr(versions, "_MAX_ATTEMPTS", 2)  # the delays between 8 take six seconds
    bucket, server = faulty("google")
    first = table(0, 4, tmp_path / "0.parquet")
    source = table(4, 2, tmp_path / "1.parquet")
    for change in CHANGES:
        out = f"{bucket}/living/{change}"
        flare.pack(first, out, shard_rows=2)
        commands = ("PUT", "GET", "HEAD") if answer == "cut" else ("PUT",)
        name = "playlist.000002.yaml"
        server.fault = fails(name, ANSWERS[answer], is_done, 10**6, commands)
        is_read_back = answer == "409" and is_done
        code = changed(change, out, source, "--retries", "0")
        printed = capsys.readouterr().err
        if is_read_back:
            assert (code, printed) == (0, "")
        else:
            assert code == 3
            if answer == "cut":
                assert "; it is unknown whether version 2 was created\n" in printed
                assert printed.endswith("hint: Run the same command with --resume.\n")
        assert len(fragments(out)) == 1
        server.fault = lambda request: None
        assert list(flare.verify(out)) == []
        assert ids(out) == (CHANGES[change][1] if is_read_back else [0, 1, 2, 3])
        assert changed(change, out, source, "--resume") == 0
        assert ids(out) == CHANGES[change][1]
        assert [one.number for one in flare.log(out)] == [1, 2]
        assert len(fragments(out)) == 1
        assert list(flare.verify(out)) == []


def test_an_error_after_the_creation_of_a_version_names_the_version(faulty, tmp_path, capsys):
    bucket, server = faulty("s3")
    source = table(4, 2, tmp_path / "1.parquet")
    for change in CHANGES:
        out = f"{bucket}/living/{change}"
        flare.pack(table(0, 4, tmp_path / "0.parquet"), out, shard_rows=2)
        server.fault = fails(f"{change}/index.json", ANSWERS["500"], False, 10**6)
        assert changed(change, out, source, "--retries", "0") == 3
        printed = capsys.readouterr().err
        assert "; version 2 was created before this error\n" in printed
        server.fault = lambda request: None
        assert changed(change, out, source, "--resume") == 0
        assert ids(out) == CHANGES[change][1]
        assert [one.number for one in flare.log(out)] == [1, 2]


@pytest.mark.parametrize("kind", ["s3", "google", "azure"])
def test_a_reader_sees_one_of_two_versions_while_commits_replace_the_list(kind, faulty, tmp_path):
    """Another process replaces `playlist.yaml` before each of the first requests that read it."""
    bucket, server = faulty(kind)
    out = f"{bucket}/living/replaced"
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    flare.pack(table(3, 9, tmp_path / "1.parquet"), out, append=True)
    lists = [(locate(out) / f"playlist.00000{i}.yaml").read() for i in (1, 2)]
    requests = []

    def replace(request):
        path = unquote(urlsplit(request.path).path)
        if request.command != "PUT" and path.endswith("/playlist.yaml") and len(requests) < 6:
            requests.append(path)
            (locate(out) / "playlist.yaml").write([lists[len(requests) % 2]])

    server.fault = replace
    assert len(flare.open(out)) in (3, 12)
    assert len(requests) == 6
    server.fault = lambda request: None
    assert ids(f"{out}/playlist.000002.yaml") == list(range(12))


STORE_HINT = "Use a store with conditional writes (If-None-Match), or a local folder."


@pytest.mark.parametrize("change", CHANGES if IS_FULL else ["append"])
@pytest.mark.parametrize(
    "answer, code, message",
    [
        (
            "ignored",
            3,
            "the store accepted a conditional write (If-None-Match) of an existing file",
        ),
        ("501", 2, "the store has no conditional writes"),
    ],
    ids=["ignored", "501"],
)
@pytest.mark.parametrize("is_first", [True, False], ids=["first-change", "later-change"])
def test_a_store_without_conditional_writes_is_refused(
    is_first, answer, code, message, change, faulty, tmp_path, capsys
):
    bucket, server = faulty("s3")
    out, source = f"{bucket}/living/store", table(4, 2, tmp_path / "1.parquet")
    flare.pack(table(0, 4, tmp_path / "0.parquet"), out, shard_rows=2)
    if not is_first:  # as after a copy to another store
        flare.pack(table(9, 1, tmp_path / "2.parquet"), out, append=True)
        flare.drop(out, where="id = 9")
    capsys.readouterr()
    before = {entry.name for entry in locate(out).list()}

    def unsupported(request):
        if request.headers["If-None-Match"] and answer == "501":
            return False, (501, "NotImplemented")
        del request.headers["If-None-Match"]  # as a store that ignores the header
        return None

    server.fault = unsupported
    assert changed(change, out, source, "--retries", "0") == code
    assert capsys.readouterr().err == f"error: {out}/.flare-commit: {message}\nhint: {STORE_HINT}\n"
    assert {entry.name for entry in locate(out).list()} == before
    server.fault = lambda request: None
    assert ids(out) == [0, 1, 2, 3]
    assert changed(change, out, source, "--resume") == 0
    assert ids(out) == CHANGES[change][1]
    assert list(flare.verify(out)) == []


def test_a_store_that_ignores_conditions_is_refused_before_an_upload(faulty, tmp_path, capsys):
    bucket, server = faulty("s3")
    out, source = f"{bucket}/living/store", table(4, 2, tmp_path / "1.parquet")
    labels = str(tmp_path / "labels.parquet")
    pq.write_table(pa.table({"label": range(4)}), labels)
    flare.pack(table(0, 4, tmp_path / "0.parquet"), out, shard_rows=2)
    before = {entry.name: entry.size for entry in locate(out).list()}
    commands = {
        **{name: arguments for name, (arguments, _) in CHANGES.items()},
        "append in parts": ["pack", "{source}", "{out}", "--append", "--part-rows", "1"],
        "add column": ["pack", labels, "{out}", "--add-column", "label"],
    }

    def ignored(request):
        del request.headers["If-None-Match"]

    for name, arguments in commands.items():
        server.fault = ignored
        server.asked.clear()
        capsys.readouterr()
        command = [text.format(out=out, source=source) for text in arguments]
        assert main([*command, "--quiet"]) == 3, name
        assert capsys.readouterr().err == (
            f"error: {out}/.flare-commit: the store accepted a conditional write (If-None-Match) of an existing file\n"
            f"hint: {STORE_HINT}\n"
        )
        (put,) = {urlsplit(one.path).path for one in server.asked if one.method == "PUT"}
        assert re.fullmatch(r".*/fragment\.[0-9a-f]{32}/\.flare/lock", put), name
        assert {entry.name: entry.size for entry in locate(out).list()} == before, name
        server.fault = lambda request: None


def test_a_change_tests_the_store_with_one_request_before_the_upload(faulty, tmp_path):
    bucket, server = faulty("s3")
    out, source = f"{bucket}/living/store", table(4, 2, tmp_path / "1.parquet")
    flare.pack(table(0, 4, tmp_path / "0.parquet"), out)
    server.asked.clear()
    assert changed("append", out, source) == 0
    puts = [(urlsplit(one.path).path, one.status) for one in server.asked if one.method == "PUT"]
    is_lock = [path.endswith("/.flare/lock") for path, _ in puts]
    refused = [i for i, (_, status) in enumerate(puts) if is_lock[i] and status == 412]
    assert len(refused) == 1 and refused[0] < is_lock.index(False)


def test_a_bucket_that_keeps_earlier_versions_of_objects_is_named_by_an_erasure(
    s3, moto, tmp_path, capsys
):
    """Changes need only conditional writes. Flare cannot delete the earlier versions."""
    bucket, out = f"{moto}/{s3.removeprefix('s3://')}", f"{s3}/living/versioned"
    enabled = b"<VersioningConfiguration><Status>Enabled</Status></VersioningConfiguration>"
    kind = {"Content-Type": "application/xml"}
    versioning = urllib.request.Request(f"{bucket}?versioning", enabled, kind, method="PUT")
    urllib.request.urlopen(versioning).close()
    source = table(4, 2, tmp_path / "1.parquet")
    flare.pack(table(0, 4, tmp_path / "0.parquet"), out, shard_rows=2)
    assert changed("append", out, source) == 0
    assert main(["drop", out, "--where", "id = 1", "--erase"]) == 0
    assert "earlier versions of objects in the bucket" in capsys.readouterr().err
    assert (ids(out), [one.number for one in flare.log(out)]) == ([0, 2, 3, 4, 5], [3])
    assert list(flare.verify(out)) == []
    assert not (locate(out) / "shard.00000.mds").exists()
    with urllib.request.urlopen(f"{bucket}?versions") as response:
        assert b"<Key>living/versioned/shard.00000.mds</Key>" in response.read()
    assert flare.pack(source, out, append=True).version == 4
    assert flare.prune(out, keep=1).versions == (3,)
    assert ids(out) == [0, 2, 3, 4, 5, 4, 5]


def test_a_folder_of_fsspec_is_refused(tmp_path):
    out = f"memory://living{os.getpid()}"
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    with pytest.raises(UsageError) as caught:
        flare.pack(table(3, 3, tmp_path / "1.parquet"), out, append=True)
    assert (
        caught.value.message == "this store cannot guarantee that only one process creates a file"
    )
    assert ids(out) == [0, 1, 2]


def forked(run):
    """Run a function in a forked process. Return its process id."""
    pid = os.fork()
    if pid:
        return pid
    code = 1
    try:
        run()
        code = 0
    except flare.errors.FlareError as error:
        traceback.print_exc()
        code = error.exit_code
    finally:
        os._exit(code)


def exit_code(pid):
    return os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


@pytest.mark.parametrize("kind", ["s3", "google", "azure"] if IS_FULL else ["s3"])
def test_writers_of_several_processes_append_to_a_bucket(kind, request, tmp_path):
    out, processes, appends = f"{request.getfixturevalue(kind)}/living/many", *WRITERS
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    count = processes * appends
    sources = [table(3 + 2 * i, 2, tmp_path / f"{i + 1}.parquet") for i in range(count)]

    def append(start):
        for source in sources[start::processes]:
            flare.pack(source, out, append=True)

    children = [forked(lambda start=start: append(start)) for start in range(processes)]
    assert [exit_code(pid) for pid in children] == [0] * processes
    assert sorted(ids(out)) == list(range(3 + 2 * count))
    assert [one.rows for one in flare.log(out)] == list(range(3, 4 + 2 * count, 2))
    assert list(flare.verify(out)) == []


@pytest.mark.parametrize("stop", ["before the check of its lock", "before its commit"])
def test_a_writer_that_stops_until_its_locks_expire_loses_no_rows(s3, tmp_path, monkeypatch, stop):
    """It continues after others have committed, and have pruned its fragment and the next
    number.
    """
    out, mine = f"{s3}/living/stopped", table(3, 3, tmp_path / "mine.parquet")
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    for name, seconds in (("BEAT_S", 0.1), ("DEAD_S", 0.5)):
        monkeypatch.setattr(bucket_target, name, seconds)

    def append():
        bucket_target._machine = lambda: "another machine"  # its process id says nothing here
        if stop == "before its commit":
            real = ObjectStore.create

            def create(self, path, data):
                if path.endswith("playlist.000002.yaml"):
                    os.kill(os.getpid(), signal.SIGSTOP)
                real(self, path, data)

            ObjectStore.create = create
        else:
            check = versions.CommitLock.check

            def stopped(self, now=True):
                os.kill(os.getpid(), signal.SIGSTOP)
                check(self, now)

            versions.CommitLock.check = stopped
        flare.pack(mine, out, append=True)

    pid = forked(append)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    try:
        for first in (10, 20):
            flare.pack(table(first, 2, tmp_path / f"{first}.parquet"), out, append=True)
        assert flare.prune(out, keep=1).busy == ()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == BusyError.exit_code
    assert ids(out) == [0, 1, 2, 10, 11, 20, 21]
    assert [one.number for one in flare.log(out)] == [3]
    assert list(flare.verify(out)) == []
    assert flare.pack(mine, out, append=True, resume=True).version == 4
    assert ids(out) == [0, 1, 2, 10, 11, 20, 21, 3, 4, 5]
    assert list(flare.verify(out)) == []


def stopped(run, path, method="create"):
    """Start a process, which stops before it creates or deletes a file; return its id.

    path    end of the path of the file; empty: the process stops at the start of its commit instead
    method  "create" or "delete"
    """

    def process():
        bucket_target._machine = lambda: "another machine"  # its process id says nothing here
        owner, name = (ObjectStore, method) if path else (versions, "commit")
        real = getattr(owner, name)

        def stop(*args):
            if not path or args[1].endswith(path):
                os.kill(os.getpid(), signal.SIGSTOP)
            return real(*args)

        setattr(owner, name, stop)
        run()

    pid = forked(process)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    return pid


@pytest.fixture
def short_leases(monkeypatch):
    for name, seconds in (("BEAT_S", 0.1), ("DEAD_S", 0.5)):
        monkeypatch.setattr(bucket_target, name, seconds)


STOPPED = {
    "append": lambda out, source: flare.pack(
        source, out, append=True, key="name", on_duplicate="keep"
    ),
    "drop": lambda out, source: flare.drop(out, where="id = 0"),
    "compact": lambda out, source: flare.compact(out),
    "replace": lambda out, source: flare.pack(
        source, out, append=True, key="name", on_duplicate="replace"
    ),
}


def named(first, count, path):
    ids = range(first, first + count)
    pq.write_table(pa.table({"id": ids, "name": [str(one) for one in ids]}), path)
    return str(path)


@pytest.mark.parametrize("path", ["", "playlist.000003.yaml"], ids=["commit", "list"])
@pytest.mark.parametrize("change", STOPPED if IS_FULL else ["append", "compact"])
@pytest.mark.parametrize("form", ["mds", "webdataset"])
def test_a_change_whose_new_files_were_pruned_meanwhile_is_refused(
    form, change, path, s3, tmp_path, short_leases
):
    out = f"{s3}/living/pruned-{form}-{change}-{bool(path)}"
    source, first, second = (
        named(at, count, tmp_path / f"{at}.parquet") for at, count in ((1, 3), (0, 4), (4, 2))
    )
    flare.pack(first, out, shard_rows=2, format=form, key="name")
    flare.pack(second, out, append=True, key="name")
    rows = ids(out)
    pid = stopped(lambda: STOPPED[change](out, source), path)
    try:
        assert flare.prune(out, keep=5).busy == ()
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == BusyError.exit_code
    assert ids(out) == rows
    for number in versions.numbers(locate(out)):
        assert list(flare.verify(f"{out}/playlist.{number:06d}.yaml")) == []
    assert list(flare.verify(out)) == []
    STOPPED[change](out, source)
    assert list(flare.verify(out)) == []
    assert flare.log(out)[-1].verb == change


@pytest.mark.parametrize("option", ["restore", "pin"])
def test_a_pruned_version_is_neither_restored_nor_pinned(option, s3, tmp_path, short_leases):
    out = f"{s3}/living/pruned-{option}"
    for i in range(3):
        one = table(10 * i, 2, tmp_path / f"{i}.parquet")
        if i:
            flare.drop(out, where=f"id = {10 * (i - 1)}")
        flare.pack(one, out, append=i > 0)
    newest = flare.open(out).version
    made = f"playlist.{newest + 1:06d}.yaml" if option == "restore" else "playlist.run.yaml"
    run = {"restore": lambda: flare.log(out, restore=1), "pin": lambda: flare.log(out, pin="run")}
    pid = stopped(run[option], made)
    try:
        if option == "pin":
            flare.drop(out, where="id = 11")
        flare.prune(out, keep=1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == BusyError.exit_code
    assert ids(out) == [1, 11, 20, 21] if option == "restore" else [1, 20, 21]
    names = [entry.name for entry in locate(out).list()]
    assert "playlist.run.yaml" not in names
    for number in versions.numbers(locate(out)):
        assert list(flare.verify(f"{out}/playlist.{number:06d}.yaml")) == []


@pytest.mark.parametrize("compacts", [False, True])
def test_rows_that_another_process_appended_for_a_stopped_process_are_in_the_dataset_once(
    compacts, s3, tmp_path, short_leases
):
    """The version of the append is pruned before the stopped process continues."""
    out, mine = f"{s3}/living/once-{compacts}", table(3, 3, tmp_path / "mine.parquet")
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    pid = stopped(lambda: flare.pack(mine, out, append=True), "")
    try:
        assert flare.pack(mine, out, append=True, resume=True).version == 2
        flare.pack(table(10, 2, tmp_path / "1.parquet"), out, append=True)
        if compacts:
            flare.compact(out)
        flare.prune(out, keep=1)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == (BusyError.exit_code if compacts else 0)
    assert ids(out) == [0, 1, 2, 3, 4, 5, 10, 11]
    assert [one.number for one in flare.log(out)] == [4 if compacts else 3]
    assert list(flare.verify(out)) == []


def test_a_stopped_process_does_not_append_a_key_that_was_erased_meanwhile(
    s3, tmp_path, short_leases
):
    out, mine = f"{s3}/living/erased-key", table(99, 1, tmp_path / "mine.parquet")
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    flare.drop(out, where="id = 0")
    keys = tmp_path / "keys.txt"
    keys.write_text("99\n")
    pid = stopped(lambda: flare.pack(mine, out, append=True), "playlist.000003.yaml")
    try:
        flare.drop(out, keys=str(keys), key="id", erase=True)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == BusyError.exit_code
    assert ids(out) == [1, 2]
    assert list(flare.verify(out)) == []


def test_a_stopped_process_does_not_leave_the_index_of_an_earlier_version(
    s3, tmp_path, short_leases
):
    """It continues before it writes the index of its version, after another process has committed
    the next version.
    """
    out = f"{s3}/living/index"
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)

    def append():
        real = MDS.write_version_index

        def stop(*args):
            os.kill(os.getpid(), signal.SIGSTOP)
            real(*args)

        MDS.write_version_index = staticmethod(stop)
        flare.pack(table(3, 3, tmp_path / "1.parquet"), out, append=True)

    def process():
        bucket_target._machine = lambda: "another machine"
        append()

    pid = forked(process)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])
    try:
        flare.pack(table(6, 3, tmp_path / "2.parquet"), out, append=True)
    finally:
        os.kill(pid, signal.SIGCONT)
    assert os.WIFSTOPPED(os.waitpid(pid, os.WUNTRACED)[1])  # it writes the newest index again
    os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == 0
    listed = json.loads((locate(out) / "index.json").read())["shards"]
    assert [one["samples"] for one in listed] == [3, 3, 3]
    assert list(flare.verify(out)) == []


@pytest.mark.parametrize("kind", ["s3", "google"])
def test_a_rejected_renewal_does_not_lose_a_lock_that_no_other_process_has_changed(kind, faulty):
    bucket, server = faulty(kind)
    lease = bucket_target.Lease(locate(f"{bucket}/lock"), bucket, waits=False)
    server.fault = fails("lock", ANSWERS["409"], False)
    lease.check(now=True)
    assert server.faults == 1
    lease.check(now=True)
    lease.release()
    assert not locate(f"{bucket}/lock").exists()


def test_the_last_object_of_a_log_is_deleted_first(faulty):
    """A deletion that is interrupted leaves the start of the log."""
    bucket, server = faulty("google")
    deleted: list[str] = []

    def record(request):
        if request.command == "DELETE":
            deleted.append(unquote(urlsplit(request.path).path).rpartition("/")[2])

    server.fault = record
    folder = locate(bucket) / ".flare"
    for number in (0, 2, 10, 99_999, 100_000):  # object 1 is missing
        (folder / f"journal/{number:05d}.json").write([b"{}\n"])
    assert open_log(folder / "journal").size == 3
    assert deleted == ["100000.json", "99999.json", "00010.json", "00002.json"]


def killed(number, run):
    """Run a function in a process that is killed before its deletion `number` (from 1) in a
    fragment. Return the exit code of the process.
    """

    def counted():
        real, numbers = ObjectStore.delete, itertools.count(1)

        def delete(self, path):
            if "/fragment." in path and next(numbers) == number:
                os.kill(os.getpid(), signal.SIGKILL)
            real(self, path)

        ObjectStore.delete = delete
        run()

    return exit_code(forked(counted))


def unfinished_append(source, out, step="commit"):
    """Append, but kill the process before a step: the commit, or `publish`, which follows it."""

    def append():
        setattr(versions, step, lambda *arguments: os.kill(os.getpid(), signal.SIGKILL))
        flare.pack(source, out, append=True, shard_rows=2)

    assert exit_code(forked(append)) == -signal.SIGKILL


@pytest.mark.parametrize("kind", ["s3", "azure"] if IS_FULL else ["s3"])
@pytest.mark.parametrize("number", range(1, 13) if IS_FULL else [1, 4, 7, 11])
def test_an_append_resumes_after_a_prune_that_was_killed_in_its_fragment(
    kind, number, request, tmp_path
):
    """The fragment has 4 shards, a list, an index, and 6 objects of the journal."""
    out, mine = (
        f"{request.getfixturevalue(kind)}/living/killed",
        table(3, 8, tmp_path / "1.parquet"),
    )
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    unfinished_append(mine, out)
    assert killed(number, lambda: flare.prune(out, keep=1)) == -signal.SIGKILL
    assert flare.pack(mine, out, append=True, shard_rows=2, resume=True).version == 2
    assert ids(out) == list(range(11))
    assert list(flare.verify(out)) == []


def test_a_prune_waits_for_all_fragments_of_dead_processes_at_once(
    s3, tmp_path, short_leases, monkeypatch
):
    """The processes were killed on other machines, so only the time shows that they are dead."""
    out, count = f"{s3}/living/dead", 3
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    for number in range(count):
        unfinished_append(table(3 + number, 8, tmp_path / f"{number + 1}.parquet"), out)
    for name in fragments(out):
        lock = locate(out) / f"{name}/.flare/lock"
        lock.write([json.dumps({**json.loads(lock.read()), "machine": "another"}).encode()])
    waits = threading.Barrier(count)
    is_dead = bucket_target.Lease._is_dead

    def wait_for_the_others(*arguments):
        waits.wait(timeout=30)
        return is_dead(*arguments)

    monkeypatch.setattr(bucket_target.Lease, "_is_dead", wait_for_the_others)
    assert flare.prune(out, keep=1).busy == ()
    assert not fragments(out)


def test_a_prune_that_stops_in_a_fragment_deletes_nothing_after_its_locks_expire(
    s3, tmp_path, short_leases
):
    """It stops after the check of its locks, so it deletes one file of the fragment, which an
    append has committed in the meantime.
    """
    out, mine = f"{s3}/living/stopped", table(3, 8, tmp_path / "mine.parquet")
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    unfinished_append(mine, out)
    pid = stopped(lambda: flare.prune(out, keep=1), "/index.json", "delete")
    try:
        assert flare.pack(mine, out, append=True, shard_rows=2, resume=True).version == 2
        assert list(flare.verify(out)) == []
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == BusyError.exit_code
    assert ids(out) == list(range(11))
    (fragment,) = fragments(out)
    (finding,) = flare.verify(out)
    assert (finding.kind, finding.address) == ("missing", f"{out}/{fragment}/index.json")


def test_a_prune_whose_lock_expires_keeps_the_list_of_failed_rows_of_an_erasure(
    s3, tmp_path, short_leases, capfd
):
    """The other process is an erasure, whose version lists a copy of `failed.jsonl`."""
    out = f"{s3}/living/failed"
    first = tmp_path / "0.parquet"
    pq.write_table(pa.table({"id": [0, 1, 2], "text": ["a", "b", "c"]}), first)
    second = tmp_path / "1.parquet"
    pq.write_table(pa.table({"id": [3, 4, 5], "text": [None, None, "d"]}), second)
    flare.pack(str(first), out)
    assert main(["pack", str(second), out, "--append", "--key=id", "--on-error=skip", "-q"]) == 1
    pid = stopped(lambda: flare.prune(out, keep=5), "/.flare-removal", "delete")
    try:
        (tmp_path / "keys").write_text("3\n")
        assert main(["drop", out, "--erase", "--key=id", f"--keys={tmp_path}/keys", "-q"]) == 0
        assert list(flare.verify(out)) == []
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == BusyError.exit_code
    hint = "hint: Run the same command again, with --resume if the command has this option."
    assert hint in capfd.readouterr().err.splitlines()
    assert list(flare.verify(out)) == []


@pytest.mark.parametrize("kind", ["local", "s3"])
def test_prune_finishes_the_fragment_of_a_process_that_was_killed_after_its_commit(
    kind, request, tmp_path, short_leases
):
    """Another append has already read the newest version when the process is killed."""
    out = str(tmp_path / "out") if kind == "local" else f"{request.getfixturevalue(kind)}/out"
    first, second = table(3, 3, tmp_path / "1.parquet"), table(6, 3, tmp_path / "2.parquet")
    flare.pack(table(0, 3, tmp_path / "0.parquet"), out)
    pid = stopped(lambda: flare.pack(second, out, append=True), "")
    try:
        unfinished_append(first, out, "publish")
    finally:
        os.kill(pid, signal.SIGCONT)
    assert exit_code(pid) == 0
    flare.pack(table(9, 3, tmp_path / "3.parquet"), out, append=True)
    assert ids(out) == list(range(12))
    flare.prune(out, keep=1)
    assert not [one.name for one in locate(out).list() if ".flare" in one.name.split("/")]
    assert sorted(row for name in fragments(out) for row in ids(f"{out}/{name}")) == [*range(3, 12)]
    assert list(flare.verify(out)) == []
