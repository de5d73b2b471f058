"""The three workloads of `formats.py`, with the same values in every process.

They need only the standard library.
"""

import random
from collections.abc import Iterator
from typing import Any, NamedTuple


class Workload(NamedTuple):
    """Number of rows; rows that the slowest side iterates over; field -> kind; random reads by
    flare and by the others.
    """

    rows: int
    scanned: int
    kinds: dict[str, str]
    picks: int
    fewer: int


WORKLOADS = {
    "w1": Workload(
        100_000, 20_000, {"number": "int", "score": "float64", "text": "str"}, 20_000, 2_000
    ),  # 1 KB
    "w2": Workload(
        5_000, 5_000, {"caption": "str", "image": "bytes", "label": "int"}, 5_000, 1_000
    ),  # 20 KB
    "w3": Workload(1_000, 1_000, {"data": "bytes", "number": "int"}, 500, 300),  # 500 KB
}
RECORD = {
    "w1": "text",
    "w2": "image",
    "w3": "data",
}  # the field that a format with one column stores
SHARD = 1 << 26


def samples(workload: str, rows: int) -> Iterator[dict[str, Any]]:
    """Yield the first rows of a workload: 1 KB of text, 20 KB of bytes like those of a JPEG, or 500
    KB of noise.
    """
    rng = random.Random(workload)
    words = [
        bytes(rng.choices(b"abcdefghijklmnopqrstuvwxyz", k=rng.randint(2, 11))).decode()
        for _ in range(4000)
    ]
    text = " ".join(rng.choices(words, k=300_000))
    noise = rng.randbytes(8 << 20)

    def piece(source: Any, size: int) -> Any:
        start = rng.randrange(len(source) - size)
        return source[start : start + size]

    for number in range(rows):
        if workload == "w1":
            yield {
                "number": number,
                "score": rng.random(),
                "text": piece(text, rng.randint(600, 1400)),
            }
        elif workload == "w2":
            image = b"\xff\xd8\xff\xe0" + piece(noise, rng.randint(15_000, 25_000)) + b"\xff\xd9"
            yield {
                "caption": piece(text, rng.randint(20, 80)),
                "image": image,
                "label": number % 1000,
            }
        else:
            yield {"data": piece(noise, 500_000), "number": number}


def picks(workload: str, fewer: bool) -> list[int]:
    """Return row numbers in a random order, the same for all sides; `fewer` selects the first of
    them.
    """
    shape, rng = WORKLOADS[workload], random.Random(7)
    rows = [rng.randrange(shape.rows) for _ in range(shape.picks)]
    return rows[: shape.fewer] if fewer else rows
