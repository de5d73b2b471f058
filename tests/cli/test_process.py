"""`flare` as a process: start-up, signals, pipes, full disks, locales, completion."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time

import pytest

from flarecli.__main__ import GRACE_S, main
from flarecli.model import Settings
from flarecli.write import Writer

HEAVY = ("numpy", "pyarrow", "rich", "yaml", "duckdb", "pycurl", "PIL", "tqdm", "pandas")


def loaded_by(args, env=None, heavy=HEAVY):
    """Return the heavy libraries that are loaded when `flare ARGS` ends."""
    code = f"import os, sys; sys.argv = ['flare', *{args!r}]; os._exit = lambda code: print([n for n in {heavy!r} if n in sys.modules])\n"
    code += "from flarecli.__main__ import entry; entry()"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **(env or {})},
        timeout=60,
    )
    return done.stdout.splitlines()[-1], done.stdout


@pytest.mark.parametrize(
    "args",
    [["--version"], ["--help"], ["pack", "--help"], ["cat", "--help"], ["pack", "-h"], ["-h"], []],
)
def test_start_up_loads_no_heavy_library(args):
    assert loaded_by(args)[0] == "[]"


def test_the_version_is_printed_without_loading_typer():
    code = "import sys; sys.argv = ['flare', '--version']; import os; os._exit = lambda code: print('typer' in sys.modules)\n"
    code += "from flarecli.__main__ import entry; entry()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    assert done.stdout.splitlines() == ["flare 0.1.0", "False"]


@pytest.mark.parametrize("options", [["-q"], ["--quick"], ["-j", "1", "--json"], ["-v"]])
def test_verify_of_large_rows_loads_only_numpy_and_yaml(tmp_path, options):
    with Writer(
        str(tmp_path / "out"),
        columns={"id": "int", "data": "bytes"},
        settings=Settings(shard_rows=4),
    ) as writer:
        for i in range(10):
            writer.write({"id": i, "data": bytes(20_000)})
    heavy, printed = loaded_by(["verify", *options, str(tmp_path / "out")])
    assert heavy == "['numpy', 'yaml']" and "10" in printed


def test_a_command_loads_arrow_but_not_an_installed_pandas(tmp_path):
    (tmp_path / "pandas.py").write_text("raise SystemExit('pandas was loaded')")
    (tmp_path / "index.csv").write_text("key,text\n1,one\n")
    args = ["pack", str(tmp_path / "index.csv"), str(tmp_path / "out"), "-q"]
    heavy, printed = loaded_by(args, {"PYTHONPATH": str(tmp_path)})
    assert ("'pyarrow'" in heavy, "'pandas'" in heavy) == (True, False), printed


@pytest.mark.parametrize(
    ("shell", "words", "wanted"),
    [
        ("bash", "flare pa", ["pack"]),
        ("bash", "flare pack --shard-", ["--shard-size", "--shard-rows"]),
        ("bash", "flare pack -f m", ["mds"]),
        ("bash", "flare cat --to p", ["parquet"]),
        ("zsh", "flare ver", ['"verify"']),
        ("fish", "flare ver", ["verify"]),
    ],
)
def test_completion_of_commands_options_and_values_loads_no_heavy_library(shell, words, wanted):
    env = {
        "_FLARE_COMPLETE": f"complete_{shell}",
        "COMP_WORDS": words,
        "COMP_CWORD": str(len(words.split()) - 1),
    }
    env |= {"_TYPER_COMPLETE_ARGS": words, "_TYPER_COMPLETE_FISH_ACTION": "get-args"}
    heavy, printed = loaded_by([], env)
    assert heavy == "[]"
    for one in wanted:
        assert one in printed


@pytest.mark.parametrize(
    ("words", "wanted"),
    [
        ("flare cat pets.csv -c ", "id\ntext\nscore\n"),
        ("flare cat pets.csv --columns id,s", "id,score\n"),
        ("flare pack pets.csv out --key t", "text\n"),
        ("flare cat missing.csv -c ", "\n"),
        ("flare cat http://127.0.0.1:9/pets.csv -c ", "\n"),
        ("flare drop set --key t", "text\n"),
        ("flare cat far.yaml -c ", "\n"),
    ],
)
def test_completion_lists_the_columns_of_a_local_table(flare_run, tmp_path, words, wanted):
    (tmp_path / "pets.csv").write_text("id,text,score\n1,a cat,0.9\n")
    assert main(["pack", f"{tmp_path}/pets.csv", f"{tmp_path}/set", "-q"]) == 0
    far = "data:\n  content:\n    - http://127.0.0.1:9/shard.00000.mds\n"
    (tmp_path / "far.yaml").write_text(far)
    env = {"_FLARE_COMPLETE": "complete_bash", "COMP_WORDS": words}
    env["COMP_CWORD"] = str(words.count(" "))
    ran = flare_run([], env=env, cwd=tmp_path)
    assert (ran.code, ran.out, ran.err) == (0, wanted, "")


def test_completion_reads_the_playlist_as_often_as_opening_the_dataset(tmp_path):
    (tmp_path / "pets.csv").write_text("id,text,score\n1,a cat,0.9\n")
    assert main(["pack", f"{tmp_path}/pets.csv", f"{tmp_path}/set", "-q"]) == 0
    code = """
import os, sys
import flarecli
opened = []
sys.addaudithook(lambda event, args: event == "open" and opened.append(str(args[0])))
with flarecli.open("set"):
    once = sum(name.endswith("playlist.yaml") for name in opened)
opened.clear()
os._exit = lambda code: print(once, sum(name.endswith("playlist.yaml") for name in opened))
from flarecli.__main__ import entry; entry()"""
    env = {
        "_FLARE_COMPLETE": "complete_bash",
        "COMP_WORDS": "flare cat set -c t",
        "COMP_CWORD": "4",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        env={**os.environ, **env},
        cwd=tmp_path,
        timeout=60,
    )
    names, counts = done.stdout.splitlines()
    once, opened = map(int, counts.split())
    assert (names, done.stderr) == ("text", "")
    assert 0 < opened == once


NAMED_SHELL = {
    "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"
}  # otherwise Typer detects the shell that started the tests


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_the_completion_script_can_be_shown(flare_run, shell):
    ran = flare_run(["--show-completion", shell], env=NAMED_SHELL)
    assert (ran.code, ran.err) == (0, "")
    assert "_FLARE_COMPLETE" in ran.out


SLOW = """
import sys, time
def pack(*args, **options):
    print("begun", file=sys.stderr, flush=True)
    while True:
        time.sleep(0.01)
"""


def signalled(process, number):
    """Send a signal when the command has started; return its outcome and the time until its end."""
    assert process.stderr.readline() == b"begun\n"
    process.send_signal(number)
    start = time.monotonic()
    try:
        out, err = process.communicate(timeout=30)
    except subprocess.TimeoutExpired:
        process.kill()  # otherwise the end of the `with` would wait for the process
        raise
    return process.returncode, out.decode(), err.decode(), time.monotonic() - start


@pytest.mark.parametrize(
    ("number", "code", "what"),
    [
        (signal.SIGINT, 130, "interrupted"),
        (signal.SIGTERM, 143, "terminated"),
        (signal.SIGHUP, 129, "hung up"),
    ],
)
def test_a_signal_ends_a_run_with_one_line(flare_process, number, code, what):
    with flare_process(["pack", "index.csv", "out"], SLOW) as process:
        assert signalled(process, number)[:3] == (
            code,
            "",
            f"error: {what}; use --resume to continue\n",
        )


def test_an_ignored_sighup_stays_ignored(tmp_path):
    """Under `nohup`, the end of the terminal session does not end the run."""
    index = tmp_path / "index.csv"
    os.mkfifo(index)
    before = signal.signal(
        signal.SIGHUP, signal.SIG_IGN
    )  # inherited by the process, as under `nohup`
    try:
        process = subprocess.Popen(
            [sys.executable, "-m", "flarecli", "pack", str(index), str(tmp_path / "out")],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
        )
    finally:
        signal.signal(signal.SIGHUP, before)
    with process:
        with open(index, "wb"):  # waits for the reader
            process.send_signal(signal.SIGHUP)
        process.communicate()
    assert process.returncode == 4  # the run ended after the signal, at the end of the empty stream


def test_a_signal_is_reported_as_json_with_json(flare_process):
    with flare_process(["pack", "index.csv", "out", "--json"], SLOW) as process:
        fields = {
            "kind": "interrupted",
            "message": "interrupted",
            "where": "",
            "row": None,
            "column": None,
            "hint": "Use --resume to continue.",
            "exit_code": 130,
        }
        told = json.dumps({"error": fields}) + "\n"
        assert signalled(process, signal.SIGINT)[:3] == (130, "", told)


def test_finally_blocks_run_despite_a_second_signal(flare_process, tmp_path):
    source = f"""
import os, signal, sys, time
def pack(*args, **options):
    try:
        print("begun", file=sys.stderr, flush=True)
        time.sleep(60)
    finally:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.1)
        open({str(tmp_path / "tidied")!r}, "w").close()
"""
    with flare_process(["pack", "index.csv", "out"], source) as process:
        assert signalled(process, signal.SIGTERM)[:3] == (
            143,
            "",
            "error: terminated; use --resume to continue\n",
        )
    assert (tmp_path / "tidied").exists()


def test_a_signal_during_an_import_is_handled_after_the_import(flare_process, tmp_path):
    (tmp_path / "slow_module.py").write_text(
        "import sys, time\nprint('begun', file=sys.stderr, flush=True)\ntime.sleep(0.3)\nprint('loaded', flush=True)\n"
    )
    source = f"""
import sys
def pack(*args, **options):
    sys.path.insert(0, {str(tmp_path)!r})
    import slow_module
    while True: pass
"""
    with flare_process(["pack", "index.csv", "out"], source) as process:
        assert signalled(process, signal.SIGINT)[:3] == (
            130,
            "loaded\n",
            "error: interrupted; use --resume to continue\n",
        )


def test_an_interrupt_that_a_finalizer_swallows_is_raised_again(flare_process):
    source = """
import os, signal, sys, time
class Dropped:
    def __del__(self):
        os.kill(os.getpid(), signal.SIGINT)
        for _ in range(1000): pass
def pack(*args, **options):
    print("begun", file=sys.stderr, flush=True)
    Dropped()
    while True: time.sleep(0.01)
"""
    with flare_process(["pack", "index.csv", "out"], source) as process:
        code, out, err, seconds = signalled(process, signal.SIGWINCH)
    assert (code, out, err) == (130, "", "error: interrupted; use --resume to continue\n")
    assert seconds < 3


def test_a_run_that_swallows_the_interrupt_is_killed_after_the_grace_period(flare_process):
    source = """
import sys, time
def pack(*args, **options):
    import flarecli.__main__
    flarecli.__main__.GRACE_S = 0.3
    while True:
        try:
            print("begun", file=sys.stderr, flush=True)
            time.sleep(60)
        except BaseException:
            time.sleep(60)
"""
    with flare_process(["pack", "index.csv", "out"], source) as process:
        assert signalled(process, signal.SIGINT)[:3] == (
            130,
            "",
            "error: interrupted; use --resume to continue\n",
        )
    assert GRACE_S < 5


def test_a_killed_pack_leaves_no_partial_file(tmp_path):
    (tmp_path / "index.csv").write_text("text\n" + "".join(f"{i}\n" for i in range(9)))
    code = """
import sys, threading, time
import flarecli.__main__, flarecli.compress
flarecli.__main__.GRACE_S = 0.3
begun = threading.Lock()
def compressed(*_):
    yield b"begun"
    while True:
        try:
            if begun.acquire(blocking=False):
                time.sleep(0.3)  # whoever started this thread waits for its shard by now
                print("begun", file=sys.stderr, flush=True)
            time.sleep(60)
        except BaseException:
            continue
flarecli.compress.compressed = compressed
flarecli.__main__.entry()
"""
    for jobs in ("1", "2"):
        args = [
            "pack",
            str(tmp_path / "index.csv"),
            str(tmp_path / "out"),
            "-z",
            "gz",
            "--shard-rows",
            "2",
            "-j",
            jobs,
        ]
        with subprocess.Popen(
            [sys.executable, "-c", code, *args], stdout=subprocess.PIPE, stderr=subprocess.PIPE
        ) as process:
            assert signalled(process, signal.SIGTERM)[:3] == (
                143,
                "",
                "error: terminated; use --resume to continue\n",
            )
        assert sorted(path.name for path in (tmp_path / "out").rglob("*")) == [
            ".flare",
            "journal",
            "lock",
        ]
        shutil.rmtree(tmp_path / "out")


def test_an_interrupt_that_became_another_error_is_reported_as_an_interrupt(flare_process):
    source = """
import sys, time
def verify(*args, **options):
    try:
        print("begun", file=sys.stderr, flush=True)
        time.sleep(60)
    except KeyboardInterrupt:
        raise RuntimeError("query interrupted")
"""
    with flare_process(["verify", "out"], source) as process:
        assert signalled(process, signal.SIGINT)[:3] == (130, "", "error: interrupted\n")


def test_a_signal_at_random_times_never_ends_with_exit_0_or_a_traceback(flare_process):
    source = "import time\ndef pack(*args, **options):\n    import numpy, pyarrow, yaml\n    time.sleep(60)\n"
    for i in range(12):
        with flare_process(
            ["pack", "index.csv", "out"],
            "import sys\nprint(end='begun\\n', file=sys.stderr, flush=True)\n" + source,
        ) as process:
            assert process.stderr.readline() == b"begun\n"
            time.sleep(
                0.012 * i
            )  # flarecli.commands is imported; the command line and libraries are being loaded
            process.send_signal(signal.SIGTERM)
            _, err = process.communicate(timeout=30)
        assert process.returncode in (143, -signal.SIGTERM)
        assert b"Traceback" not in err


ROWS = """
def cat(*args, **options):
    import pyarrow as pa
    for start in range(0, 100_000, 1000):
        yield pa.record_batch({"n": list(range(start, start + 1000))})
"""


def test_a_pipe_closed_early_is_not_an_error(flare_process):
    with flare_process(["cat", "x"], ROWS) as process:
        assert process.stdout.readline() == b'{"n": 0}\n'
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(timeout=60), err) == (0, b"")


@pytest.mark.parametrize(
    "args", [["--help"], ["cat", "--help"], ["--version"], ["--show-completion", "bash"]]
)
def test_a_pipe_closed_before_the_start_is_not_an_error(flare_run, args):
    reading, writing = os.pipe()
    os.close(reading)
    try:
        ran = flare_run(args, env=NAMED_SHELL, stdout=writing)
    finally:
        os.close(writing)
    assert (ran.code, ran.err) == (0, "")


@pytest.mark.parametrize("form", ["csv", "table", "arrow", "parquet"])
def test_a_pipe_closed_early_is_not_an_error_in_any_output_form(flare_process, form):
    with flare_process(["cat", "x", "--to", form], ROWS) as process:
        assert process.stdout.read(1)
        process.stdout.close()
        err = process.stderr.read()
        assert (process.wait(timeout=60), err) == (0, b"")


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="no /dev/full here")
@pytest.mark.parametrize(
    "args",
    [
        ["cat", "x"],
        ["cat", "x", "--to", "csv"],
        ["cat", "x", "--to", "arrow"],
        ["cat", "x", "--to", "parquet"],
        ["--version"],
        ["--help"],
        ["cat", "-h"],
    ],
)
def test_a_full_disk_under_stdout_is_an_error(flare_run, args):
    with open("/dev/full", "wb") as full:
        ran = flare_run(args, ROWS, stdout=full)
    assert (ran.code, ran.err) == (3, "error: stdout: No space left on device\n")


@pytest.mark.parametrize("args", [["cat", "x"], ["--help"], ["--version"]])
def test_a_closed_stdout_is_an_error(flare_run, args):
    ran = flare_run(args, ROWS, stdout=None, preexec_fn=lambda: os.close(1))
    assert (ran.code, ran.err) == (3, "error: stdout: the stream is closed\n")


def test_a_closed_stderr_changes_nothing(flare_run):
    ran = flare_run(["cat", "x", "--head", "1"], ROWS, stderr=None, preexec_fn=lambda: os.close(2))
    assert (ran.code, len(ran.out.splitlines())) == (0, 100_000)


TEXT = """
def cat(*args, **options):
    import pyarrow as pa
    yield pa.record_batch({"é": ["naïve 漢字"]})
"""


@pytest.mark.parametrize(
    "env",
    [
        {"LC_ALL": "C"},
        {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"},
        {"PYTHONIOENCODING": "ascii:strict"},
    ],
)
def test_output_is_utf_8_in_every_locale(flare_run, env):
    assert flare_run(["cat", "x"], TEXT, env).out == '{"é": "naïve 漢字"}\n'
    ran = flare_run(
        ["cat", "naïve\udcff"],
        "from flarecli.errors import MissingError\ndef cat(source, **options):\n    raise MissingError('nothing is there', where=source[0])\n",
        env,
    )
    assert (ran.code, ran.err) == (3, "error: naïve\\udcff: nothing is there\n")


def test_the_module_and_the_script_print_the_same(flare_run):
    assert flare_run(["--version"]).out == "flare 0.1.0\n"
