"""Many shards and datasets in one process stay within the limit of file handles."""

import resource
import subprocess
import sys
import textwrap

import pytest

import flarecli as flare
from flarecli.model import Settings
from flarecli.storage import files_limit

PROGRAM = """
    import os, resource, sys
    import flarecli as flare

    resource.setrlimit(resource.RLIMIT_NOFILE, (64, 64))
    datas = [flare.open(path) for path in sys.argv[1:] for _ in range(8)]
    for data in datas:
        for order, workers in (("shuffle", 2), ("windows", 0), ("sequential", 2)):
            batches = flare.Loader(data, 64, order=order, workers=workers)
            assert sorted(n for batch in batches for n in batch["n"].tolist()) == list(range(len(data)))
        assert sum(len(batch) for batch in data.batches(100)) == len(data)
    print(len(os.listdir("/proc/self/fd")) < 40)
"""


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    out = []
    for format, shards in (("mds", 200), ("granular", 40)):
        path = str(tmp_path_factory.mktemp("many") / format)
        with flare.Writer(
            path, columns={"n": "int", "t": "str"}, format=format, settings=Settings(shard_rows=5)
        ) as writer:
            for n in range(5 * shards):
                writer.write({"n": n, "t": "x" * n})
        out.append(path)
    return out


def test_epochs_over_many_shards_need_few_handles(folders):
    ran = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(PROGRAM), *folders],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.stdout, ran.stderr) == ("True\n", "")


def test_mapped_files_are_limited_to_a_share_of_the_handles(monkeypatch):
    for handles, files in (
        (16, 8),
        (64, 16),
        (1024, 256),
        (1 << 20, 1024),
        (resource.RLIM_INFINITY, 1024),
    ):
        monkeypatch.setattr(resource, "getrlimit", lambda _, handles=handles: (handles, handles))
        assert files_limit(1024) == files
