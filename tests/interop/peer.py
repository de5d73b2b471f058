"""Write and read datasets with mosaicml-streaming. An interpreter that has the library runs this
script; it does not import flare.

    peer.py write OUT KIND SETTINGS         write the samples of a KIND; SETTINGS are arguments of
                                            the writer, as JSON, and its `format`
    peer.py read FOLDER local|streaming     print one JSON object per sample: column -> type and
                                            SHA-256 of its value
    peer.py methods FOLDER                  print the result of each method of the Reader of each
                                            shard
    peer.py epoch FOLDER SETTINGS           print the samples of an epoch of a StreamingDataset, and
                                            its state

The tests load this file too, because both libraries must write the same samples.
"""

import hashlib
import json
import os
import random
import sys
from decimal import Decimal


def rows(count=300, seed=1):
    """Yield text, numbers, bytes and JSON of many lengths, with edge cases."""
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
    """Yield arrays of any dtype and shape, of a fixed dtype, and of a fixed dtype and shape."""
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
    """Return rows that are larger than a shard; the first is one of them."""
    rng = random.Random(seed)
    return [{"id": i, "data": rng.randbytes(5000 if i % 2 == 0 else 10)} for i in range(count)]


LARGE = {"id": "int", "data": "bytes"}


def lines(count=300, seed=4):
    """Yield values for lines of text, without newlines and the separators of the tests."""
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


def described(value):
    """Return the type and the SHA-256 of a value, so that two processes can compare it."""
    if hasattr(value, "convert"):  # an image
        data, kind = f"{value.mode}{value.size}".encode() + value.tobytes(), "image"
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


def read(folder, dataset):
    from streaming import LocalDataset, StreamingDataset

    data = (
        LocalDataset(local=folder)
        if dataset == "local"
        else StreamingDataset(local=folder, shuffle=False, batch_size=1)
    )
    for i in range(len(data)):
        print(json.dumps({name: described(value) for name, value in data[i].items()}))


def reader_results(reader, folder):
    """Return the results of the methods of a Reader; the last calls remove its files."""
    listing = {os.path.join(folder, "", name) for name in os.listdir(folder)}
    results = {
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
        results["get_sample_data"] = [described(reader.get_sample_data(i)) for i in rows]
        for name, samples in (
            ("get_item", [reader.get_item(i) for i in rows]),
            ("decode_sample", [reader.decode_sample(reader.get_sample_data(i)) for i in rows]),
            ("slice", reader[:2]),
            ("last", [reader[-1]]),
            ("list", reader[[-1, 0]]),
        ):
            results[name] = [
                {key: [type(value).__name__, described(value)] for key, value in one.items()}
                for one in samples
            ]
    results["set_up_local"] = [reader.set_up_local(listing, keep) for keep in (True, False)]
    results["evict"] = [reader.evict(), reader.evict()]
    results["left"] = sorted(
        name for name in os.listdir(folder) if name.startswith(reader.file_pairs[-1][0].basename)
    )
    return results


def methods(folder):
    from streaming.base.format import reader_from_json

    with open(os.path.join(folder, "index.json")) as file:
        entries = json.load(file)["shards"]
    for entry in entries:
        print(json.dumps(reader_results(reader_from_json(folder, None, entry), folder)))


def epoch(folder, settings):
    from streaming import StreamingDataset

    data = StreamingDataset(local=folder, **json.loads(settings))
    print(json.dumps(epoch_results(data)))


def epoch_results(data):
    """Return what an epoch and a state contain, except what depends on the order of samples."""
    keys = sorted(sample["key"] for sample in data)
    state = data.state_dict(7, True)
    return {
        "keys": keys,
        "len": len(data),
        "sizes": [data.size, data.num_samples, int(data.epoch_size)],
        "shards": [
            data.num_shards,
            data.samples_per_shard.tolist(),
            data.shards_per_stream.tolist(),
        ],
        "state": {name: state[name] for name in sorted(state) if name != "order"},
        "next": data.next_epoch,
        "predownload": data.predownload,
    }


if __name__ == "__main__":
    {"write": write, "read": read, "methods": methods, "epoch": epoch}[sys.argv[1]](*sys.argv[2:])
