"""Contents of the files that an index names: order, read-ahead, failed files."""

import os
import random

from flarecli.errors import (
    ReachError,
    UnsafeError,
)
from flarecli.ingest import open_folder
from flarecli.storage import Limits
from tests.ingest.samples import images, write_files


def test_a_file_that_cannot_be_read_fails_its_row(tmp_path):
    write_files(tmp_path, images(2))
    (tmp_path / "a/001.jpg").unlink()
    os.symlink("/etc/passwd", tmp_path / "a/001.jpg")
    (tmp_path / "b/000.txt").write_bytes(bytes(1000))
    found = open_folder(str(tmp_path))
    ((batch, flaws),) = found.filled(found.batches(), found.links, Limits(max_bytes=500))
    assert [(flaw.row, flaw.column, type(flaw.error)) for flaw in flaws] == [
        (1, "image", UnsafeError),
        (2, "text", ReachError),
    ]
    assert str(flaws[1].error) == f"{tmp_path}/b/000.txt: object is 1.0 kB; the maximum is 500 B"
    assert [row["image"] is None for row in batch.to_pylist()] == [False, True, False, False]


def test_files_are_read_in_order_with_bounded_read_ahead(tmp_path):
    rng = random.Random(7)
    files = {f"{n:04}.bin": rng.randbytes(rng.choice([0, 10, 100_000])) for n in range(300)}
    write_files(tmp_path, files)
    found = open_folder(str(tmp_path))
    for ahead in (1, 150_000, 1 << 30):
        batches = [
            batch
            for batch, _ in found.filled(
                found.batches(), found.links, Limits(ahead_bytes=ahead, jobs=5)
            )
        ]
        assert [data for batch in batches for data in batch.column("bin").to_pylist()] == list(
            files.values()
        )
        assert max(batch.nbytes for batch in batches) < 5 << 20


def test_closing_early_ends_all_threads(tmp_path):
    write_files(tmp_path, {f"{n:04}.bin": bytes(10_000) for n in range(3000)})
    found = open_folder(str(tmp_path))
    reading = found.filled(found.batches(), found.links, Limits(ahead_bytes=20_000))
    next(reading)
    reading.close()
