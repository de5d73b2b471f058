"""Samples that a format cannot store, and interrupts: each is reported, and no other row is
lost.
"""

import pytest

import flarecli as flare
from flarecli.errors import FlareError, UsageError, ValueFitError
from flarecli.model import Settings
from flarecli.prefetch import OrderedQueue
from flarecli.write.journal import Journal

LOST = "an earlier shard could not be written, so later rows are refused"


def message_of(do):
    """Return the message of the error, if there is one."""
    try:
        do()
    except FlareError as error:
        return str(error)
    return None


def written(writer, samples):
    """Write all samples, close the Writer, and return the messages of refused samples."""
    messages = [message_of(lambda one=one: writer.write(one)) for one in samples]
    while (more := message_of(writer.close)) is not None:
        messages.append(more)
    return [one for one in messages if one is not None]


def test_a_sample_that_the_format_cannot_store_is_dropped_alone(tmp_path):
    bad = (10, 1500, 1501, 2999)
    texts = [f"a\nb{n}" if n in bad else f"row {n}" for n in range(3000)]
    messages = written(
        flare.Writer(str(tmp_path / "d"), format="csv", columns={"t": "str"}),
        [{"t": text} for text in texts],
    )
    assert messages == [
        f"row {bad[k] - k}: column 't': value contains the newline '\\n'" for k in range(4)
    ]  # rows of the dataset, without refused rows
    assert [one["t"] for one in flare.open(str(tmp_path / "d"))] == [
        text for n, text in enumerate(texts) if n not in bad
    ]
    assert not list(flare.verify([str(tmp_path / "d")]))


def test_a_repeated_key_drops_no_other_row(tmp_path):
    keys = [f"{n:04}" for n in range(2000)]
    keys[700], keys[1999] = keys[3], keys[1998]
    writer = flare.Writer(
        str(tmp_path / "d"),
        format="webdataset",
        columns={"__key__": "str", "t": "str"},
        settings=Settings(shard_rows=500),
    )
    messages = written(writer, [{"__key__": key, "t": f"{n}"} for n, key in enumerate(keys)])
    assert messages == ["row 1999: duplicate key '1998' in the same shard"]
    assert [one["t"] for one in flare.open(str(tmp_path / "d"))] == [f"{n}" for n in range(1999)]


def test_a_repeated_key_in_a_batch_drops_no_other_row(tmp_path):
    keys = [f"{n:04}" for n in range(100)]
    keys[70] = keys[3]
    writer = flare.Writer(
        str(tmp_path / "d"), format="webdataset", columns={"__key__": "str", "t": "str"}
    )
    assert len(written(writer, [{"__key__": key, "t": f"{n}"} for n, key in enumerate(keys)])) == 1
    assert [one["t"] for one in flare.open(str(tmp_path / "d"))] == [
        f"{n}" for n in range(100) if n != 70
    ]


def test_an_interrupt_between_two_fields_loses_no_row_silently(tmp_path, monkeypatch):
    def interrupted(self, *_):
        raise KeyboardInterrupt

    writer = flare.Writer(
        str(tmp_path / "d"), columns={"n": "int"}, settings=Settings(shard_rows=1000)
    )
    with monkeypatch.context() as patched:
        patched.setattr(OrderedQueue, "put", interrupted)
        with pytest.raises(KeyboardInterrupt):
            for n in range(2000):
                writer.write({"n": n})
    for do in (lambda: writer.write({"n": 1}), writer.close):
        with pytest.raises(UsageError) as caught:
            do()
        assert (caught.value.message, caught.value.hint) == (
            LOST,
            "Open another Writer with resume=True, and skip the rows that it already contains (`writer.rows`).",
        )
    writer.abandon()
    assert (
        flare.Writer(
            str(tmp_path / "d"),
            columns={"n": "int"},
            resume=True,
            settings=Settings(shard_rows=1000),
        ).rows
        == 0
    )


def test_a_writer_stops_after_a_shard_that_the_journal_could_not_record(tmp_path, monkeypatch):
    def full(*_):
        raise OSError(28, "No space left on device")

    writer = flare.Writer(
        str(tmp_path / "d"), columns={"n": "int"}, settings=Settings(shard_rows=2)
    )
    with monkeypatch.context() as patched:
        patched.setattr(Journal, "record_shard", full)
        with pytest.raises(OSError, match="No space left"):
            for n in range(2000):
                writer.write({"n": n})
    writer.abandon()
    assert not (tmp_path / "d").exists() or not list((tmp_path / "d").iterdir())


def test_invalid_utf8_is_reported_with_its_row(tmp_path):
    writer = flare.Writer(str(tmp_path / "d"), columns={"t": "str"})
    messages = written(writer, [{"t": "a"}, {"t": b"\xff"}, {"t": "c"}])
    assert len(messages) == 1 and messages[0].startswith("row 1: column 't'"), messages
    assert [one["t"] for one in flare.open(str(tmp_path / "d"))] == ["a", "c"]


def test_a_value_that_does_not_fit_is_refused_at_once(tmp_path):
    with flare.Writer(str(tmp_path / "d"), columns={"n": "uint8"}) as writer:
        writer.write({"n": 1})
        with pytest.raises(ValueFitError, match="^row 1: column 'n': "):
            writer.write({"n": 300})
        writer.write({"n": 2})
    assert [one["n"] for one in flare.open(str(tmp_path / "d"))] == [1, 2]
