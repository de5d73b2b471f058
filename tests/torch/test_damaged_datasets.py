"""Damaged and hostile datasets are refused by the datasets for PyTorch and Ray as by
`flare.open`.
"""

import json
import os
import traceback

import pytest

import flarecli as flare
from flarecli.errors import FlareError
from flarecli.model import Settings

torch = pytest.importorskip("torch")

from torch.utils.data import DataLoader  # noqa: E402

from flarecli.torch import IterableDataset, MapDataset  # noqa: E402

SHARD = "shard.00001.mds"


@pytest.fixture
def packed(tmp_path):
    path = tmp_path / "d"
    columns = {"n": "int", "body": "bytes"}
    with flare.Writer(str(path), columns=columns, settings=Settings(shard_rows=20)) as writer:
        for n in range(60):
            writer.write({"n": n, "body": bytes([n]) * 200})
    return path


def flip(at):
    def change(folder):
        with open(folder / SHARD, "r+b") as file:
            file.seek(at)
            (byte,) = file.read(1)
            file.seek(at)
            file.write(bytes([byte ^ 64]))

    return change


def replace_by(make):
    def change(folder):
        (folder / SHARD).unlink()
        make(folder / SHARD)

    return change


def index(key, value):
    def change(folder):
        (folder / "playlist.yaml").unlink()
        index_data = json.loads((folder / "index.json").read_text())
        index_data.pop("flare", None)
        shard = index_data["shards"][1]
        (shard["raw_data"] if key == "basename" else shard)[key] = value
        (folder / "index.json").write_text(json.dumps(index_data))

    return change


def playlist(name):
    def change(folder):
        text = (folder / "playlist.yaml").read_text().replace(SHARD, name)
        (folder / "playlist.yaml").write_text(text[: text.rindex("# flare")])

    return change


CASES = {
    "count": flip(2),
    "offset": flip(9),
    "cut": lambda folder: os.truncate(folder / SHARD, 2000),
    "grown": lambda folder: os.truncate(folder / SHARD, 9000),
    "missing": lambda folder: (folder / SHARD).unlink(),
    "fifo": replace_by(os.mkfifo),
    "link": replace_by(lambda path: path.symlink_to("/etc/passwd")),
    "samples": index("samples", 1 << 60),
    "encoding": index("column_encodings", ["bytes", "nope"]),
    "above": index("basename", "../secret"),
    "absolute": index("basename", "/etc/passwd"),
    "file": playlist("file:///etc/passwd"),
    "loopback": playlist("http://127.0.0.1:9/x.mds"),
}


def refusal(read):
    with pytest.raises(FlareError) as caught:
        read()
    # A DataLoader ends its workers at once when its frames are cleared; the garbage collector takes
    # 5 s.
    traceback.clear_frames(caught.tb)
    return type(caught.value), str(caught.value), caught.value.hint


@pytest.mark.parametrize("case", CASES)
def test_every_dataset_class_raises_the_same_error(packed, case):
    CASES[case](packed)
    address = str(packed)
    expected = refusal(lambda: list(flare.open(address)))
    assert refusal(lambda: list(DataLoader(MapDataset(flare.open(address)), 60))) == expected
    in_order = {"order": "sequential", "batch": 16}
    assert refusal(lambda: list(IterableDataset(flare.open(address), **in_order))) == expected
    assert refusal(lambda: list(flare.Loader(flare.open(address), 16, workers=0))) == expected


@pytest.mark.parametrize("case", CASES)
def test_a_ray_source_raises_the_same_error(packed, case):
    pytest.importorskip("ray", reason="needs ray: pip install 'flarecli[ray]'")
    from flarecli.ray import FlareSource

    CASES[case](packed)
    expected = refusal(lambda: list(flare.open(str(packed))))

    def read():
        for task in FlareSource(str(packed)).get_read_tasks(2):
            assert all(block.num_rows for block in task())

    assert refusal(read) == expected


@pytest.mark.parametrize("case", ["cut", "link"])
def test_a_worker_reports_the_same_error_with_its_hint(packed, case):
    CASES[case](packed)
    kind, message, hint = refusal(lambda: list(flare.open(str(packed))))
    data = flare.open(str(packed))
    for loader in (
        DataLoader(IterableDataset(data, 16), batch_size=None, num_workers=1),
        DataLoader(MapDataset(data), 16, collate_fn=data.collate, num_workers=1),
    ):
        error_type, text, _ = refusal(lambda loader=loader: list(loader))
        assert error_type is kind and message in text and (not hint or f"hint: {hint}" in text)
