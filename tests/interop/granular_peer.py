"""Write and read datasets with granular, of either generation. An interpreter that has it runs this
script; it does not import flare.

    granular_peer.py write FOLDER FIRST STOP LISTS SHARDLEN     write rows; LISTS 1: with lists;
    SHARDLEN 0: without shards
    granular_peer.py read FOLDER RAW SHARDED                    print one JSON object per row; RAW
    1: not decoded
    granular_peer.py bag FILE                                   print the records of a bag
    granular_peer.py sources                                    print the datapoints of each source

The tests load this file too.
"""

import hashlib
import json
import random
import sys

SPEC = {
    "array": "array",
    "blob": "bytes",
    "i": "i64",
    "msg": "msgpack",
    "n": "int",
    "picture": "png",
    "text": "utf8",
    "tree": "tree",
    "u": "u64",
}
LISTS = {"numbers": "i64[]", "parts": "bytes[]", "words": "utf8[]"}
# The writer of the original rejects some other integers.
INTS = [0, 1, 127, 256, 300, 32767, 65536, 1 << 24, 5_000_000_000]


def spec(lists):
    return {**SPEC, **LISTS} if lists else SPEC


def samples(first, stop, lists):
    """Yield rows that depend only on their number; no record is empty, because the older generation
    rejects these.
    """
    import numpy as np

    for i in range(first, stop):
        rng = random.Random(i)
        array = np.arange(rng.randrange(1, 30), dtype=("<i2", "<f4", "|u1", ">i8")[i % 4])
        row = {
            "array": array if i % 3 else array.reshape(1, -1),
            "blob": rng.randbytes(rng.randrange(1, 5 if i % 7 else 100_000)),
            "i": rng.randrange(-(1 << 63), 1 << 63),
            "msg": [
                {"k": i, "f": i / 7},
                [None, True, "é" * (i % 40)],
                "x" * (i % 300),
                i / 3,
                b"\x00\xff",
            ][i % 5],
            "n": INTS[i % len(INTS)],
            "picture": np.full((3 + i % 4, 5, 3), i % 256, np.uint8),
            "text": f"row {i} " + "漢字\U0001f642" * (i % 5),
            "tree": {"a": [array, i], "b": {"c": "d"}},
            "u": rng.randrange(1 << 64),
        }
        if lists:
            row |= {
                "numbers": [rng.randrange(-9, 9) for _ in range(i % 4)],
                "parts": [rng.randbytes(1 + k) for k in range((i * 7) % 5)],
                "words": [f"w{i}_{k}" for k in range(0 if i % 6 else 200)],
            }
        yield row


def described(value):
    """Return a value as JSON, so that two processes can compare it."""
    if isinstance(value, dict):
        return {key: described(one) for key, one in value.items()}
    if isinstance(value, (list, tuple)):
        return [described(one) for one in value]
    if hasattr(value, "tobytes") and hasattr(value, "dtype"):
        return [
            "array",
            value.dtype.str,
            list(value.shape),
            hashlib.sha256(value.tobytes()).hexdigest(),
        ]
    if isinstance(value, bytes):
        return ["bytes", hashlib.sha256(value).hexdigest()]
    return [type(value).__name__, repr(value)]


def write(folder, first, stop, lists, shardlen):
    import granular

    first, stop, lists, shardlen = int(first), int(stop), lists == "1", int(shardlen)
    how = {"shardlen": shardlen} if shardlen else {}
    with (granular.ShardedDatasetWriter if shardlen else granular.DatasetWriter)(
        folder, spec(lists), granular.encoders, **how
    ) as writer:
        for row in samples(first, stop, lists):
            writer.append(row)


def read(folder, raw, sharded):
    import granular

    with (granular.ShardedDatasetReader if sharded == "1" else granular.DatasetReader)(
        folder, None if raw == "1" else granular.decoders
    ) as reader:
        for i in range(len(reader)):
            print(json.dumps(described(reader[i])))


def bag(file):
    import granular

    with granular.BagReader(file) as reader:
        for i in range(len(reader)):
            print(json.dumps(described(reader[i])))


def datapoints(granular):
    """Return the datapoints of each source, step by step."""
    of, few, more = granular.sources, list(range(7)), list(range(100, 105))
    calls = {
        "epochs": (of.Epochs(few, seed=0), 30),
        "in order": (of.Epochs(few, shuffle=False), 10),
        "length": (of.Epochs(lambda i: i, length=4), 9),
        "sample": (of.Sample(few, seed=3), 30),
        "truncate": (of.Truncate(few, 3), 9),
        "interleave": (of.Interleave([few, more]), 8),
        "mix": (
            of.Mix([lambda i: ["a", i], lambda i: ["b", i], lambda i: ["c", i]], [1, 2, 3], seed=5),
            40,
        ),
        "transform": (
            of.Transform(few, lambda datapoint, seed: [datapoint, list(seed)], seed=9),
            5,
        ),
    }
    return {
        name: [source(step) for step in range(steps)] for name, (source, steps) in calls.items()
    }


def sources():
    import granular

    print(json.dumps(datapoints(granular)))


if __name__ == "__main__":
    {"write": write, "read": read, "bag": bag, "sources": sources}[sys.argv[1]](*sys.argv[2:])
