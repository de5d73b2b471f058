"""One side of `loaders.py`: `write` creates its dataset, `read` measures an epoch.

Only the libraries of this side are imported.
"""

import json
import mmap
import random
import resource
import struct
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from formats_data import WORKLOADS, samples

ROWS, BATCH, TIMES = WORKLOADS["w2"].rows, 64, 4
Batch = Any
keeps = False  # whether workers of torch stay alive between epochs
kept: list[Any] = []  # the DataLoader with these workers


def collated(rows: list[dict[str, Any]]) -> Batch:
    return {name: [row[name] for row in rows] for name in rows[0]}


def batches(rows: list[int], read: Callable[[int], dict[str, Any]]) -> Iterator[Batch]:
    for at in range(0, len(rows), BATCH):
        yield collated([read(row) for row in rows[at : at + BATCH]])


def shuffled(seed: int) -> list[int]:
    rows = list(range(ROWS))
    random.Random(seed).shuffle(rows)
    return rows


class Positions:
    """Map-style dataset for a torch DataLoader, of a side that reads rows by number."""

    def __init__(self, read: Callable[[int], dict[str, Any]]) -> None:
        self.read = read

    def __len__(self) -> int:
        return ROWS

    def __getitem__(self, row: int) -> dict[str, Any]:
        return self.read(row)


def loaded(source: Any, seed: int, workers: int, **options: Any) -> Iterator[Batch]:
    """Read an epoch with torch's DataLoader."""
    import torch

    torch.manual_seed(seed)
    loader = torch.utils.data.DataLoader(
        source, num_workers=workers, persistent_workers=keeps, **options
    )
    if keeps:
        kept.append(loader)
    return iter(loader)


def once_more(seed: int) -> Iterator[Batch]:
    """Read the next epoch with the DataLoader whose workers stay alive."""
    import torch

    torch.manual_seed(seed)
    if hasattr(kept[0].dataset, "set_epoch"):
        kept[0].dataset.set_epoch(seed)
    return iter(kept[0])


def by_position(
    read: Callable[[int], dict[str, Any]], seed: int, workers: int, torch: bool
) -> Iterator[Batch]:
    if torch:
        return loaded(
            Positions(read), seed, workers, batch_size=BATCH, shuffle=True, collate_fn=collated
        )
    return batches(shuffled(seed), read)


# -- sides: write(folder), read(folder, seed, workers, torch)


def write_flare(folder: str) -> None:
    import flarecli as flare

    with flare.Writer(
        folder, columns={"caption": "str", "image": "bytes", "label": "int"}
    ) as writer:
        for sample in samples("w2", ROWS):
            writer.write(sample)


def read_flare(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    import flarecli as flare

    if torch:
        from flarecli.torch import IterableDataset, tensors

        return loaded(
            IterableDataset(flare.open(folder), BATCH, seed),
            seed,
            workers,
            batch_size=None,
            collate_fn=tensors,
        )
    return iter(flare.Loader(flare.open(folder), BATCH, seed, workers=workers))


def read_floor(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    """Read the same files with a memory map, struct and slices."""
    places, two = [], struct.Struct("<II").unpack_from
    for path in sorted(Path(folder).glob("*.mds")):
        with open(path, "rb") as file:
            data = mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)
        (rows,) = struct.unpack_from("<I", data)
        places += [(data, start) for start in memoryview(data)[4 : 4 + 4 * rows].cast("I").tolist()]

    def read(row: int) -> dict[str, Any]:
        data, start = places[row]
        first, second = two(data, start)
        middle = start + 8 + first
        stop = middle + second
        return {
            "caption": data[start + 8 : middle].decode(),
            "image": data[middle:stop],
            "label": int.from_bytes(data[stop : stop + 8], "little"),
        }

    return by_position(read, seed, workers, torch)


def write_lmdb(folder: str) -> None:
    import lmdb

    with lmdb.open(folder, map_size=1 << 30) as env, env.begin(write=True) as txn:
        for row, one in enumerate(samples("w2", ROWS)):
            caption = one["caption"].encode()
            txn.put(
                b"%08d" % row,
                struct.pack("<qI", one["label"], len(caption)) + caption + one["image"],
            )


def read_lmdb(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    import lmdb

    opened: list[Any] = []

    def read(row: int) -> dict[str, Any]:
        if not opened:
            opened.append(
                lmdb.open(folder, readonly=True, lock=False, readahead=False).begin(buffers=True)
            )
        data = opened[0].get(b"%08d" % row)
        label, size = struct.unpack_from("<qI", data)
        return {
            "caption": bytes(data[12 : 12 + size]).decode(),
            "image": bytes(data[12 + size :]),
            "label": label,
        }

    return by_position(read, seed, workers, torch)


def write_litdata(folder: str) -> None:
    from litdata.streaming.writer import BinaryWriter

    writer = BinaryWriter(folder, chunk_bytes="64MB")
    for row, sample in enumerate(samples("w2", ROWS)):
        writer[row] = sample
    writer.done()
    writer.merge()


def read_litdata(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    from litdata import StreamingDataLoader, StreamingDataset

    data = StreamingDataset(folder, shuffle=True, seed=seed)
    if torch:
        return iter(
            StreamingDataLoader(data, batch_size=BATCH, num_workers=workers, collate_fn=collated)
        )
    rows = (
        row for row in data
    )  # the iterator stays at its end; iterating over the dataset would start again
    return iter(
        lambda: collated(
            [row for _, row in zip(range(BATCH), rows, strict=False)] or [{"image": []}]
        ),
        {"image": [[]]},
    )


def write_datasets(folder: str) -> None:
    import datasets

    datasets.Dataset.from_generator(
        lambda: samples("w2", ROWS), cache_dir=folder + "-tmp"
    ).save_to_disk(folder)


def read_datasets(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    import datasets

    data = datasets.load_from_disk(folder)
    if torch:
        return loaded(data, seed, workers, batch_size=BATCH, shuffle=True, collate_fn=collated)
    rows = shuffled(seed)
    return (data[rows[at : at + BATCH]] for at in range(0, ROWS, BATCH))


def write_ffrecord(folder: str) -> None:
    import pickle

    from ffrecord import FileWriter

    Path(folder).mkdir(parents=True)
    writer = FileWriter(f"{folder}/0.ffr", ROWS)
    for sample in samples("w2", ROWS):
        writer.write_one(pickle.dumps(sample, 5))
    writer.close()


def read_ffrecord(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    """Read without checksums, as flare reads MDS, and a batch per call, as its README
    recommends.
    """
    import pickle

    from ffrecord import FileReader

    if torch:
        from ffrecord.torch import DataLoader, Dataset
        from torch import manual_seed

        class Rows(Dataset):  # type: ignore[misc, valid-type]
            def __init__(self) -> None:
                self.reader = FileReader(f"{folder}/0.ffr", check_data=False)

            def __len__(self) -> int:
                return int(self.reader.n)

            def __getitem__(self, rows: list[int]) -> list[dict[str, Any]]:
                return [pickle.loads(one) for one in self.reader.read(rows)]

        manual_seed(seed)
        ahead = 2 if workers else None  # its default of 2 is not allowed without workers
        return iter(
            DataLoader(
                Rows(),
                batch_size=BATCH,
                shuffle=True,
                num_workers=workers,
                collate_fn=collated,
                prefetch_factor=ahead,
            )
        )
    reader, rows = FileReader(f"{folder}/0.ffr", check_data=False), shuffled(seed)
    return (
        collated([pickle.loads(one) for one in reader.read(rows[at : at + BATCH])])
        for at in range(0, ROWS, BATCH)
    )


def write_array_record(folder: str) -> None:
    import pickle

    from array_record.python.array_record_module import ArrayRecordWriter

    Path(folder).mkdir(parents=True)
    writer = ArrayRecordWriter(f"{folder}/0.array_record", "group_size:1")
    for sample in samples("w2", ROWS):
        writer.write(pickle.dumps(sample, 5))
    writer.close()


def read_array_record(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    import pickle

    from array_record.python.array_record_data_source import ArrayRecordDataSource

    data, rows = ArrayRecordDataSource(f"{folder}/0.array_record"), shuffled(seed)
    return (
        collated([pickle.loads(one) for one in data.__getitems__(rows[at : at + BATCH])])
        for at in range(0, ROWS, BATCH)
    )


def read_grain(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    import pickle

    import grain
    from array_record.python.array_record_data_source import ArrayRecordDataSource

    data = (
        grain.MapDataset.source(ArrayRecordDataSource(f"{folder}/0.array_record"))
        .shuffle(seed=seed)
        .map(pickle.loads)
    )
    return iter(data.to_iter_dataset().batch(BATCH, batch_fn=collated))


def write_mds(folder: str) -> None:
    from streaming import MDSWriter

    with MDSWriter(
        out=folder, columns={"caption": "str", "image": "bytes", "label": "int"}
    ) as writer:
        for sample in samples("w2", ROWS):
            writer.write(sample)


def read_mds(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    from streaming import StreamingDataset

    data = StreamingDataset(local=folder, shuffle=True, shuffle_seed=seed, batch_size=BATCH)
    if torch:
        return loaded(data, seed, workers, batch_size=BATCH, collate_fn=collated)
    rows = shuffled(seed)
    return (collated([data[row] for row in rows[at : at + BATCH]]) for at in range(0, ROWS, BATCH))


def write_webdataset(folder: str) -> None:
    import webdataset

    Path(folder).mkdir(parents=True)
    with webdataset.ShardWriter(f"{folder}/%05d.tar", maxsize=1 << 26, verbose=0) as writer:
        for row, one in enumerate(samples("w2", ROWS)):
            writer.write(
                {
                    "__key__": f"{row:08}",
                    "txt": one["caption"],
                    "jpg": one["image"],
                    "cls": one["label"],
                }
            )


def read_webdataset(folder: str, seed: int, workers: int, torch: bool) -> Iterator[Batch]:
    import webdataset

    urls = [str(path) for path in sorted(Path(folder).glob("*.tar"))]
    data = webdataset.WebDataset(urls, shardshuffle=len(urls), seed=seed).shuffle(1000)
    rows = (
        {"caption": one["txt"].decode(), "image": one["jpg"], "label": int(one["cls"])}
        for one in data
    )
    return iter(
        lambda: collated(
            [row for _, row in zip(range(BATCH), rows, strict=False)] or [{"image": []}]
        ),
        {"image": [[]]},
    )


def spent() -> float:
    return sum(
        sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    )


def main(verb: str, side: str, folder: str, workers: str = "0", torch: str = "") -> None:
    global keeps
    if verb == "write":
        globals()[f"write_{side}"](folder)
        return
    keeps = torch == "kept"
    read, rate, cost, first = globals()[f"read_{side}"], 0.0, float("inf"), float("inf")
    for seed in range(TIMES):
        began, used, rows, wait = time.perf_counter(), spent(), 0, None
        for batch in once_more(seed) if kept else read(folder, seed, int(workers), bool(torch)):
            wait = wait or time.perf_counter() - began
            rows += len(batch["image"])
        if rows != ROWS:
            sys.exit(f"{side}: {rows} of {ROWS} rows")
        rate, cost, first = (
            max(rate, rows / (time.perf_counter() - began)),
            min(cost, (spent() - used) / rows),
            min(first, wait or 0),
        )
    print(json.dumps([rate, cost, first]))


if __name__ == "__main__":
    main(*sys.argv[1:])
