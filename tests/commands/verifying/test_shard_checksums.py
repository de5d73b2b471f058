"""Golden files of the originals with checksums: each flipped bit that they cover is reported; the
rest is noted as unprotected.
"""

import random
import shutil
from pathlib import Path

import pytest

from flarecli import commands, formats
from flarecli.read import resolve

FIXTURES = Path(__file__).parents[3] / "fixtures"
FLIPS = 25  # of one dataset
# dataset of an original -> its files without checksums; for partly covered files, the first covered
# byte
CASES = {
    "mds/mds_all_hashes": {"index.json": None},
    "mds/json_all_hashes": {"index.json": None},
    "mds/mds_comp_zstd": {"index.json": None},
    "mds/csv_comp_br": {"index.json": None},
    "ffrecord/many": {},
    "ffrecord/multi": {},
    "ffrecord/packed": {},
    "ffrecord/oldversion": {"oldversion.ffr": "first record"},
}
UNSUMMED = [
    "webdataset/plain",
    "webdataset/gnu",
    "granular/new/alltypes",
    "granular/old/alltypes",
    "granular/v1/alltypes",
]


def copied(case, tmp_path):
    top = FIXTURES / case
    source = next((top / name for name in ("data/ds", "data", "out") if (top / name).is_dir()), top)
    return Path(shutil.copytree(source, tmp_path / "out"))


def covered(path, begins):
    """Return the bytes that a checksum covers: all, none, or those after the table of an
    FFRecord.
    """
    size = path.stat().st_size
    if begins is None:
        return range(size, size)
    chunk = resolve([str(path)])[0].streams[0].chunk(0) if begins else None
    return range(
        int(formats.find("ffrecord").open_shard(chunk).layout["offsets"][0]) if chunk else 0, size
    )


@pytest.mark.parametrize("case", CASES)
def test_every_flipped_bit_that_checksums_cover_is_reported_and_the_rest_is_noted(case, tmp_path):
    out, rng, passed = copied(case, tmp_path), random.Random(case), []
    done = commands.verify(str(out))
    assert list(done) == []
    for name in CASES[case]:
        assert [text for text in done.unprotected if name in text] != [], done.unprotected
    places = [
        (path, byte)
        for path in sorted(out.rglob("*"))
        if path.is_file()
        for byte in covered(path, CASES[case].get(path.name, ""))
    ]
    for path, byte in rng.sample(places, FLIPS):
        complete, bit = path.read_bytes(), 1 << rng.randrange(8)
        path.write_bytes(complete[:byte] + bytes([complete[byte] ^ bit]) + complete[byte + 1 :])
        if not any(path.name in one.where for one in commands.verify(str(out), jobs=1)):
            passed.append((path.name, byte, bit))
        path.write_bytes(complete)
    assert passed == []


@pytest.mark.parametrize("case", UNSUMMED)
def test_files_without_any_checksum_are_noted(case, tmp_path):
    done = commands.verify(str(copied(case, tmp_path)))
    assert list(done) == []
    assert any(
        text.endswith("no checksums; only sizes and structure were checked")
        for text in done.unprotected
    ), done.unprotected
