"""A small dataset, plain and compressed: 35 rows of an id, a caption, and bytes that start like a
JPEG.
"""

import random
import shutil
from pathlib import Path

import pytest

from flarecli.model import Settings
from flarecli.write import Failure, Writer

ROWS = 35


def sample(i: int) -> dict:
    return {
        "id": i,
        "text": f"caption {i}",
        "image": b"\xff\xd8\xff\xe0" + random.Random(i).randbytes(500),
    }


def packed(folder: Path, compression: str | None = None) -> Path:
    settings = Settings(compression=compression, hashes=("sha1",), shard_bytes=6000)
    with Writer(
        str(folder), columns={"id": "int", "text": "str", "image": "jpeg"}, settings=settings
    ) as writer:
        for i in range(ROWS):
            if i == 7:
                writer.failed.add(Failure(i, "k7", "image", "reach", "404 not found"))
            writer.write(sample(i))
    return folder


@pytest.fixture(scope="session")
def plain(tmp_path_factory):
    return packed(tmp_path_factory.mktemp("plain") / "out")


@pytest.fixture(scope="session")
def zipped(tmp_path_factory):
    return packed(tmp_path_factory.mktemp("zipped") / "out", "zstd")


@pytest.fixture
def out(plain, tmp_path):
    return Path(shutil.copytree(plain, tmp_path / "out"))


@pytest.fixture
def samples():
    return [sample(i) for i in range(ROWS)]
