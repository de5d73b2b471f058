"""The tasks of `folders.py` in a minimal Python loop: the system calls, checksums and copies that
each task requires, and nothing else.

    python benchmarks/folders_floor.py pack|unpack|convert SOURCE OUT

The loops support only the files of `folders.py`, but make the same checks as flare: pack lists the
folder again after all files were read; unpack reads all names before it writes the first file, logs
the names, and never replaces a file; each shard is hashed, synced and renamed. The output is the
CPU time of the loop in seconds, without the startup of Python.
"""

import json
import os
import struct
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import xxhash

SHARD_BYTES, PIECE_BYTES, BATCH_BYTES = 1 << 26, 1 << 20, 1 << 24
READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
CREATE = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
LENGTHS = struct.Struct("<2I")  # of the two values of a sample: the file and its key
TAR_BLOCK = 512


def listing(source: Path) -> tuple[list[tuple[str, list[tuple[str, int]]]], str]:
    """Return the names and sizes of the files in each folder, and their checksum."""
    folders = []
    for folder in sorted(os.listdir(source)):
        with os.scandir(source / folder) as entries:
            found = [(one.name, one.stat(follow_symlinks=False).st_size) for one in entries]
        folders.append((folder, sorted(found)))
    lines = "".join(f"{at}/{name}\0{size}\n" for at, found in folders for name, size in found)
    return folders, xxhash.xxh3_128_hexdigest(lines.encode())


def write_shard(out: Path, name: str, parts: list[bytes | memoryview]) -> None:
    """Join, hash and write the parts of a shard, 1 MiB at a time; sync the shard and rename it."""
    hashed, fd = xxhash.xxh3_128(), os.open(out / f"{name}.part", CREATE, 0o666)
    step = max(1, len(parts) * PIECE_BYTES // SHARD_BYTES)
    for start in range(0, len(parts), step):
        piece = b"".join(parts[start : start + step])
        hashed.update(piece)
        os.write(fd, piece)
    os.fsync(fd)
    os.close(fd)
    os.rename(out / f"{name}.part", out / name)
    hashed.hexdigest()


def pack(source: Path, out: Path) -> None:
    folders, checksum = listing(source)
    parts, size, shards = list[bytes | memoryview](), 0, 0
    for folder, found in folders:
        at = os.open(source / folder, READ | os.O_DIRECTORY)
        for name, _ in found:
            fd = os.open(name, READ, dir_fd=at)
            data = os.pread(fd, os.fstat(fd).st_size, 0)
            os.close(fd)
            key = f"{folder}/{name.rpartition('.')[0]}".encode()
            parts += (LENGTHS.pack(len(data), len(key)), data, key)
            size += len(data)
            if size >= SHARD_BYTES:
                write_shard(out, f"{shards}", parts)
                parts, size, shards = [], 0, shards + 1
        os.close(at)
    write_shard(out, f"{shards}", parts)
    if listing(source)[1] != checksum:
        sys.exit("the folder changed")


def batches(source: Path) -> Iterator[list[tuple[str, memoryview]]]:
    """Yield the key and the file of each sample in an MDS dataset, in batches of about 16 MiB."""
    for shard in json.loads((source / "index.json").read_bytes())["shards"]:
        fd = os.open(source / shard["raw_data"]["basename"], READ)
        rows = shard["samples"]
        ends = struct.unpack(f"<{rows + 1}I", os.pread(fd, 4 * rows + 4, 4))
        step = max(1, BATCH_BYTES * rows // shard["raw_data"]["bytes"])
        for row in range(0, rows, step):
            bounds = ends[row : row + step + 1]
            data = memoryview(os.pread(fd, bounds[-1] - bounds[0], bounds[0]))
            found = []
            for start in bounds[:-1]:
                at = start - bounds[0]
                size, key_size = LENGTHS.unpack_from(data, at)
                end = at + LENGTHS.size + size
                found.append((str(data[end : end + key_size], "utf-8"), data[end - size : end]))
            yield found
        os.close(fd)


def unpack(source: Path, out: Path) -> None:
    names = [key for batch in batches(source) for key, _ in batch]
    if len(set(names)) != len(names):
        sys.exit("a name occurs twice")
    scratch_at = out / "scratch"
    scratch_at.mkdir()
    scratch, folder, at = os.open(scratch_at, READ | os.O_DIRECTORY), "", -1
    log = os.open(scratch_at / "log", CREATE | os.O_APPEND, 0o666)
    for batch in batches(source):
        new = [key for key, _ in batch if not os.path.lexists(out / f"{key}.jpg")]
        os.write(log, json.dumps(new).encode())  # the files that a resumed unpack may replace
        os.fsync(log)
        for key, data in batch:
            below, _, name = key.rpartition("/")
            if below != folder:
                folder = below
                os.makedirs(out / below, exist_ok=True)
                at = os.open(out / below, READ | os.O_DIRECTORY)
            fd = os.open(name, CREATE, 0o666, dir_fd=scratch)
            os.write(fd, data)
            os.close(fd)
            # unlike a rename, a link never replaces a file
            os.link(name, f"{name}.jpg", src_dir_fd=scratch, dst_dir_fd=at, follow_symlinks=False)
            os.unlink(name, dir_fd=scratch)
        os.write(log, json.dumps([(f"{key}.jpg", len(data)) for key, data in batch]).encode())
        os.fsync(log)


def member(name: bytes, data: bytes | memoryview) -> tuple[bytes, bytes | memoryview, bytes]:
    """Return the header, the data and the padding of a file in a tar."""
    size = b"%011o" % len(data)
    total = sum(name) + sum(size) + 7 * 32 + 1000  # the constant stands for the fixed fields
    head = (name.ljust(124, b"\0") + size + b"%08o" % total).ljust(TAR_BLOCK, b"\0")
    return head, data, bytes(-len(data) % TAR_BLOCK)


def convert(source: Path, out: Path) -> None:
    parts, size, shards = list[bytes | memoryview](), 0, 0
    for batch in batches(source):
        for key, data in batch:
            name = b"%05d-%07d" % (shards, size)
            parts += member(name + b".key.txt", key.encode())
            parts += member(name + b".jpg", data)
            size += len(data)
            if size >= SHARD_BYTES:
                write_shard(out, f"{shards}", parts)
                parts, size, shards = [], 0, shards + 1
    write_shard(out, f"{shards}", parts)


if __name__ == "__main__":
    _, task, source, out = sys.argv
    os.mkdir(out)
    began = time.process_time()
    {"pack": pack, "unpack": unpack, "convert": convert}[task](Path(source), Path(out))
    print(time.process_time() - began)
