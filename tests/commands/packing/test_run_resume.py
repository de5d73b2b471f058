"""A resumed pack compares its journal with the source. It is refused, or has the bytes of an
uninterrupted pack.
"""

import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import xxhash
import yaml

from flarecli import commands
from flarecli.errors import UsageError
from flarecli.progress import Progress
from flarecli.write.journal import Journal

CHANGED = "the unfinished pack was started with another source, or before the source was changed"
GROUP, ROWS = 500, 4000


def table(path, changed=(), **options):
    """Write row groups of equal size for any values; rows `changed` have other values."""
    texts = [f"{i:08d}" * 10 for i in range(ROWS)]
    for row in changed:
        texts[row] = "x" * 80
    plain = {"use_dictionary": False, "write_statistics": False, "compression": "none", **options}
    pq.write_table(
        pa.table({"text": texts, "number": list(range(ROWS)), "more": [0.5] * ROWS}),
        path,
        row_group_size=GROUP,
        **plain,
    )


def interrupt_after(monkeypatch, shards, *args, **options):
    """Pack until a number of shards is recorded."""
    note = Journal.record_shard

    def interrupting(self, *args):
        note(self, *args)
        if len(self.shards) >= shards:
            raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record_shard", interrupting)
        with pytest.raises(KeyboardInterrupt):
            commands.pack(*args, **options)


def lines(out):
    return [json.loads(line) for line in (out / ".flare/journal").read_text().splitlines()]


def files(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file()}


@pytest.fixture
def few_rows(monkeypatch):
    monkeypatch.setattr("flarecli.formats.tables.parquet._ROWS", 300)


@pytest.mark.parametrize(
    "options", [{}, {"columns": ["text", "number"]}, {"key": "number"}, {"limit": 3000}], ids=str
)
@pytest.mark.parametrize("codec", ["none", "snappy"])
def test_each_line_of_the_journal_has_the_checksum_of_the_bytes_read(
    tmp_path, monkeypatch, few_rows, options, codec
):
    table(tmp_path / "i.parquet", compression=codec)
    data, group = (
        (tmp_path / "i.parquet").read_bytes(),
        pq.ParquetFile(tmp_path / "i.parquet").metadata.row_group,
    )
    source, options = f"{tmp_path}/i.parquet", {"shard_rows": 200, **options}
    interrupt_after(monkeypatch, 6, source, f"{tmp_path}/out", **options)
    head, *recorded = lines(tmp_path / "out")
    assert head["source"] != xxhash.xxh3_128_hexdigest(data)
    rows = 0
    for entry in recorded:
        size, summed = entry["source"]
        assert summed == xxhash.xxh3_128_hexdigest(data[:size])
        rows = entry.get("next", rows)
        last = group((rows - 1) // GROUP if rows else 0).column(0)
        assert size > last.data_page_offset
    assert recorded[1]["source"][0] < len(data) / 2
    complete = commands.pack(source, f"{tmp_path}/whole", **options)
    second = commands.pack(source, f"{tmp_path}/out", resume=True, **options)
    assert (second.rows, second.resumed_rows) == (complete.rows, 1200)
    assert files(tmp_path / "out") == files(tmp_path / "whole")
    messages = yaml.safe_load((tmp_path / "out/playlist.yaml").read_text())
    assert xxhash.xxh3_128_hexdigest(data) in json.dumps(messages)


def test_a_change_after_the_read_bytes_is_packed(tmp_path, monkeypatch, few_rows):
    table(tmp_path / "i.parquet")
    interrupt_after(monkeypatch, 3, f"{tmp_path}/i.parquet", f"{tmp_path}/out", shard_rows=200)
    table(tmp_path / "i.parquet", [3900])
    commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/out", shard_rows=200, resume=True)
    commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/whole", shard_rows=200)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


@pytest.mark.parametrize("row", [0, 599, 650])
def test_a_change_in_the_read_bytes_is_refused(tmp_path, monkeypatch, few_rows, row):
    table(tmp_path / "i.parquet")
    interrupt_after(monkeypatch, 3, f"{tmp_path}/i.parquet", f"{tmp_path}/out", shard_rows=200)
    before = files(tmp_path / "out"), lines(tmp_path / "out")
    table(tmp_path / "i.parquet", [row])
    with pytest.raises(UsageError) as caught:
        commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/out", shard_rows=200, resume=True)
    assert (str(caught.value), caught.value.hint) == (
        f"{tmp_path}/out: {CHANGED}",
        "Use --overwrite to start again.",
    )
    assert (files(tmp_path / "out"), lines(tmp_path / "out")) == before
    table(tmp_path / "i.parquet")
    assert (
        commands.pack(
            f"{tmp_path}/i.parquet", f"{tmp_path}/out", shard_rows=200, resume=True
        ).resumed_rows
        == 600
    )


def test_inferred_columns_are_compared_with_the_first_rows(tmp_path, monkeypatch):
    """The pack is killed before the first shard: only the columns are recorded."""
    pq.write_table(
        pa.table({"a": [b"\x89PNG\r\n\x1a\n" + bytes(20)] * 50}),
        tmp_path / "i.parquet",
        use_dictionary=False,
        write_statistics=False,
    )

    def interrupting(self, *args):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(Journal, "record_shard", interrupting)
        patch.setattr(
            "flarecli.write.folder_target.FolderTarget.abandon", lambda self, keep: self.release()
        )
        with pytest.raises(KeyboardInterrupt):
            commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/out")
    assert [sorted(entry) for entry in lines(tmp_path / "out")[1:]] == [["columns", "source"]]
    pq.write_table(
        pa.table({"a": [b"plain text, of 28 characters"] * 50}),
        tmp_path / "i.parquet",
        use_dictionary=False,
        write_statistics=False,
    )
    with pytest.raises(UsageError, match=CHANGED):
        commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/out", resume=True)


@pytest.mark.parametrize("how", ["longer", "shorter", "other columns", "another first file"])
def test_another_source_is_refused_by_its_size_and_footer(tmp_path, monkeypatch, few_rows, how):
    table(tmp_path / "i.parquet")
    table(tmp_path / "j.parquet", compression="snappy")
    sources = [f"{tmp_path}/i.parquet", f"{tmp_path}/j.parquet"]
    interrupt_after(monkeypatch, 3, sources, f"{tmp_path}/out", shard_rows=200)
    complete = pq.read_table(tmp_path / "i.parquet")
    if how == "another first file":
        sources.reverse()
    else:
        other = {
            "longer": pa.concat_tables([complete, complete]),
            "shorter": complete[:3000],
            "other columns": complete.rename_columns(["text", "more", "number"]),
        }
        options = {
            "use_dictionary": False,
            "write_statistics": False,
            "compression": "none",
            "row_group_size": GROUP,
        }
        pq.write_table(other[how], tmp_path / "i.parquet", **options)
    with pytest.raises(UsageError, match=CHANGED):
        commands.pack(sources, f"{tmp_path}/out", shard_rows=200, resume=True)


@pytest.mark.parametrize("shards", [1, 5])
def test_a_journal_with_the_checksum_of_the_whole_source_is_resumed(
    tmp_path, monkeypatch, few_rows, shards
):
    """The journal of an earlier version, which computed the checksum of the whole source first."""
    table(tmp_path / "i.parquet")
    source, out = f"{tmp_path}/i.parquet", tmp_path / "out"
    interrupt_after(monkeypatch, shards, source, str(out), shard_rows=200)
    head, *recorded = lines(out)
    old = [{**head, "source": xxhash.xxh3_128_hexdigest((tmp_path / "i.parquet").read_bytes())}]
    old += [{key: value for key, value in entry.items() if key != "source"} for entry in recorded]
    (out / ".flare").mkdir(exist_ok=True)
    (out / ".flare/journal").write_text("".join(f"{json.dumps(entry)}\n" for entry in old))
    table(tmp_path / "i.parquet", [3999])
    with pytest.raises(UsageError, match=CHANGED):
        commands.pack(source, str(out), shard_rows=200, resume=True)
    table(tmp_path / "i.parquet")
    interrupt_after(monkeypatch, shards + 2, source, str(out), shard_rows=200, resume=True)
    assert all("source" not in entry for entry in lines(out)[1:])
    assert (
        commands.pack(source, str(out), shard_rows=200, resume=True).resumed_rows
        == (shards + 2) * 200
    )
    commands.pack(source, f"{tmp_path}/whole", shard_rows=200)
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.parametrize("spoilt", [None, [], [10], ["a", "b"], [1 << 60, "0"]])
def test_a_journal_without_checksums_of_the_source_is_refused(
    tmp_path, monkeypatch, few_rows, spoilt
):
    table(tmp_path / "i.parquet")
    interrupt_after(monkeypatch, 2, f"{tmp_path}/i.parquet", f"{tmp_path}/out", shard_rows=200)
    *entries, last = lines(tmp_path / "out")
    (tmp_path / "out/.flare/journal").write_text(
        "".join(f"{json.dumps(entry)}\n" for entry in (*entries, {**last, "source": spoilt}))
    )
    with pytest.raises(UsageError, match=CHANGED):
        commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/out", shard_rows=200, resume=True)


@pytest.mark.parametrize("options", [{"where": "number % 2 = 0"}, {"shuffle": 3}], ids=str)
def test_with_where_or_shuffle_the_checksum_is_computed_first(tmp_path, monkeypatch, options):
    table(tmp_path / "i.parquet")
    data = (tmp_path / "i.parquet").read_bytes()
    options = {"shard_rows": 200, **options}
    interrupt_after(monkeypatch, 2, f"{tmp_path}/i.parquet", f"{tmp_path}/out", **options)
    assert lines(tmp_path / "out")[0]["source"] == xxhash.xxh3_128_hexdigest(data)
    commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/out", resume=True, **options)
    commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/whole", **options)
    assert files(tmp_path / "out") == files(tmp_path / "whole")


def test_a_file_truncated_during_the_pack_is_an_error(tmp_path, monkeypatch, few_rows):
    table(tmp_path / "i.parquet")
    size = (tmp_path / "i.parquet").stat().st_size
    note = Journal.record_shard

    def cuts(self, *args):
        note(self, *args)
        with open(tmp_path / "i.parquet", "r+b") as file:
            file.truncate(size // 2)

    monkeypatch.setattr(Journal, "record_shard", cuts)
    with pytest.raises(Exception) as caught:
        commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/out", shard_rows=200)
    assert (
        str(caught.value)
        == f"{tmp_path}/i.parquet: file is {size // 2} bytes; it was {size} bytes when it was opened"
    )


class InterruptingProgress(Progress):
    """Interrupts a pack at one of its failed rows."""

    def __init__(self, failures):
        self.failures = failures

    def failed(self, key, reason, rows=1):
        self.failures -= rows
        if self.failures == 0:
            raise KeyboardInterrupt


@pytest.mark.parametrize("options", [{}, {"compress": "zstd", "jobs": 4}], ids=str)
@pytest.mark.parametrize("failures", [900, 1700, 2900])
def test_failed_rows_that_are_listed_before_an_interrupt_are_listed_once(
    tmp_path, monkeypatch, few_rows, failures, options
):
    numbers = [row if row % 4 == 0 else None for row in range(ROWS)]
    pq.write_table(pa.table({"number": numbers}), tmp_path / "i.parquet", row_group_size=GROUP)
    options = {"shard_rows": 200, "on_error": "skip", **options}
    whole = commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/whole", **options)
    assert (whole.rows, whole.failed) == (1000, 3000)
    monkeypatch.setattr("flarecli.write.failures._MAX_PENDING", 10)
    out = tmp_path / "out"
    progress = InterruptingProgress(failures)
    with pytest.raises(KeyboardInterrupt):
        commands.pack(f"{tmp_path}/i.parquet", str(out), progress=progress, **options)
    *_, recorded = lines(out)
    assert (out / "failed.jsonl").stat().st_size > recorded.get("failed", {}).get("bytes", 0)
    commands.pack(f"{tmp_path}/i.parquet", str(out), resume=True, **options)
    assert files(out) == files(tmp_path / "whole")


@pytest.mark.parametrize("present", [(), (7,), (7, 50, 51, 119)])
def test_missing_files_before_an_interrupt_are_listed_once(tmp_path, monkeypatch, present):
    """More rows fail than the spool keeps in memory."""
    for row in present:
        (tmp_path / f"{row}.bin").write_bytes(b"data")
    names = [f"{row}.bin" for row in range(120)]
    pq.write_table(pa.table({"file": names}), tmp_path / "i.parquet", row_group_size=10)
    options = {"fetch": ["file:data"], "on_error": "skip", "allow_local": True}
    monkeypatch.setattr("flarecli.formats.tables.parquet._ROWS", 10)
    monkeypatch.setattr("flarecli.write.spool._MAX_FAILURES", 10)
    out = tmp_path / "out"
    with pytest.raises(KeyboardInterrupt):
        progress = InterruptingProgress(100 - len(present))
        commands.pack(f"{tmp_path}/i.parquet", str(out), progress=progress, **options)
    saved = [
        json.loads(file.read_bytes().partition(b"\n")[0]) for file in out.glob(".flare/fetched*")
    ]
    rows = sorted(failure["row"] for one in saved for failure in one["failures"])
    assert len(rows) > 60
    assert rows == [row for row in range(rows[-1] + 1) if row not in present]
    if not present:
        present = (120,)
        (tmp_path / "120.bin").write_bytes(b"data")
    commands.pack(f"{tmp_path}/i.parquet", str(out), resume=True, **options)
    commands.pack(f"{tmp_path}/i.parquet", f"{tmp_path}/whole", **options)
    assert files(out) == files(tmp_path / "whole")
