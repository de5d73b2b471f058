"""Batches whose rows are gathered together: each equals its rows, owns its memory and fails
alone.
"""

import platform
import re
import subprocess
import sys
import textwrap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import flarecli as flare
from flarecli.errors import FormatError
from flarecli.model import Settings
from tests.properties import examples

COLUMNS = {"body": "bytes", "box": "ndarray:float32:2,3", "n": "int", "name": "str"}
ROWS = 1500
KINDS = {"plain": None, "compressed": "zstd"}


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    out = {}
    for kind, compression in KINDS.items():
        out[kind] = str(tmp_path_factory.mktemp("blocks") / kind)
        with flare.Writer(
            out[kind], columns=COLUMNS, settings=Settings(shard_rows=400, compression=compression)
        ) as writer:
            for n in range(ROWS):
                box = np.full((2, 3), n, np.float32)
                writer.write(
                    {
                        "body": bytes([n % 251]) * (n * 7 % 30),
                        "box": box,
                        "n": n - 50,
                        "name": "é" * (n % 4),
                    }
                )
    return out


def as_list(samples: list[dict]) -> list[dict]:
    return samples


@pytest.mark.parametrize("format", ["mds", "json", "tfrecord"])
def test_batches_of_more_shards_than_open_maps_equal_their_rows(
    tmp_path: Path, format: str
) -> None:
    """Each block of batches has rows of 200 shards, and a batch has rows of up to 64 of them."""
    columns = {"n": "int", "name": "str"}
    with flare.Writer(
        tmp_path, format=format, columns=columns, settings=Settings(shard_rows=10)
    ) as writer:
        for n in range(2000):
            writer.write({"n": n, "name": "é" * (n % 4) + str(n)})
    data = flare.open(str(tmp_path))
    order = data.order(3, 0, "shuffle", 8)
    expected = order.at(np.arange(2000)).tolist()
    batches = list(flare.Loader(data, batch=64, seed=3))
    assert [n for one in batches for n in one["n"].tolist()] == expected
    names = ["é" * (n % 4) + str(n) for n in expected]
    assert [name for one in batches for name in one["name"]] == names


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("maps", [True, False])
@settings(max_examples=examples(12), deadline=None)
@given(data=st.data())
def test_batches_equal_their_rows(
    folders: dict[str, str], kind: str, maps: bool, data: st.DataObject
) -> None:
    whole = flare.open(folders[kind], maps=maps)
    batch, order = (
        data.draw(st.sampled_from([1, 7, 64, 600, 2000])),
        data.draw(st.sampled_from(["shuffle", "windows", "sequential"])),
    )
    selected = whole if data.draw(st.booleans()) else whole.where("n > 200 and n < 1300")
    options = {
        "batch": batch,
        "seed": 3,
        "order": order,
        "workers": data.draw(st.sampled_from([0, 2])),
    }
    batches, samples = (
        list(flare.Loader(selected, **options)),
        list(flare.Loader(selected, **options, collate=as_list)),
    )
    assert [len(one["n"]) for one in batches] == [len(one) for one in samples]
    for columns, rows in zip(batches, samples, strict=True):
        for name, values in columns.items():
            expected = [row[name] for row in rows]
            assert (
                values == expected
                if name in ("body", "name")
                else values.tolist() == np.array(expected).tolist()
            )


def test_each_batch_owns_its_memory(folders: dict[str, str]) -> None:
    batches = list(flare.Loader(flare.open(folders["plain"]), 64, seed=1, workers=0))
    arrays = [array for one in batches for array in (one["n"], one["box"])]
    assert [(array if array.base is None else array.base).nbytes for array in arrays] == [
        array.nbytes for array in arrays
    ]
    before = [one["n"].tolist() for one in batches]
    batches[3]["n"][:] = 0
    assert [one["n"].tolist() for one in batches[:3] + batches[4:]] == before[:3] + before[4:]


@pytest.mark.parametrize(
    ("compression", "rows"), [(None, 83), ("zstd", 10)]
)  # of 200 KB in 16 MiB; compressed rows are copied
def test_the_rows_gathered_at_once_are_bounded(
    tmp_path: Path, compression: str | None, rows: int
) -> None:
    with flare.Writer(
        str(tmp_path / "data"), columns={"a": "bytes"}, settings=Settings(compression=compression)
    ) as writer:
        for n in range(100):
            writer.write({"a": bytes([n]) * 200_000})
    data = flare.open(str(tmp_path / "data"))
    assert [data.gather(np.arange(100), least).rows for least in (10, 90)] == [rows, 90]


@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_row_fails_in_its_own_batch(tmp_path: Path, workers: int) -> None:
    path = tmp_path / "data"
    with flare.Writer(str(path), columns={"b": "bytes", "n": "int"}) as writer:
        for n in range(1000):
            writer.write({"b": b"x" * 9, "n": n})
    shard = path / "shard.00000.mds"
    data = bytearray(shard.read_bytes())
    starts = np.frombuffer(data, "<u4", 1001, 4)
    data[starts[700]] += 1  # the length of a value
    shard.write_bytes(data)
    rows = []
    with pytest.raises(FormatError) as caught:
        for batch in flare.Loader(flare.open(str(path)), 64, order="sequential", workers=workers):
            rows += batch["n"].tolist()
    assert str(caught.value) == f"{shard}[700]: sample has 21 bytes; its fields need 22"
    assert rows == list(range(640))


HANDLES = """
    import resource, sys
    import flarecli as flare

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    data = flare.open(sys.argv[1])
    for workers in (0, 2):
        rows = [n for batch in flare.Loader(data, 64, workers=workers) for n in batch["n"].tolist()]
        assert sorted(rows) == list(range(len(data)))
    loaders = [flare.Loader(flare.open(sys.argv[2]), 64, workers=0) for _ in range(12)]
    for batches in zip(*loaders):
        assert all(set(batch["t"]) == {b"x" * 3000} for batch in batches)
    print("whole")
"""


def test_blocks_over_many_shards_need_few_handles(tmp_path: Path) -> None:
    """512 rows span all shards: keeping every shard open would exceed the limit of handles.

    So would the blocks of 12 loaders, if each block kept the maps of its large values open.
    """
    with flare.Writer(
        str(tmp_path / "data"), columns={"n": "int", "t": "str"}, settings=Settings(shard_rows=20)
    ) as writer:
        for n in range(1200):
            writer.write({"n": n, "t": "x" * n})
    with flare.Writer(
        str(tmp_path / "large"), columns={"t": "bytes"}, settings=Settings(shard_rows=16)
    ) as writer:
        for _ in range(8 * 16):
            writer.write({"t": b"x" * 3000})
    ran = subprocess.run(
        [
            *(sys.executable, "-c", textwrap.dedent(HANDLES)),
            *(str(tmp_path / "data"), str(tmp_path / "large")),
        ],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("whole\n", "")


FAULTS = """
    import resource, sys
    import flarecli as flare

    def same(sample):
        return sample

    def batches():
        if sys.argv[2] == "batches of processes":
            yield from flare.Loader(data, 64, order="sequential", workers=1, processes=True, start="fork", transform=same)
        else:
            yield from (data[at : at + 64] for at in range(0, len(data), 64))

    data = flare.open(sys.argv[1])
    for at, batch in enumerate(batches()):
        if at == 7:
            before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(
    platform.libc_ver()[0] != "glibc",
    reason="a test of the allocator of glibc",
)
@pytest.mark.parametrize(
    "kind", ["slices", "batches of processes"]
)  # then the measured process opens no shard
def test_batches_reuse_freed_memory(tmp_path: Path, kind: str) -> None:
    with flare.Writer(str(tmp_path / "data"), columns={"b": "bytes"}) as writer:
        for n in range(2048):
            writer.write({"b": bytes([n % 256]) * 20_000})
    argv = [sys.executable, "-c", textwrap.dedent(FAULTS), str(tmp_path / "data"), kind]
    ran = subprocess.run(argv, capture_output=True, text=True, timeout=60, check=False)
    assert re.fullmatch(r"\d+\n", ran.stdout), ran.stderr
    assert int(ran.stdout) < 1500  # of 24 batches, 320 pages each
