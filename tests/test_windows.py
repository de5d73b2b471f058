"""flare on Windows reads, verifies and unpacks datasets, and refuses to write them.

The tests run on Windows, on other systems, and under the simulation in tests/windows.
"""

import contextlib
import importlib
import io
import json
import mmap
import os
import pkgutil
import select
import signal
import subprocess
import sys
import tarfile
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet
import pytest

import flarecli as flare
from flarecli.__main__ import main
from flarecli.errors import FlareError, MissingError, MissingLibraryError, UnsafeError
from flarecli.names import is_url, local_path, windows_fault
from flarecli.storage import Guard, locate
from flarecli.storage.local import LocalStore

ROOT = Path(__file__).parents[1]
GOLDEN = ROOT / "fixtures"
IS_WINDOWS = sys.platform == "win32"
OPTIONAL = ("ray", "torch")  # libraries that are not installed with flare
VALUES = [f"text {number}" for number in range(7)]

pytestmark = pytest.mark.windows


def golden(path, column):
    """Return the address of a golden dataset, a column, and the reprs of the column's values."""
    text = (GOLDEN / path / "expected.jsonl").read_text("utf-8")
    rows = [json.loads(line)["fields"] for line in text.splitlines()]
    return GOLDEN / path / "data", column, [row[column]["repr"] for row in rows]


def created(folder, name):
    """Write the texts in VALUES to a file, with libraries other than flare."""
    path, table = folder / name, pa.table({"txt": VALUES})
    if name.endswith(".parquet"):
        pyarrow.parquet.write_table(table, path)
    elif name.endswith(".jsonl"):
        path.write_bytes(b"".join(b'{"txt": "%s"}\n' % value.encode() for value in VALUES))
    elif name.endswith(".csv"):
        path.write_bytes(b"txt\r\n" + b"".join(b"%s\r\n" % value.encode() for value in VALUES))
    else:
        with tarfile.open(path, "w") as tar:
            for number, value in enumerate(VALUES):
                member = tarfile.TarInfo(f"{number:03d}.txt")
                member.size = len(value)
                tar.addfile(member, io.BytesIO(value.encode()))
    return path, "txt", list(map(repr, VALUES))


DATASETS = {
    "mds": lambda folder: golden("mds/mds_comp_zstd", "id"),
    "json": lambda folder: golden("mds/json_comp_gz", "id"),
    "csv": lambda folder: golden("mds/csv_crlf", "a"),
    "ffrecord": lambda folder: golden("ffrecord/one", "data"),
    "granular": lambda folder: (
        GOLDEN / "granular/v1/sharded/data/ds",
        "n",
        list(map(str, range(11))),
    ),
    "tfrecord": lambda folder: (
        GOLDEN / "tfrecord/peer.tfrecord",
        "label",
        ["-2", "-1", "0", "1", "2"],
    ),
    "webdataset": lambda folder: created(folder, "shard.tar"),
    "parquet table": lambda folder: created(folder, "table.parquet"),
    "CSV table": lambda folder: created(folder, "table.csv"),
    "JSON table": lambda folder: created(folder, "table.jsonl"),
}


@pytest.fixture(params=DATASETS)
def dataset(request, tmp_path):
    """Return the address of a dataset, one of its columns, and the reprs of the column's values."""
    address, column, reprs = DATASETS[request.param](tmp_path)
    return str(address), column, reprs


def as_list(values):
    return values.tolist() if hasattr(values, "tolist") else list(values)


def run(*argv):
    """Run a command in this process; return its exit code, and the lines of stdout and of
    stderr.
    """
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(arg) for arg in argv])
    return code, out.getvalue().splitlines(), err.getvalue().splitlines()


@contextlib.contextmanager
def served(folder):
    """Serve a folder over HTTP, and yield its address."""
    handler = partial(SimpleHTTPRequestHandler, directory=str(folder))
    handler.func.log_message = lambda *args: None
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@pytest.mark.skipif(not IS_WINDOWS, reason="other systems have these functions")
def test_this_system_lacks_what_windows_lacks(tmp_path):
    """Without this test, the simulation in tests/windows could stop to simulate Windows."""
    names = "fork getuid geteuid pread preadv pwrite register_at_fork sched_getaffinity sysconf O_NOFOLLOW O_DIRECTORY"
    assert [name for name in names.split() if hasattr(os, name)] == []
    assert not hasattr(select, "poll") and not hasattr(mmap, "MAP_PRIVATE")
    assert not hasattr(signal, "SIGALRM") and not hasattr(signal, "SIGKILL")
    for module in ("fcntl", "resource", "pwd"):
        with pytest.raises(ImportError):
            importlib.import_module(module)
    (tmp_path / "file").write_bytes(b"data")
    with pytest.raises(PermissionError):
        os.open(tmp_path, os.O_RDONLY)
    with pytest.raises(NotImplementedError):
        os.open("file", os.O_RDONLY, dir_fd=0)
    with open(tmp_path / "file", "rb"), pytest.raises(PermissionError):
        os.unlink(tmp_path / "file")
    with pytest.raises(FileExistsError):
        os.rename(tmp_path / "file", created(tmp_path, "table.csv")[0])


def test_every_module_can_be_imported():
    failed = {}
    for module in pkgutil.walk_packages(flare.__path__, "flarecli.", onerror=lambda name: None):
        try:
            importlib.import_module(module.name)
        except MissingLibraryError as error:
            assert module.name in ("flarecli.ray", "flarecli.torch"), error
        except ImportError as error:
            if (error.name or "").partition(".")[0] not in OPTIONAL:
                failed[module.name] = str(error)
    assert failed == {}


def test_rows_batches_and_a_loader_have_the_values_that_were_written(dataset):
    address, column, reprs = dataset
    with flare.open(address) as data:
        assert [repr(data[row][column]) for row in range(len(data))] == reprs
        batches = [batch[column] for batch in data.batches(4, columns=[column])]
        assert [repr(value) for batch in batches for value in as_list(batch)] == reprs
        with flare.Loader(data, 4, workers=2) as loader:
            shuffled = [repr(value) for batch in loader for value in as_list(batch[column])]
    assert sorted(shuffled) == sorted(reprs)


def test_cat_inspect_and_verify_read_a_dataset(dataset):
    address, column, reprs = dataset
    rows = len(reprs)
    code, lines, errors = run("cat", address, "-c", column)
    assert (code, len(lines), errors) == (0, rows, [])
    code, lines, errors = run("inspect", address, "--json")
    assert (code, json.loads("\n".join(lines))["rows"], errors) == (0, rows, [])
    code, lines, _ = run("verify", address, "--decode")
    assert code == 0 and lines[-1].startswith("whole: ")


def test_verify_reports_a_damaged_file(tmp_path):
    damaged = bytearray((GOLDEN / "ffrecord/many/data/many.ffr").read_bytes())
    damaged[-1] ^= 1
    (tmp_path / "many.ffr").write_bytes(damaged)
    code, lines, _ = run("verify", tmp_path / "many.ffr")
    assert code == 1 and "checksum" in lines[0]


def test_unpack_writes_replaces_and_completes_files(tmp_path):
    source, _, _ = created(tmp_path, "shard.tar")
    out = tmp_path / "out"
    for flags in ([], ["--overwrite"], ["--resume"]):
        assert run("unpack", source, out, "-q", *flags)[0] == 0
        assert sorted(os.listdir(out)) == [*(f"{n:03d}.txt" for n in range(7)), "index.jsonl"]
        assert [(out / f"{n:03d}.txt").read_text() for n in range(7)] == VALUES
    assert sorted(os.listdir(tmp_path)) == ["out", "shard.tar"]


@pytest.mark.skipif(not IS_WINDOWS, reason="this name is valid on other systems")
def test_unpack_rejects_names_that_windows_cannot_store_before_it_writes(tmp_path):
    with tarfile.open(tmp_path / "shard.tar", "w") as tar:
        for name in ("09.txt", "10:20.txt"):
            tar.addfile(tarfile.TarInfo(name), io.BytesIO())
    code, _, errors = run("unpack", tmp_path / "shard.tar", tmp_path / "out")
    assert code == 4 and "file name '10:20.txt' is not a valid name on Windows" in errors[0]
    assert not (tmp_path / "out").exists()


def test_a_dataset_of_a_web_server_is_read(tmp_path):
    with served(GOLDEN / "mds/mds_comp_zstd/data") as url, flare.open(f"{url}/") as remote:
        with flare.open(GOLDEN / "mds/mds_comp_zstd/data") as local:
            assert [row["id"] for row in remote] == [row["id"] for row in local]
            with flare.Loader(remote, 8, workers=2) as loader:
                assert sum(len(batch["id"]) for batch in loader) == len(local)
        assert run("verify", f"{url}/")[0] == 0


def test_a_symbolic_link_in_a_dataset_is_refused(tmp_path):
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/file").write_bytes(b"secret")
    (tmp_path / "data").mkdir()
    try:
        (tmp_path / "data/folder").symlink_to(tmp_path / "secret", target_is_directory=True)
        (tmp_path / "data/file").symlink_to(tmp_path / "secret/file")
    except OSError as error:
        # on Windows, creating links requires a privilege that many users lack
        if getattr(error, "winerror", None) != 1314:
            raise
        pytest.skip("this user cannot create symbolic links")
    store = LocalStore(str(tmp_path / "data"))
    for name in ("file", "folder/file"):
        with pytest.raises(UnsafeError, match="is a symbolic link"):
            store.read(name)
    assert LocalStore(store.root, guard=Guard(allow_local=True)).read("folder/file") == b"secret"


def test_a_folder_is_not_read_as_a_file(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(FlareError, match="is a folder; expected a file"):
        LocalStore(str(tmp_path)).read("folder")
    with pytest.raises(MissingError, match="no such file or folder"):
        LocalStore(str(tmp_path)).read("folder/missing")


def test_addresses_with_two_dots_stay_in_the_folder(tmp_path):
    (tmp_path / "data/a").mkdir(parents=True)
    (tmp_path / "data/file").write_bytes(b"inside")
    (tmp_path / "file").write_bytes(b"outside")
    store = LocalStore(os.path.realpath(tmp_path / "data"))
    assert store.join("", "a/../file").read() == b"inside"
    for address in ("../file", "a/../../file"):
        with pytest.raises(UnsafeError, match="points outside the folder"):
            store.join("", address)
    for address in (r"..\file", r"a\..\..\file", r"C:\file", "C:file", r"\\server\file"):
        with pytest.raises(UnsafeError):
            store.join("", address)


@pytest.mark.parametrize(
    "address", [r"C:\data\x.mds", "C:/data/x.mds", "C://data", r"\\server\share", "x.mds"]
)
def test_paths_with_a_drive_or_a_server_are_not_urls(address):
    assert not is_url(address)


@pytest.mark.skipif(not IS_WINDOWS, reason="backslashes are ordinary characters in names")
@pytest.mark.parametrize(
    ("address", "path"),
    [
        (r"C:\data\x.mds", "C:/data/x.mds"),
        (r"data\x.mds", "data/x.mds"),
        (r"\\server\share\x.mds", "//server/share/x.mds"),
        ("file:///C:/data/x%20y.mds", "C:/data/x y.mds"),
        ("file://localhost/C:/data/x.mds", "C:/data/x.mds"),
    ],
)
def test_paths_of_windows_get_slashes(address, path):
    assert local_path(address) == path


@pytest.mark.skipif(not IS_WINDOWS, reason="backslashes are ordinary characters in names")
def test_a_path_with_backslashes_is_opened(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder/file").write_bytes(b"data")
    assert locate(f"{tmp_path}\\folder\\file").read() == b"data"


@pytest.mark.parametrize(
    ("name", "fault"),
    [
        ("nul", "is a device name on Windows"),
        ("COM1.txt", "is a device name on Windows"),
        ("a:b", "contains a character that Windows reserves"),
        ("what?", "contains a character that Windows reserves"),
        ("name.", "ends with a dot or a space, which Windows removes"),
        ("name ", "ends with a dot or a space, which Windows removes"),
        ("name.txt", ""),
        (".hidden", ""),
    ],
)
def test_names_that_windows_reserves_are_recognized(name, fault):
    assert windows_fault(name) == fault


@pytest.mark.skipif(not IS_WINDOWS, reason="these names are ordinary on other systems")
@pytest.mark.parametrize("name", ["nul", "a:b", "name."])
def test_names_that_windows_reserves_are_neither_read_nor_written(tmp_path, name):
    store = LocalStore(str(tmp_path))
    for call in (partial(store.read, name), partial(store.write, name, [b"data"])):
        with pytest.raises(UnsafeError, match="Windows"):
            call()
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(not IS_WINDOWS, reason="other systems can write datasets")
@pytest.mark.parametrize(
    "argv",
    [
        ["pack", "table.csv", "out"],
        ["pack", "table.csv", "out", "--dry-run"],
        ["pack", "table.csv", "out", "--append"],
        ["drop", "out", "--rows", "0"],
        ["compact", "out"],
        ["prune", "out", "--keep", "1"],
    ],
    ids=" ".join,
)
def test_a_command_that_writes_a_dataset_names_wsl(tmp_path, monkeypatch, argv):
    created(tmp_path, "table.csv")
    monkeypatch.chdir(tmp_path)
    assert run(*argv) == (
        6,
        [],
        [
            "error: flare cannot write datasets on Windows",
            "hint: Run the command in WSL (Windows Subsystem for Linux).",
        ],
    )
    assert os.listdir(tmp_path) == ["table.csv"]


@pytest.mark.skipif(not IS_WINDOWS, reason="other systems can write datasets")
def test_a_writer_names_wsl(tmp_path):
    with pytest.raises(MissingLibraryError, match="flare cannot write datasets on Windows"):
        flare.Writer(tmp_path / "out", columns={"a": "int"})
    assert os.listdir(tmp_path) == []


@pytest.mark.skipif(IS_WINDOWS, reason="this system needs no simulation")
def test_all_tests_of_windows_pass_without_what_windows_lacks():
    paths = [ROOT / "tests/windows", ROOT, os.environ.get("PYTHONPATH", "")]
    ran = subprocess.run(
        [
            sys.executable,
            "-m",
            "pytest",
            "-p",
            "no:cacheprovider",
            "-p",
            "no:xdist",
            "-m",
            "windows",
            "tests",
        ],
        cwd=ROOT,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(map(str, paths))},
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert ran.returncode == 0, ran.stdout + ran.stderr
