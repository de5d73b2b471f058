"""Golden files of the originals, truncated at every boundary of their structure: verify reports
each truncation.
"""

import shutil
from pathlib import Path

import numpy as np
import pytest

from flarecli import commands, formats
from flarecli.errors import FlareError
from flarecli.read import resolve

FIXTURES = Path(__file__).parents[3] / "fixtures"
MOST = 40  # truncations of one file; a quarter as many of each of several files
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
    """Return whether a finding is about the file.

    An index and its bag are checked together, and a column may be named instead.
    """
    stem, _, kind = name.rpartition(".")
    output = {name, f"{stem}.bag"} if kind == "idx" else {name}
    return Path(one.where.partition("[")[0]).name in output or (
        kind == "idx" and f"column {stem!r}" in one.message
    )


def borders(chunk, size, most):
    """Return the boundaries of the parts of a shard, by its tables; the ends of headers and blocks;
    and the end less one byte.
    """
    result = {
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
            result |= (
                {int(value) for value in array.reshape(-1)[:MOST]}
                if array.dtype.kind in "iu"
                else set()
            )
    except FlareError:
        pass  # compressed: the boundaries are those of the frame
    inside = sorted(value for value in result if 0 <= value < size)
    return inside[:: max(1, -(-len(inside) // most))]


@pytest.mark.parametrize("case", CASES)
def test_a_file_truncated_at_a_boundary_is_reported(case, tmp_path):
    out = Path(shutil.copytree(folder_of(case), tmp_path / "out"))
    (result,) = resolve([str(out)], maps=False)
    cuts, passed = 0, []
    chunk = next(iter(result.streams[0]))
    most = MOST // 4 if chunk.companions else MOST
    for path in (Path(str(at)) for at in (chunk.at, *chunk.companions)):
        name, complete = path.name, path.read_bytes()
        for cut in borders(chunk, len(complete), most):
            if not complete[cut:].strip(b"\0") and complete[:cut].endswith(bytes(1024)):
                continue  # blocks of zeros after the end of a tar: no data is lost
            if not cut and complete == bytes(8) and path.suffix == ".bag":
                continue  # a bag without records: some writers store a count of 0, others no bytes
            path.write_bytes(complete[:cut])
            findings = list(commands.verify(str(out)))
            cuts += 1
            if not any(is_named(name, one) for one in findings):
                passed.append((name, cut, len(complete), findings))
        path.write_bytes(complete)
    assert (passed, cuts > 3) == ([], True)
