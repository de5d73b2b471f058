"""Rows over two ranks under accelerate, Lightning and the Trainer of transformers: each row once.

TRAINING_PYTHON names an interpreter that has flare, accelerate, lightning and transformers. The two
ranks are processes that meet on 127.0.0.1.
"""

import json
import os
import socket
import subprocess
from pathlib import Path

import pytest

import flarecli as flare
from flarecli.model import Settings

PEER = os.environ.get("TRAINING_PYTHON")
SCRIPT = Path(__file__).with_name("training_peer.py")
pytestmark = pytest.mark.skipif(
    not PEER,
    reason="TRAINING_PYTHON names no interpreter that has accelerate, lightning and transformers",
)
ROWS, BATCH = 50, 4
ALL = list(range(ROWS))
OFFLINE = {
    "MASTER_ADDR": "127.0.0.1",
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
    "HF_HUB_OFFLINE": "1",
    "TRANSFORMERS_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "DO_NOT_TRACK": "1",
    "OMP_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
}
NOT_PREPARED = {
    "error": "accelerate runs 2 processes, and did not prepare this DataLoader",
    "hint": "Pass it to accelerator.prepare, or pass the dataset rank=accelerator.process_index, "
    "ranks=accelerator.num_processes.",
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory):
    path = tmp_path_factory.mktemp("training") / "d"
    columns = {"n": "int", "text": "str"}
    with flare.Writer(str(path), columns=columns, settings=Settings(shard_rows=10)) as writer:
        for n in range(ROWS):
            writer.write({"n": n, "text": "x" * n})
    return path


def free_port():
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        return str(one.getsockname()[1])


def run(library, dataset, folder, ranks=(0, 1)):
    """Run the script as each rank, and return what each found."""
    out, port = folder / "out", free_port()
    running = []
    for rank in ranks:
        launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        launched |= {"TORCHELASTIC_RUN_ID": "flare"}  # Lightning then leaves starting to others
        known = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
        env = known | OFFLINE | {"MASTER_PORT": port, "HF_HOME": str(folder)}
        env |= {name: str(value) for name, value in launched.items() if len(ranks) > 1}
        with open(folder / f"log.{rank}", "w") as log:
            command = [PEER, "-W", "ignore", str(SCRIPT), library, str(dataset), str(out)]
            running.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
            )
    try:
        codes = [one.wait(timeout=240) for one in running]
    finally:
        for one in running:
            one.kill()
    logs = "\n".join((folder / f"log.{rank}").read_text()[-4000:] for rank in ranks)
    assert not any(codes), logs
    return [json.loads((folder / f"out.{rank}").read_text()) for rank in (0, 1)]


def once(found, name, lengths=(25, 25), rows=ALL):
    """Assert that both ranks together had each row once in each epoch; return the first rank's rows."""
    first, second = (one[name] for one in found)
    for mine, other in zip(first["rows"], second["rows"], strict=True):
        assert (len(mine), len(other)) == lengths, name
        assert sorted(mine + other) == rows, name
    return first["rows"]


def padded(found, name, each, extra):
    """Assert that each row came, and that only `extra` came again, to give all ranks as many."""
    for mine, other in zip(*(one[name]["rows"] for one in found), strict=True):
        assert len(mine) == len(other) == each, name
        assert sorted(set(mine + other)) == ALL and len(mine + other) == ROWS + extra, name


def errors(found, name):
    return [one[name] for one in found]


def test_accelerate(dataset, tmp_path):
    found = run("accelerate", dataset, tmp_path)
    order = [[row["n"] for row in flare.open(str(dataset)).run(1, epoch)] for epoch in (0, 1)]
    epochs = once(found, "prepared")
    assert epochs[0][:BATCH] == order[0][:BATCH] and epochs[1][:BATCH] == order[1][:BATCH]
    for name in ("samples", "samples, workers", "spawned worker"):
        once(found, f"prepared, {name}")
    once(found, "stateful")
    for name in ("prepared", "prepared, samples", "not dispatched", "loader", "ranks"):
        assert [one[name]["length"] for one in found] == [7, 7], name
    padded(found, "not dispatched", 28, 6)
    padded(found, "not dispatched, workers", 28, 6)
    padded(found, "not dispatched, split", 26, 2)
    padded(found, "by position", 28, 6)
    for name in ("ranks", "ranks, worker", "loader"):
        assert once(found, name)[0] == order[0][::2]
    for name in ("not prepared", "not prepared, worker", "not prepared, spawned"):
        assert errors(found, name) == [NOT_PREPARED] * 2, name
    twice = [
        {
            "error": "accelerate divides the rows of this DataLoader among 2 processes, "
            f"and its dataset yields only those of rank {rank} of 2",
            "hint": "Leave out rank and ranks, or do not pass the DataLoader to accelerator.prepare.",
        }
        for rank in (0, 1)
    ]
    assert errors(found, "ranks, prepared") == errors(found, "ranks, not dispatched") == twice


def test_lightning(dataset, tmp_path):
    found = run("lightning", dataset, tmp_path)
    order = [[row["n"] for row in flare.open(str(dataset)).run(1, epoch)] for epoch in (0, 1)]
    whole = [sorted(one[:48]) for one in order]  # drop_last: no rank waits for another at the end
    for name in ("iterable", "iterable, worker", "iterable, spawned", "loader"):
        assert once(found, name, (24, 24), whole[0])[0] == order[0][:48:2], name
    epochs = [one["epochs"]["rows"] for one in found]
    assert [sorted(mine + other) for mine, other in zip(*epochs, strict=True)] == whole
    padded(found, "by position", 25, 0)


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_lightning_starts_the_processes(dataset, tmp_path, strategy):
    found = run(strategy, dataset, tmp_path, [0])
    wanted = [row["n"] for row in flare.open(str(dataset)).run(1)][:48]
    assert once(found, "launched", (24, 24), sorted(wanted))[0] == wanted[::2]


def test_transformers(dataset, tmp_path):
    found = run("transformers", dataset, tmp_path)
    mine, other = (one["iterable"]["rows"][0] for one in found)
    assert sorted(mine[:25] + other[:25]) == sorted(mine[25:] + other[25:]) == ALL
    assert mine[:25] != mine[25:]  # each epoch has an order of its own
    once(found, "iterable, workers")
    padded(found, "not dispatched", 28, 6)
    assert [one["iterable"]["length"] for one in found] == [14, 14]
    assert {one["error"][:50] for one in errors(found, "ranks")} == {
        "accelerate divides the rows of this DataLoader amo"
    }
    mine, other = (one["by position"]["rows"][0] for one in found)
    assert sorted(set(mine[:28] + other[:28])) == sorted(set(mine[28:] + other[28:])) == ALL
