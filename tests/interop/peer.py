"""The original library's side of the comparison, run by its own interpreter; it imports nothing of flare.

    peer.py write OUT SAMPLES SETTINGS      SETTINGS as JSON, for the writer of its `format`, MDSWriter if there is none
    peer.py read FOLDER local|streaming     prints one JSON object a sample: field -> type and SHA-256 of its value
    peer.py verbs FOLDER                    prints what each verb of each shard's Reader gives
    peer.py epoch FOLDER SETTINGS           prints what an epoch of a StreamingDataset has, and how it says where it is

`samples` is also loaded by the tests: both sides must begin with the same values.
"""

import hashlib
import json
import os
import random
import sys
from decimal import Decimal


def rows(count=300, seed=1):
    """Text, numbers, bytes and JSON of many lengths, with the awkward ones among them."""
    rng = random.Random(seed)
    for i in range(count):
        text = "".join(rng.choices('abc é\n\t\u2028😀"\\,', k=rng.choice((0, 1, 7, 60, 900))))
        yield {
            "key": f"{i:05}",
            "text": text,
            "score": rng.choice((0.0, -0.0, 1.5, float("inf"), float("nan"), rng.random())),
            "count": rng.randint(-(2**63), 2**63 - 1),
            "small": rng.randint(0, 255),
            "raw": rng.randbytes(rng.choice((0, 1, 500, 4000))),
            "meta": rng.choice(
                ({"b": 1, "a": [1, None, True, "é"]}, [], "plain", 3, {"nan": float("nan")})
            ),
            "price": Decimal(rng.randint(0, 10**6)).scaleb(-2),
            "ratio": rng.random() * 10 ** rng.randint(-20, 20),
            "big": rng.randint(-(10**30), 10**30),
            "é": rng.random(),
        }


ROWS = {
    "key": "str",
    "text": "str",
    "score": "float64",
    "count": "int",
    "small": "uint8",
    "raw": "bytes",
    "meta": "json",
    "price": "str_decimal",
    "ratio": "str_float",
    "big": "str_int",
    "é": "float32",
}


def arrays(count=40, seed=2):
    """Arrays with dtype and shape left open, fixed dtype, fixed both."""
    import numpy as np

    rng = np.random.default_rng(seed)
    for i in range(count):
        shape = (
            tuple(int(size) for size in rng.integers(1, 5, size=1 + i % 3)) if i % 10 else (300,)
        )
        yield {
            "any": (rng.random(shape) * 100).astype(
                ("float32", "uint8", "int64", "float16")[i % 4]
            ),
            "typed": rng.integers(-9, 9, shape).astype("int16"),
            "fixed": rng.random((2, 3)),
            "half": float(np.float16(rng.random())),
        }


ARRAYS = {
    "any": "ndarray",
    "typed": "ndarray:int16",
    "fixed": "ndarray:float64:2,3",
    "half": "float16",
}


def large(count=5, seed=3):
    """Rows larger than any shard, the first among them."""
    rng = random.Random(seed)
    return [{"id": i, "data": rng.randbytes(5000 if i % 2 == 0 else 10)} for i in range(count)]


LARGE = {"id": "int", "data": "bytes"}


def lines(count=300, seed=4):
    """What a line of text can hold: no separator of the tests and no newline is among its signs."""
    rng = random.Random(seed)
    for i in range(count):
        yield {
            "id": rng.choice((i, -i, 10**30 + i)),
            "x": rng.choice(
                (
                    0.0,
                    -0.0,
                    1e16,
                    1e-7,
                    float("inf"),
                    float("nan"),
                    rng.random(),
                    rng.random() * 10 ** rng.randint(-20, 20),
                )
            ),
            "text": "".join(
                rng.choices("abc é\u2028😀\"'\\.:{}\x00", k=rng.choice((0, 1, 7, 60, 900)))
            ),
            "é": str(i),
        }


LINES = {"id": "int", "x": "float", "text": "str", "é": "str"}
KINDS = {
    "rows": (rows, ROWS),
    "arrays": (arrays, ARRAYS),
    "large": (large, LARGE),
    "lines": (lines, LINES),
}


def shown(value):
    """Say what a value is, exactly, so that two processes can compare it."""
    if hasattr(value, "convert"):  # a picture
        data, kind = f"{value.mode}{value.size}".encode() + value.tobytes(), "picture"
    elif hasattr(value, "tobytes") and getattr(value, "ndim", 0):
        data, kind = f"{value.dtype}{value.shape}".encode() + value.tobytes(), "array"
    elif isinstance(value, bytes):
        data, kind = value, "bytes"
    elif isinstance(value, Decimal):
        data, kind = str(value).encode(), "decimal"
    else:
        value = value.item() if hasattr(value, "item") else value
        data, kind = json.dumps(value).encode(), type(value).__name__
    return f"{kind} {hashlib.sha256(data).hexdigest()}"


def write(out, kind, settings):
    import streaming

    samples, columns = KINDS[kind]
    import numpy as np

    settings = json.loads(settings)
    with getattr(streaming, settings.pop("format", "mds").upper() + "Writer")(
        out=out, columns=columns, **settings
    ) as writer:
        for sample in samples():
            scalars = {
                name: np.dtype(columns[name]).type(sample[name])
                for name in columns
                if columns[name] in ("uint8", "float16", "float32")
            }
            writer.write({**sample, **scalars})


def read(folder, how):
    from streaming import LocalDataset, StreamingDataset

    data = (
        LocalDataset(local=folder)
        if how == "local"
        else StreamingDataset(local=folder, shuffle=False, batch_size=1)
    )
    for i in range(len(data)):
        print(json.dumps({name: shown(value) for name, value in data[i].items()}))


def told(reader, folder):
    """Say what the verbs of a Reader give, each with its type; the last ones take its files away."""
    listing = {os.path.join(folder, "", name) for name in os.listdir(folder)}
    found = {
        "size": reader.size,
        "len": len(reader),
        "samples": reader.samples,
        "dirname": reader.dirname,
        "split": reader.split,
        "compression": reader.compression,
        "hashes": reader.hashes,
        "size_limit": reader.size_limit,
        "pairs": [
            [one and [one.basename, one.bytes, one.hashes] for one in pair]
            for pair in reader.file_pairs
        ],
        "get_raw_size": reader.get_raw_size(),
        "get_zip_size": reader.get_zip_size(),
        "get_max_size": reader.get_max_size(),
        "get_persistent_size": [
            reader.get_persistent_size(True),
            reader.get_persistent_size(False),
        ],
    }
    if reader.get_zip_size() is None:
        rows = range(min(3, len(reader)))
        found["get_sample_data"] = [shown(reader.get_sample_data(i)) for i in rows]
        for name, samples in (
            ("get_item", [reader.get_item(i) for i in rows]),
            ("decode_sample", [reader.decode_sample(reader.get_sample_data(i)) for i in rows]),
            ("slice", reader[:2]),
            ("last", [reader[-1]]),
            ("list", reader[[-1, 0]]),
        ):
            found[name] = [
                {key: [type(value).__name__, shown(value)] for key, value in one.items()}
                for one in samples
            ]
    found["set_up_local"] = [reader.set_up_local(listing, keep) for keep in (True, False)]
    found["evict"] = [reader.evict(), reader.evict()]
    found["left"] = sorted(
        name for name in os.listdir(folder) if name.startswith(reader.file_pairs[-1][0].basename)
    )
    return found


def verbs(folder):
    from streaming.base.format import reader_from_json

    with open(os.path.join(folder, "index.json")) as file:
        entries = json.load(file)["shards"]
    for entry in entries:
        print(json.dumps(told(reader_from_json(folder, None, entry), folder)))


def epoch(folder, settings):
    from streaming import StreamingDataset

    data = StreamingDataset(local=folder, **json.loads(settings))
    print(json.dumps(gone_through(data)))


def gone_through(data):
    """Say what does not depend on the order: how many, which, and what a state holds."""
    first = sorted(one["key"] for one in data)
    state = data.state_dict(7, True)
    return {
        "keys": first,
        "len": len(data),
        "sizes": [data.size, data.num_samples, int(data.epoch_size)],
        "shards": [
            data.num_shards,
            data.samples_per_shard.tolist(),
            data.shards_per_stream.tolist(),
        ],
        "state": {name: state[name] for name in sorted(state) if name != "order"},  # flare's mark
        "next": data.next_epoch,
        "predownload": data.predownload,
    }


if __name__ == "__main__":
    {"write": write, "read": read, "verbs": verbs, "epoch": epoch}[sys.argv[1]](*sys.argv[2:])
