"""A small dataset that the tests of several modules read."""

from flarecli.model import Settings
from flarecli.write import Writer

ROWS = [{"n": i, "t": "x" * (i % 40)} for i in range(200)]


def pack(path, rows, columns=None, shard_bytes=2000):
    """Pack rows as MDS, by default of an integer and a text, and return the path."""
    with Writer(
        str(path),
        columns=columns or {"n": "int", "t": "str"},
        settings=Settings(shard_bytes=shard_bytes),
    ) as writer:
        for row in rows:
            writer.write(row)
    return str(path)
