"""The floor of `formats.py`: the least work for the bytes of a format in Python, with a memory map,
struct and slices, without checks.

Like `read_rows`, it gets row numbers and returns a list of dicts of bytes.
"""

import json
import mmap
import struct
from bisect import bisect_right
from collections.abc import Callable
from pathlib import Path
from typing import Any

from formats_child import held
from formats_data import RECORD, SHARD, picks
from isal.isal_zlib import crc32

Read = Callable[[Any, Any, Any], list[Any]]


def mapped(path: Path) -> mmap.mmap:
    with open(path, "rb") as file:
        return mmap.mmap(file.fileno(), 0, prot=mmap.PROT_READ)


class Floor:
    """Rows of one workload. `shards` has (source of the rows, table of the rows, number of rows)
    for each shard.
    """

    def __init__(self, form: str, workload: str, folder: Path) -> None:
        self.form, self.workload, self.folder = form, workload, folder
        shards = self.shards(folder)
        self.scanned = self.shards(Path(f"{folder}-scan"))
        self.read = self.reader(workload)
        firsts = [0]
        for _, _, rows in shards:
            firsts.append(firsts[-1] + rows)
        self.places = []
        for row in picks(workload, False):
            i = bisect_right(firsts, row) - 1
            self.places.append((*shards[i][:2], (row - firsts[i],)))
        self._held: list[dict[str, Any]] | None = None

    def shards(self, folder: Path) -> list[tuple[Any, Any, int]]:
        raise NotImplementedError

    def reader(self, workload: str) -> Read:
        raise NotImplementedError

    def row(self) -> int:
        read = self.read
        for source, table, rows in self.places:
            read(source, table, rows)
        return len(self.places)

    def scan(self) -> int:
        read, done = self.read, 0
        for source, table, rows in self.scanned:
            for start in range(0, rows, 64):
                done += len(read(source, table, range(start, min(start + 64, rows))))
        return done

    def samples(self) -> list[dict[str, Any]]:
        if self._held is None:
            self._held = held(self.workload)
        return self._held


class Mds(Floor):
    def shards(self, folder: Path) -> list[tuple[Any, Any, int]]:
        out = []
        for path in sorted(folder.glob("*.mds")):
            data = mapped(path)
            (rows,) = struct.unpack_from("<I", data)
            out.append((data, memoryview(data)[4 : 8 + 4 * rows].cast("I"), rows))
        return out

    def reader(self, workload: str) -> Read:
        one, two = struct.Struct("<I").unpack_from, struct.Struct("<II").unpack_from

        def w1(data: Any, table: Any, rows: Any) -> list[Any]:
            out = []
            for row in rows:
                start = table[row]
                (size,) = one(data, start)
                middle = start + 20
                out.append(
                    {
                        "number": data[start + 4 : start + 12],
                        "score": data[start + 12 : middle],
                        "text": data[middle : middle + size],
                    }
                )
            return out

        def w2(data: Any, table: Any, rows: Any) -> list[Any]:
            out = []
            for row in rows:
                start = table[row]
                first, second = two(data, start)
                middle = start + 8 + first
                stop = middle + second
                out.append(
                    {
                        "caption": data[start + 8 : middle],
                        "image": data[middle:stop],
                        "label": data[stop : stop + 8],
                    }
                )
            return out

        def w3(data: Any, table: Any, rows: Any) -> list[Any]:
            out = []
            for row in rows:
                start = table[row]
                (size,) = one(data, start)
                stop = start + 4 + size
                out.append({"data": data[start + 4 : stop], "number": data[stop : stop + 8]})
            return out

        return {"w1": w1, "w2": w2, "w3": w3}[workload]

    def write(self, out: Path) -> Callable[[], int]:
        data = self.samples()
        config = json.dumps({"format": "mds", "version": 2}).encode()

        def w1(sample: Any) -> bytes:
            text = sample["text"].encode()
            return struct.pack("<Iqd", len(text), sample["number"], sample["score"]) + text

        def w2(sample: Any) -> bytes:
            caption, image = sample["caption"].encode(), sample["image"]
            return b"".join(
                (
                    struct.pack("<II", len(caption), len(image)),
                    caption,
                    image,
                    struct.pack("<q", sample["label"]),
                )
            )

        def w3(sample: Any) -> bytes:
            return b"".join(
                (
                    struct.pack("<I", len(sample["data"])),
                    sample["data"],
                    struct.pack("<q", sample["number"]),
                )
            )

        encode = {"w1": w1, "w2": w2, "w3": w3}[self.workload]

        def flush(held: list[bytes], number: int) -> None:
            starts, start = [], 8 + 4 * len(held) + len(config)
            for one in held:
                starts.append(start)
                start += len(one)
            with open(out / f"shard.{number:05}.mds", "wb") as file:
                file.write(struct.pack(f"<{len(held) + 2}I", len(held), *starts, start) + config)
                file.write(b"".join(held))

        def write() -> int:
            out.mkdir()
            held, size, shards = list[bytes](), 0, 0
            for sample in data:
                one = encode(sample)
                if size + len(one) > SHARD:
                    flush(held, shards)
                    held, size, shards = [], 0, shards + 1
                held.append(one)
                size += len(one) + 4
            flush(held, shards)
            return len(data)

        return write


class Ffrecord(Floor):
    def shards(self, folder: Path) -> list[tuple[Any, Any, int]]:
        out = []
        for path in sorted(folder.glob("*.ffr")):
            data = mapped(path)
            (rows,) = struct.unpack_from("<q", data, 4)
            sums = memoryview(data)[12 : 12 + 4 * rows].cast("I")
            starts = struct.unpack_from(f"<{rows}q", data, 12 + 4 * rows)
            bounds = memoryview(struct.pack(f"<{rows + 1}q", *starts, len(data))).cast("q")
            out.append((data, (bounds, sums), rows))
        return out

    def reader(self, workload: str) -> Read:
        name = RECORD[workload]

        def read(data: Any, table: Any, rows: Any) -> list[Any]:
            bounds, sums = table
            out = []
            for row in rows:
                record = data[bounds[row] : bounds[row + 1]]
                if crc32(record) != sums[row]:
                    raise ValueError(row)
                out.append({name: record})
            return out

        return read


class Granular(Floor):
    def shards(self, folder: Path) -> list[tuple[Any, Any, int]]:
        names = sorted(json.loads((folder / "spec.json").read_text()))
        bags = tuple(mapped(folder / f"{name}.bag") for name in names)
        tables = tuple(
            memoryview(bytes(8) + (folder / f"{name}.idx").read_bytes()).cast("q") for name in names
        )
        return [(bags, tables, len(tables[0]) - 1)]

    def reader(self, workload: str) -> Read:
        def w1(bags: Any, tables: Any, rows: Any) -> list[Any]:
            (a, b, c), (i, j, k) = bags, tables
            return [
                {
                    "number": a[i[n] : i[n + 1]],
                    "score": b[j[n] : j[n + 1]],
                    "text": c[k[n] : k[n + 1]],
                }
                for n in rows
            ]

        def w2(bags: Any, tables: Any, rows: Any) -> list[Any]:
            (a, b, c), (i, j, k) = bags, tables
            return [
                {
                    "caption": a[i[n] : i[n + 1]],
                    "image": b[j[n] : j[n + 1]],
                    "label": c[k[n] : k[n + 1]],
                }
                for n in rows
            ]

        def w3(bags: Any, tables: Any, rows: Any) -> list[Any]:
            (a, b), (i, j) = bags, tables
            return [{"data": a[i[n] : i[n + 1]], "number": b[j[n] : j[n + 1]]} for n in rows]

        return {"w1": w1, "w2": w2, "w3": w3}[workload]


SIDES: dict[str, type[Floor]] = {"mds": Mds, "ffrecord": Ffrecord, "granular": Granular}
