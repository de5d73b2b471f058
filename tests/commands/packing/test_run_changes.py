"""A resumed pack compares its source with the journal. Some errors end a pack even with --on-error
skip.
"""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli import commands
from flarecli.errors import FormatError, UsageError
from flarecli.model import Settings
from flarecli.write import Writer
from flarecli.write.journal import Journal

CHANGED = "the unfinished pack was started with another source, or before the source was changed"


def interrupted(*_, **__):
    raise KeyboardInterrupt


def dataset(path, first, rows=12):
    with Writer(
        str(path), columns={"n": "int"}, settings=Settings(shard_rows=3), overwrite=path.exists()
    ) as writer:
        for row in range(rows):
            writer.write({"n": first + row})
    return str(path)


def test_a_changed_dataset_is_neither_resumed_nor_accepted_as_finished(tmp_path, monkeypatch):
    note, out = Journal.record_shard, tmp_path / "out"

    def interrupting(self, *args):
        note(self, *args)
        if len(self.shards) == 2:
            raise KeyboardInterrupt

    source = dataset(tmp_path / "d", 0)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "record_shard", interrupting)
        commands.pack(source, str(out), shard_rows=2)
    dataset(tmp_path / "d", 100)
    with pytest.raises(UsageError) as caught:
        commands.pack(source, str(out), shard_rows=2, resume=True)
    assert str(caught.value) == f"{out}: {CHANGED}"
    dataset(tmp_path / "d", 0)
    assert commands.pack(source, str(out), shard_rows=2, resume=True).resumed_rows == 4
    dataset(tmp_path / "d", 100)
    with pytest.raises(UsageError) as caught:
        commands.pack(source, str(out), shard_rows=2, resume=True)
    assert (
        str(caught.value)
        == f"{out}: the folder contains a dataset from a different source or with different options"
    )


def test_recorded_columns_without_a_shard_are_compared_with_the_source(tmp_path, monkeypatch):
    """The files have equal sizes and footers: only the bytes that were read differ."""
    plain = {
        "use_dictionary": False,
        "write_statistics": False,
        "compression": "none",
        "row_group_size": 10,
    }
    index, out = tmp_path / "i.parquet", tmp_path / "out"
    pq.write_table(pa.table({"a": [b"\x89PNG\r\n\x1a\n" + bytes(20)] * 50}), index, **plain)
    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record_shard", interrupted)
        patch.setattr(
            "flarecli.write.folder_target.FolderTarget.abandon", lambda self, keep: self.release()
        )
        with pytest.raises(KeyboardInterrupt):
            commands.pack(str(index), str(out))
    size = index.stat().st_size
    pq.write_table(pa.table({"a": [b"plain text, of 28 characters"] * 50}), index, **plain)
    assert index.stat().st_size == size
    with pytest.raises(UsageError) as caught:
        commands.pack(str(index), str(out), resume=True)
    assert str(caught.value) == f"{out}: {CHANGED}"


def test_a_duplicate_key_many_rows_later_is_reported_with_both_rows(tmp_path, monkeypatch):
    monkeypatch.setattr("flarecli.formats.tables.parquet._ROWS", 50)
    keys = [f"k{i}" for i in range(400)]
    keys[333] = "k222"
    pq.write_table(pa.table({"k": keys}), tmp_path / "i.parquet", row_group_size=50)
    with pytest.raises(FormatError) as caught:
        commands.pack(str(tmp_path / "i.parquet"), str(tmp_path / "out"), key="k")
    assert str(caught.value) == f"{tmp_path}/i.parquet[333]: key 'k222' was used in row 222"
