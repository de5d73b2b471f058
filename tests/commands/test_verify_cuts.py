"""Golden files of the originals, cut at every border of their structure: verify notices each cut, with sums or without."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from flarecli import commands, formats
from flarecli.errors import FlareError
from flarecli.read import resolve

FIXTURES = Path(__file__).parents[2] / "fixtures"
MOST = 40  # cuts of one file; of several, a quarter as many in each
CASES = [
    "mds/mds_scalars",
    "mds/mds_text_bytes",
    "mds/mds_comp_zstd",
    "mds/mds_comp_gz",
    "mds/mds_comp_br",
    "mds/mds_comp_snappy",
    "mds/mds_all_hashes",
    "mds/json_newline_lf",
    "mds/json_comp_zstd_3",
    "mds/csv_crlf",
    "mds/xsv_unicode",
    "ffrecord/many",
    "ffrecord/oldversion",
    "ffrecord/multi",
    "webdataset/plain",
    "webdataset/gnu",
    "webdataset/pax",
    "webdataset/gz",
    "granular/new/alltypes",
    "granular/new/sharded_stride",
    "granular/new/zero_length",
    "granular/new/empty",
    "granular/old/alltypes",
    "granular/old/sequences",
    "granular/old/sharded",
    "granular/v1/alltypes",
    "granular/v1/sequences",
    "granular/v1/sharded",
]


def folder_of(case):
    return next(
        (
            FIXTURES / case / name
            for name in ("data/ds", "data", "out")
            if (FIXTURES / case / name).is_dir()
        ),
        FIXTURES / case,
    )


def is_named(name, one):
    """Whether a finding is about the file; an index and its bag hold each other to account, and a column may be called by its name."""
    stem, _, kind = name.rpartition(".")
    told = {name, f"{stem}.bag"} if kind == "idx" else {name}
    return Path(one.where.partition("[")[0]).name in told or (
        kind == "idx" and f"column {stem!r}" in one.message
    )


def borders(chunk, size, most):
    """Where the parts of a shard begin and end, by its own tables; the ends of fixed heads and of blocks; one byte from the end."""
    found = {
        0,
        4,
        8,
        12,
        16,
        size // 2,
        size - 1,
        size - 4,
        size - 512,
        size - 1024,
        *range(512, size, max(512, size // MOST // 512 * 512)),
    }
    try:
        shard = formats.find(chunk.format).open_shard(chunk)
        for array in map(np.asarray, shard.layout.values()):
            found |= (
                {int(value) for value in array.reshape(-1)[:MOST]}
                if array.dtype.kind in "iu"
                else set()
            )
    except FlareError:
        pass  # compressed: its borders are those of the frame
    inside = sorted(value for value in found if 0 <= value < size)
    return inside[:: max(1, -(-len(inside) // most))]


@pytest.mark.parametrize("case", CASES)
def test_a_file_cut_at_a_border_is_noticed_and_named(case, tmp_path):
    out = Path(shutil.copytree(folder_of(case), tmp_path / "out"))
    (found,) = resolve([str(out)], maps=False)
    cuts, passed = 0, []
    chunk = next(iter(found.streams[0]))
    most = MOST // 4 if chunk.beside else MOST
    for path in (Path(str(at)) for at in (chunk.at, *chunk.beside)):
        name, whole = path.name, path.read_bytes()
        for cut in borders(chunk, len(whole), most):
            if not whole[cut:].strip(b"\0") and whole[:cut].endswith(bytes(1024)):
                continue  # blocks of zeros after the end of a tar: nothing is lost
            if not cut and whole == bytes(8) and path.suffix == ".bag":
                continue  # a bag of no records: one writer gives it a count of none, another no bytes at all
            path.write_bytes(whole[:cut])
            findings = list(commands.verify(str(out)))
            cuts += 1
            if not any(is_named(name, one) for one in findings):
                passed.append((name, cut, len(whole), findings))
        path.write_bytes(whole)
    assert (passed, cuts > 3) == ([], True)
