"""The sides of the original libraries in `formats.py`, each with its own interpreter.

This module does not import flare.
"""

import os
import struct
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from formats_child import count, held
from formats_data import SHARD, WORKLOADS, picks


class Peer:
    """Operations on one dataset. The samples to write are generated at first use."""

    def __init__(self, form: str, workload: str, folder: Path) -> None:
        self.form, self.workload, self.folder = form, workload, folder
        self.rows = picks(workload, True)
        self._held: list[dict[str, Any]] | None = None
        self.open()

    def open(self) -> None: ...

    def row(self) -> int:
        data = self.data
        for row in self.rows:
            data[row]
        return len(self.rows)

    def samples(self) -> list[dict[str, Any]]:
        if self._held is None:
            self._held = held(self.workload)
        return self._held


class Streaming(Peer):
    """mosaicml-streaming: StreamingDataset and the writers."""

    def open(self) -> None:
        from streaming import StreamingDataset

        self.data = StreamingDataset(local=str(self.folder), batch_size=1, shuffle=False)
        self.scanned = StreamingDataset(local=f"{self.folder}-scan", batch_size=1, shuffle=False)

    def scan(self) -> int:
        return count(self.scanned)

    def write(self, out: Path) -> Callable[[], int]:
        import streaming

        make = {
            "mds": streaming.MDSWriter,
            "json": streaming.JSONWriter,
            "csv": streaming.CSVWriter,
        }[self.form]
        kinds = dict(WORKLOADS[self.workload].kinds)
        if self.form != "mds":
            kinds = {name: {"float64": "float"}.get(kind, kind) for name, kind in kinds.items()}
        data = self.samples()

        def write() -> int:
            with make(out=str(out), columns=kinds, size_limit=SHARD) as writer:
                for sample in data:
                    writer.write(sample)
            return len(data)

        return write


class Granular(Peer):
    """granular 0.24: DatasetReader, in order in ranges of 64; DatasetWriter, flushed after each 64
    rows.
    """

    def open(self) -> None:
        import granular

        self.data = granular.DatasetReader(self.folder, granular.decoders)
        self.scanned = granular.DatasetReader(Path(f"{self.folder}-scan"), granular.decoders)

    def scan(self) -> int:
        data, rows = self.scanned, len(self.scanned)
        for start in range(0, rows, 64):
            data[range(start, min(start + 64, rows))]
        return rows

    def write(self, out: Path) -> Callable[[], int]:
        import granular

        words = {"str": "utf8", "int": "i64", "float64": "msgpack", "bytes": "bytes"}
        spec = {name: words[kind] for name, kind in WORKLOADS[self.workload].kinds.items()}
        data = self.samples()

        def write() -> int:
            with granular.DatasetWriter(out, spec, granular.encoders) as writer:
                for i, sample in enumerate(data):
                    writer.append(sample, flush=i % 64 == 63)
            return len(data)

        return write


class WebDataset(Peer):
    """webdataset: the pipeline that reads tars in order, without decoding; TarWriter."""

    def scan(self) -> int:
        import webdataset

        names = sorted(str(path) for path in Path(f"{self.folder}-scan").glob("*.tar"))
        return count(webdataset.WebDataset(names, shardshuffle=False, empty_check=False))

    def write(self, out: Path) -> Callable[[], int]:
        import webdataset

        endings = {"str": "txt", "int": "cls", "float64": "json", "bytes": "bin"}
        kinds = WORKLOADS[self.workload].kinds
        names = {name: f"{name}.{endings[kind]}" for name, kind in kinds.items()}
        data = self.samples()

        def write() -> int:
            out.mkdir()
            with webdataset.TarWriter(str(out / "00000.tar")) as writer:
                for i, sample in enumerate(data):
                    writer.write(
                        {
                            "__key__": f"{i:08}",
                            **{names[name]: value for name, value in sample.items()},
                        }
                    )
            return len(data)

        return write


class Plain(Peer):
    """Replacement of ffrecord, which cannot be installed: `os.pread` and `zlib.crc32`, 64 records
    at a time.
    """

    def open(self) -> None:
        self.files = []
        for path in sorted(self.folder.glob("*.ffr")):
            fd = os.open(path, os.O_RDONLY)
            (rows,) = struct.unpack("<q", os.pread(fd, 8, 4))
            sums = struct.unpack(f"<{rows}I", os.pread(fd, 4 * rows, 12))
            starts = struct.unpack(f"<{rows}q", os.pread(fd, 8 * rows, 12 + 4 * rows))
            self.files.append((fd, sums, (*starts, os.fstat(fd).st_size)))
        rows_of = [len(sums) for _, sums, _ in self.files]
        self.batches = []
        picked: dict[int, list[int]] = {}
        for row in picks(self.workload, False):
            i = 0
            while row >= rows_of[i]:
                row, i = row - rows_of[i], i + 1
            picked.setdefault(i, []).append(row)
        for i, rows in picked.items():
            self.batches += [
                (self.files[i], rows[start : start + 64]) for start in range(0, len(rows) - 63, 64)
            ]

    def copies(self) -> int:
        done = 0
        for (fd, sums, starts), rows in self.batches:
            out = []
            for row in rows:
                data = os.pread(fd, starts[row + 1] - starts[row], starts[row])
                if zlib.crc32(data) != sums[row]:
                    raise ValueError(row)
                out.append(data)
            done += len(out)
        return done

    views = copies


SIDES: dict[str, type[Peer]] = {
    "mds": Streaming,
    "json": Streaming,
    "csv": Streaming,
    "granular": Granular,
    "webdataset": WebDataset,
    "ffrecord": Plain,
}
