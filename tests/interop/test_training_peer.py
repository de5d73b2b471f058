"""Two ranks read each row once with accelerate, Lightning and the Trainer of transformers.

TRAINING_PYTHON names an interpreter that has flare, accelerate, lightning and transformers. The two
ranks are processes that connect to 127.0.0.1.
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
    "error": "accelerate runs 2 processes, but did not prepare this DataLoader",
    "hint": "Pass the DataLoader to accelerator.prepare, or create the dataset with rank=accelerator.process_index, "
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
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
        return str(server.getsockname()[1])


def run(library, dataset, folder, ranks=(0, 1)):
    """Run the script once per rank, and return the results of each rank."""
    out, port = folder / "out", free_port()
    running = []
    for rank in ranks:
        launched = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "LOCAL_WORLD_SIZE": 2}
        launched |= {"TORCHELASTIC_RUN_ID": "flare"}  # with this, Lightning starts no processes
        inherited = {
            name: value for name, value in os.environ.items() if "proxy" not in name.lower()
        }
        env = inherited | OFFLINE | {"MASTER_PORT": port, "HF_HOME": str(folder)}
        env |= {name: str(value) for name, value in launched.items() if len(ranks) > 1}
        with open(folder / f"log.{rank}", "w") as log:
            command = [PEER, "-W", "ignore", str(SCRIPT), library, str(dataset), str(out)]
            running.append(
                subprocess.Popen(command, stdout=log, stderr=log, env=env, start_new_session=True)
            )
    try:
        codes = [process.wait(timeout=240) for process in running]
    finally:
        for process in running:
            process.kill()
    logs = "\n".join((folder / f"log.{rank}").read_text()[-4000:] for rank in ranks)
    assert not any(codes), logs
    return [json.loads((folder / f"out.{rank}").read_text()) for rank in (0, 1)]


def once(results, name, lengths=(25, 25), rows=ALL):
    """Check that the ranks together read each row once per epoch; return the rows of the first
    rank.
    """
    first, second = (rank_results[name] for rank_results in results)
    for mine, other in zip(first["rows"], second["rows"], strict=True):
        assert (len(mine), len(other)) == lengths, name
        assert sorted(mine + other) == rows, name
    return first["rows"]


def padded(results, name, each, extra):
    """Check that each row was read, and only `extra` rows twice, so that all ranks have equally
    many.
    """
    for mine, other in zip(*(rank_results[name]["rows"] for rank_results in results), strict=True):
        assert len(mine) == len(other) == each, name
        assert sorted(set(mine + other)) == ALL and len(mine + other) == ROWS + extra, name


def errors(results, name):
    return [rank_results[name] for rank_results in results]


def test_each_row_is_read_once_with_accelerate(dataset, tmp_path):
    results = run("accelerate", dataset, tmp_path)
    order = [[row["n"] for row in flare.open(str(dataset)).run(1, epoch)] for epoch in (0, 1)]
    epochs = once(results, "prepared")
    assert epochs[0][:BATCH] == order[0][:BATCH] and epochs[1][:BATCH] == order[1][:BATCH]
    for name in ("samples", "samples, workers", "spawned worker"):
        once(results, f"prepared, {name}")
    once(results, "stateful")
    for name in ("prepared", "prepared, samples", "not dispatched", "loader", "ranks"):
        assert [rank_results[name]["length"] for rank_results in results] == [7, 7], name
    padded(results, "not dispatched", 28, 6)
    padded(results, "not dispatched, workers", 28, 6)
    padded(results, "not dispatched, split", 26, 2)
    padded(results, "by position", 28, 6)
    for name in ("ranks", "ranks, worker", "loader"):
        assert once(results, name)[0] == order[0][::2]
    for name in ("not prepared", "not prepared, worker", "not prepared, spawned"):
        assert errors(results, name) == [NOT_PREPARED] * 2, name
    twice = [
        {
            "error": "accelerate divides the rows of this DataLoader among 2 processes, "
            f"but its dataset yields only the rows of rank {rank} of 2",
            "hint": "Omit rank and ranks, or do not pass the DataLoader to accelerator.prepare.",
        }
        for rank in (0, 1)
    ]
    assert errors(results, "ranks, prepared") == errors(results, "ranks, not dispatched") == twice


def test_each_row_is_read_once_with_lightning(dataset, tmp_path):
    results = run("lightning", dataset, tmp_path)
    order = [[row["n"] for row in flare.open(str(dataset)).run(1, epoch)] for epoch in (0, 1)]
    whole = [sorted(rows[:48]) for rows in order]  # drop_last: all ranks have equally many batches
    for name in ("iterable", "iterable, worker", "iterable, spawned", "loader"):
        assert once(results, name, (24, 24), whole[0])[0] == order[0][:48:2], name
    epochs = [rank_results["epochs"]["rows"] for rank_results in results]
    assert [sorted(mine + other) for mine, other in zip(*epochs, strict=True)] == whole
    padded(results, "by position", 25, 0)


@pytest.mark.parametrize("strategy", ["ddp", "ddp_spawn"])
def test_each_row_is_read_once_if_lightning_starts_the_processes(dataset, tmp_path, strategy):
    results = run(strategy, dataset, tmp_path, [0])
    expected = [row["n"] for row in flare.open(str(dataset)).run(1)][:48]
    assert once(results, "launched", (24, 24), sorted(expected))[0] == expected[::2]


def test_each_row_is_read_once_with_transformers(dataset, tmp_path):
    results = run("transformers", dataset, tmp_path)
    mine, other = (rank_results["iterable"]["rows"][0] for rank_results in results)
    assert sorted(mine[:25] + other[:25]) == sorted(mine[25:] + other[25:]) == ALL
    assert mine[:25] != mine[25:]  # each epoch has its own order
    once(results, "iterable, workers")
    padded(results, "not dispatched", 28, 6)
    assert [rank_results["iterable"]["length"] for rank_results in results] == [14, 14]
    assert {error["error"][:50] for error in errors(results, "ranks")} == {
        "accelerate divides the rows of this DataLoader amo"
    }
    mine, other = (rank_results["by position"]["rows"][0] for rank_results in results)
    assert sorted(set(mine[:28] + other[:28])) == sorted(set(mine[28:] + other[28:])) == ALL
