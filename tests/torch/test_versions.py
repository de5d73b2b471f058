"""Ranks that opened different versions raise an error, in processes that gloo connects."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import flarecli as flare
from flarecli.errors import UsageError

pytest.importorskip("torch")

from flarecli.torch import same_version
from flarecli.torch.versions import _named

RANKS = 4
SCRIPT = """
import json, os, sys, time
import torch.distributed as distributed
import flarecli as flare
from flarecli.errors import UsageError
from flarecli.torch import same_version

folder = sys.argv[1]
ranks = range(4)
rank = next((rank for rank in ranks if os.fork() == 0), None)  # torch is imported only once
if rank is None:
    sys.exit(any(os.wait()[1] for _ in ranks))

def outcome(call):
    try:
        return len(call())
    except UsageError as error:
        return [str(error), error.hint]

while rank >= 2 and not os.path.exists("committed"):
    time.sleep(0.01)
data = flare.open(folder)
open(f"opened.{rank}", "w").close()
distributed.init_process_group("gloo", f"file://{os.getcwd()}/store", rank=rank, world_size=4)
late = distributed.new_group([2, 3])
first, third = distributed.new_group([0]), distributed.new_group([1, 2])
found = {"all": outcome(lambda: same_version(data))}
found["late"] = outcome(lambda: same_version(data, late))
found["third"] = outcome(lambda: same_version(data, third))
pinned = flare.open(found["all"][1].split()[1])
found["pinned"] = outcome(lambda: same_version(pinned))
found["heads"] = outcome(lambda: same_version(pinned.head(rank // 3 + 1)))
other = flare.open("other")
found["mix"] = outcome(lambda: same_version(flare.mix({data: 0.5, other: 0.5})))
json.dump(found, open(f"found.{rank}", "w"))
distributed.destroy_process_group()
"""


def rows(first, count):
    return [{"id": i} for i in range(first, first + count)]


def test_ranks_that_open_around_a_commit_raise_an_error_with_the_version_to_open(tmp_path):
    """Ranks 0 and 1 open the dataset before a commit, and ranks 2 and 3 after it."""
    out = tmp_path / "out"
    flare.pack(rows(0, 10), out, shard_rows=4)
    flare.pack(rows(10, 5), out, append=True)
    flare.pack(rows(0, 8), tmp_path / "other")
    code = Path(tmp_path / "rank.py")
    code.write_text(SCRIPT)
    loopback = "lo" if sys.platform == "linux" else "lo0"
    env = os.environ | {"GLOO_SOCKET_IFNAME": loopback, "OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-W", "ignore", code, out]
    running = subprocess.Popen(command, cwd=tmp_path, env=env, start_new_session=True)
    try:
        deadline = time.monotonic() + 120
        while not all((tmp_path / f"opened.{rank}").exists() for rank in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        flare.pack(rows(15, 7), out, append=True)
        (tmp_path / "committed").touch()
        assert running.wait(timeout=120) == 0
    finally:
        with contextlib.suppress(ProcessLookupError):  # all ranks have ended
            os.killpg(running.pid, signal.SIGKILL)
        running.wait()
    found = [json.loads((tmp_path / f"found.{rank}").read_text()) for rank in range(RANKS)]
    old, new = (f"{out}/playlist.00000{number}.yaml" for number in (2, 3))
    error = [f"ranks 0, 1 opened {old}; ranks 2, 3 opened {new}", f"Open {old} on all ranks."]
    assert [one["all"] for one in found] == [error] * RANKS
    assert [one["mix"] for one in found] == [error] * RANKS
    assert [one["pinned"] for one in found] == [15] * RANKS
    assert [one["late"] for one in found] == [15, 15, 22, 22]
    some = [f"rank 1 opened {old}; rank 2 opened {new}", f"Open {old} on all ranks."]
    assert [one["third"] for one in found] == [15, some, some, 22]
    heads = [flare.open(old).head(count).checksum for count in (1, 2)]
    assert [one["heads"] for one in found] == RANKS * [
        [
            f"ranks 0, 1, 2 opened data with checksum {heads[0]!r}; "
            f"rank 3 opened data with checksum {heads[1]!r}",
            "Open the same streams and select the same rows on all ranks.",
        ]
    ]


def test_without_torch_distributed_nothing_is_compared(tmp_path):
    flare.pack(rows(0, 3), tmp_path / "out")
    data = flare.open(str(tmp_path / "out"))
    assert same_version(data) is data
    with pytest.raises(UsageError, match="^expected a dataset, got 'out'"):
        same_version("out")


def test_an_error_names_at_most_four_ranks_of_a_version():
    assert [_named(list(range(count))) for count in (1, 4, 5)] == [
        "rank 0",
        "ranks 0, 1, 2, 3",
        "ranks 0, 1, 2, 3 and 1 more",
    ]
