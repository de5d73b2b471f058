"""Write and read tar files with webdataset 1.0. An interpreter that has it runs this script; it
does not import flare.

    webdataset_peer.py write FILE KIND FORMAT     write the samples of a KIND; FORMAT: USTAR_FORMAT,
                                                  PAX_FORMAT or GNU_FORMAT
    webdataset_peer.py read FILE…                 print one line per sample: extension -> size and
                                                  SHA-256
    webdataset_peer.py decode FILE…               print one line per sample: extension -> decoded
                                                  value
    webdataset_peer.py fixtures FOLDER            write the files of fixtures/webdataset

The tests load this file too.
"""

import hashlib
import json
import os
import random
import sys


def plain(count=7):
    """Yield samples of an image, a class, a caption and a JSON value; every third has no
    caption.
    """
    for i in range(count):
        rng = random.Random(i)
        sample = {
            "__key__": f"{i:04}",
            "jpg": b"\xff\xd8\xff" + rng.randbytes(rng.randrange(700)),
            "cls": i * i,
            "json": {"i": i, "f": i / 7},
        }
        yield sample if i % 3 == 2 else {**sample, "txt": "a caption é 漢 " * (i % 4)}


def deep():
    """Yield samples with folders in keys, dots and capitals in extensions, and empty members."""
    for i in range(5):
        key = "/".join(["train", *["folder" * 3] * i, f"sample-{i}"])
        yield {
            "__key__": key,
            "input.png": bytes(i),
            "Output.PNG": b"x" * 512,
            "seg.npy": b"y" * 513,
            "txt": "",
        }


def long():
    """Yield samples whose names are too long for the fields of a tar header."""
    for i in range(3):
        yield {
            "__key__": f"{'folder-of-a-long-name' * 3}/{'é' * 60}-{i}",
            "txt": f"{i}",
            "very." * 20 + "bin": bytes([i]) * 600,
        }


KINDS = {"plain": plain, "deep": deep, "long": long}


def write(path, kind, format="USTAR_FORMAT"):
    import webdataset

    with webdataset.TarWriter(path, mtime=0, format=format) as writer:
        for sample in KINDS[kind]():
            writer.write(sample)


def described(data):
    return [len(data), hashlib.sha256(data).hexdigest()]


def samples(paths):
    import webdataset

    for path in paths:
        for sample in webdataset.WebDataset(path, shardshuffle=False, empty_check=False):
            yield {
                name: value
                for name, value in sample.items()
                if name not in ("__url__", "__local_path__")
            }


def read(*paths):
    for sample in samples(paths):
        print(
            json.dumps(
                {
                    name: value if name == "__key__" else described(value)
                    for name, value in sample.items()
                }
            )
        )


def decode(*paths):
    import webdataset

    for path in paths:
        for sample in webdataset.WebDataset(path, shardshuffle=False).decode():
            values = {
                name: value
                for name, value in sample.items()
                if name not in ("__url__", "__local_path__")
            }
            print(
                json.dumps(
                    {
                        name: described(value) if isinstance(value, bytes) else value
                        for name, value in values.items()
                    }
                )
            )


def fixtures(folder):
    for name, kind, format in (
        ("plain", "plain", "USTAR_FORMAT"),
        ("deep", "deep", "USTAR_FORMAT"),
        ("pax", "long", "PAX_FORMAT"),
        ("gnu", "long", "GNU_FORMAT"),
    ):
        os.makedirs(f"{folder}/{name}/data", exist_ok=True)
        write(f"{folder}/{name}/data/00000.tar", kind, format)
        with open(f"{folder}/{name}/expected.jsonl", "w") as out:
            sys.stdout, stdout = out, sys.stdout
            read(f"{folder}/{name}/data/00000.tar")
            sys.stdout = stdout
    os.makedirs(f"{folder}/gz/data", exist_ok=True)
    write(f"{folder}/gz/data/00000.tar.gz", "plain")


if __name__ == "__main__":
    {"write": write, "read": read, "decode": decode, "fixtures": fixtures}[sys.argv[1]](
        *sys.argv[2:]
    )
