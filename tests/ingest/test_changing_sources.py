"""Sources that are deleted, replaced or written to while they are read: a pass reads one version or
fails.
"""

import errno
import json
import os
import select
import tempfile

import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest

from flarecli.errors import FormatError, MissingError, ReachError
from flarecli.formats.tables import decompress
from flarecli.ingest import open_folder, open_index
from flarecli.ingest.stdin import Spool, open_streams, standard_input

ROWS = 3000
NAMES = ["x.parquet", "x.csv", "x.csv.gz", "x.jsonl", "x.json", "x.arrow", "x.arrows"]


def table(word: str) -> pa.Table:
    return pa.table({"n": range(ROWS), "t": [f"{word} {n}" for n in range(ROWS)]})


def write(path, of: pa.Table) -> None:
    kind = path.name.partition(".")[2]
    if kind == "parquet":
        pq.write_table(of, path, row_group_size=500)
    elif kind == "jsonl":
        path.write_text("".join(json.dumps(row) + "\n" for row in of.to_pylist()))
    elif kind == "json":
        path.write_text(json.dumps(of.to_pylist()))
    elif kind.startswith("arrow"):
        with (pa.ipc.new_file if kind == "arrow" else pa.ipc.new_stream)(
            str(path), of.schema
        ) as out:
            out.write_table(of, max_chunksize=500)
    else:
        with (
            pa.CompressedOutputStream(str(path), "gzip")
            if kind == "csv.gz"
            else pa.OSFile(str(path), "wb") as out
        ):
            pyarrow.csv.write_csv(of, out)


@pytest.mark.parametrize("replaced", [True, False])
@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_deleted_while_it_is_read_is_read_to_its_end(
    tmp_path, monkeypatch, name, replaced
):
    monkeypatch.setattr(decompress, "BLOCK_BYTES", 5000)
    monkeypatch.setattr("flarecli.formats.tables.parquet._ROWS", 500)
    path = tmp_path / name
    write(path, table("old"))
    batches = open_index(str(path)).batches()
    rows = [next(batches)]
    assert rows[0].num_rows < ROWS
    if replaced:
        write(tmp_path / f"other_{name}", table("new"))
        os.replace(tmp_path / f"other_{name}", path)
    else:
        path.unlink()
    assert pa.Table.from_batches([*rows, *batches]).equals(table("old"))


@pytest.mark.parametrize("name", NAMES)
def test_a_file_that_is_deleted_before_its_rows_are_read_is_missing(tmp_path, name):
    write(tmp_path / name, table("old"))
    found = open_index(str(tmp_path / name))
    (tmp_path / name).unlink()
    with pytest.raises(MissingError) as caught:
        list(found.batches())
    assert str(caught.value) == f"{tmp_path / name}: no such file or folder"


def test_a_table_whose_header_changed_after_opening_is_refused(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text("url,name\nhttp://h/a,b\n")
    found = open_index(str(path))
    path.write_text("name,url\nb,http://h/a\n")
    with pytest.raises(FormatError) as caught:
        list(found.batches())
    assert (str(caught.value), caught.value.hint) == (
        f"{path}: the header changed while the file was being read",
        "Run the command again when no other process is writing to the file.",
    )
    path.write_text("url,name\nhttp://h/c,d\n")
    assert [row for batch in found.batches() for row in batch.to_pylist()] == [
        {"url": "http://h/c", "name": "d"}
    ]


def test_a_deleted_file_of_a_folder_fails_its_row(tmp_path):
    for number in range(3):
        (tmp_path / f"{number}.jpg").write_text(f"{number}")
    found = open_folder(str(tmp_path))
    rows = list(found.batches())
    (tmp_path / "1.jpg").unlink()
    ((batch, flaws),) = found.filled(rows, found.links)
    assert batch.column("image").to_pylist() == [b"0", None, b"2"]
    assert [(flaw.row, flaw.column, str(flaw.error)) for flaw in flaws] == [
        (1, "image", f"{tmp_path}/1.jpg: no such file or folder")
    ]


# -- standard input


def test_a_non_blocking_pipe_is_read_to_its_end(monkeypatch):
    out, into = os.pipe()
    os.set_blocking(out, False)
    waited, wait = [], select.select

    def writes(*args):
        waited.append(args)
        os.write(into, b"b.jpg\n" if len(waited) == 1 else b"c.jpg\n")
        if len(waited) == 2:
            os.close(into)
        return wait(*args)

    monkeypatch.setattr(select, "select", writes)
    os.write(into, b"a.jpg\n")
    with os.fdopen(out, "rb") as stream:
        (spool,) = open_streams(["-"], stream)
        assert b"".join(spool.blocks()) == b"a.jpg\nb.jpg\nc.jpg\n"
    assert len(waited) == 2


class FailingStream:
    """A stream whose read fails."""

    def read(self, size):
        raise OSError(errno.EIO, "Input/output error")


def test_a_broken_stream_and_a_full_disk_have_different_errors():
    with pytest.raises(ReachError) as caught:
        open_streams(["-"], FailingStream())
    assert str(caught.value) == "-: cannot read: input/output error"
    spool = Spool(iter([b"data"]))
    with open("/dev/full", "wb", buffering=0) as full:
        spool._file = full
        with pytest.raises(ReachError) as caught:
            next(spool.blocks())
    assert (str(caught.value), caught.value.hint) == (
        f"{tempfile.gettempdir()}: cannot write temporary files for the stream -: "
        "no space left on device",
        "Set TMPDIR to a folder on a larger disk.",
    )


def test_a_closed_standard_input_is_an_error(monkeypatch):
    monkeypatch.setattr("sys.stdin", None)
    with pytest.raises(ReachError) as caught:
        standard_input()
    assert str(caught.value) == "-: standard input is closed"


@pytest.mark.parametrize(
    "other", [{"name": ["b"], "url": [1]}, {"name": ["b"]}], ids=["another type", "one less"]
)
def test_parquet_whose_columns_changed_after_opening_is_refused(tmp_path, other):
    path = tmp_path / "x.parquet"
    pq.write_table(pa.table({"name": ["a"], "url": ["u"]}), path)
    found = open_index(str(path))
    pq.write_table(pa.table(other), path)
    with pytest.raises(FormatError) as caught:
        list(found.batches())
    assert (str(caught.value), caught.value.hint) == (
        f"{path}: the footer changed while the file was being read",
        "Run the command again when no other process is writing to the file.",
    )


@pytest.mark.parametrize("after", ["unlinked", "replaced"])
@pytest.mark.parametrize("name", ["x.parquet", "x.arrow", "x.arrows"])
def test_damage_in_a_deleted_file_is_reported_as_damage(tmp_path, monkeypatch, name, after):
    """An open file is checked by its own bytes, even if its name is gone or belongs to another
    file.
    """
    monkeypatch.setattr("flarecli.formats.tables.parquet._ROWS", 500)
    path = tmp_path / name
    if name == "x.parquet":
        pq.write_table(
            table("old"),
            path,
            row_group_size=500,
            write_page_checksum=True,
            compression="none",
            use_dictionary=False,
        )
        data = bytearray(path.read_bytes())
        data[data.index(b"old 2600")] ^= 1
        reason = "not valid parquet: could not verify page integrity, CRC checksum verification failed for page_ordinal 0"
    else:
        write(path, table("old"))
        data = bytearray(path.read_bytes())
        last = data.rindex(
            b"\xff\xff\xff\xff", 0, data.rindex(b"old 2600")
        )  # row of the batch whose message is damaged
        data[last + 8 : last + 40] = b"\xff" * 32
        reason = "not valid Arrow IPC: Invalid flatbuffers message."
    path.write_bytes(data)
    batches = open_index(str(path)).batches()
    next(batches)
    path.unlink()
    if after == "replaced":
        path.write_bytes(b"another")
    with pytest.raises(FormatError) as caught:
        list(batches)
    assert str(caught.value) == f"{path}: {reason}"
