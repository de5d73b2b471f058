"""Standard input: addresses, JSON, and invalid input."""

import io

import pytest

from flarecli.errors import (
    FormatError,
    UsageError,
)
from flarecli.formats.tables import decompress
from flarecli.ingest import open_index
from flarecli.storage import Guard
from tests.ingest.samples import rows_of, write_files


class Pipe(io.RawIOBase):
    """A stream that can be read once and records its position."""

    def __init__(self, data: bytes) -> None:
        self.data, self.read_so_far = io.BytesIO(data), 0

    def read(self, size=-1):
        found = self.data.read(size)
        self.read_so_far += len(found)
        return found


def test_addresses_are_rows_with_a_name_and_the_contents(tmp_path, monkeypatch, web):
    write_files(tmp_path, {"a/x.flac": "one", "y.flac": "two"})
    monkeypatch.chdir(tmp_path)
    outside = tmp_path.parent / f"{tmp_path.name}.outside"
    outside.write_text("three")
    far = web.file("/z.flac?sig=secret", b"four").replace("http://", "http://me:pass@")
    web.file("/z.flac", b"four")
    guard, text = Guard(allow_private=True), f"./a/x.flac\ny.flac\r\n\n{outside}\n{far}"
    found = open_index("-", guard=guard, stdin=Pipe(text.encode()))
    assert (found.links, found.key, found.rows) == (("data",), "name", None)
    assert [row["name"] for row in rows_of(found)] == [
        "./a/x.flac",
        "y.flac",
        str(outside),
        far.replace("me:pass@", "").replace("?sig=secret", ""),
    ]
    ((batch, flaws),) = found.contents()
    assert (batch.column("data").to_pylist(), flaws) == ([b"one", b"two", b"three", b"four"], [])


def test_addresses_with_newlines_are_separated_by_nul():
    found = open_index("-", null_separated=True, stdin=Pipe(b"a\nb.jpg\0{c}.jpg\0"))
    assert rows_of(found, ["name"]) == [{"name": "a\nb.jpg"}, {"name": "{c}.jpg"}]


@pytest.mark.parametrize("data", [b'\n {"n": 1}\n{"n": 2}\n', b' [{"n": 1}, {"n": 2}]'])
def test_json_at_standard_input_is_a_table(data):
    found = open_index("-", stdin=Pipe(data))
    assert found.links == ()
    assert rows_of(found) == rows_of(found) == [{"n": 1}, {"n": 2}]


def test_a_stream_is_read_on_demand_and_can_be_read_again(monkeypatch):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 1000)
    data = b"".join(b'{"n": %d}\n' % n for n in range(5000))
    pipe = Pipe(data)
    found = open_index("-", stdin=pipe)
    next(found.batches())
    assert pipe.read_so_far <= 3000
    first, second = found.batches(), found.batches()
    mixed = [next(first), next(second), *first]
    assert sum(batch.num_rows for batch in mixed) - mixed[1].num_rows == 5000
    assert found.sum() == open_index("-", stdin=Pipe(data)).sum()
    assert found.count("n >= 4000") == 1000


@pytest.mark.parametrize(
    ("data", "options", "message"),
    [
        (b" \n", {}, "-: standard input is empty"),
        (b"a.jpg\ncaf\xe9.jpg\n", {}, "-: line 2: byte 0xe9 is not UTF-8"),
        (b"a.jpg\0b.jpg\0", {}, "-: line 1: 'a.jpg\\\\x00b.jpg\\\\x00' contains a NUL"),
        (b"x" * 100_000, {}, "-: line 1: address is longer than 65536 bytes"),
        (
            b'{"n": 1}\n{"n": "x"}',
            {},
            "-: line 2: column 'n' contains text; earlier rows contain a number",
        ),
    ],
)
def test_invalid_standard_input_is_reported(data, options, message):
    with pytest.raises(FormatError) as caught:
        rows_of(open_index("-", stdin=Pipe(data), **options))
    assert str(caught.value) == message


def test_standard_input_cannot_be_combined_with_files():
    with pytest.raises(
        UsageError, match=r"^- \(standard input\) cannot be combined with other indexes$"
    ):
        open_index(["-", "x.csv"])
