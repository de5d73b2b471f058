"""The sum of files taken while they are read, against xxhash over their bytes, in whatever order they come."""

import pytest
import xxhash
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.ingest import Running, source, source_checksum
from flarecli.storage import locate


@pytest.fixture
def files(tmp_path):
    contents = [bytes(range(256)) * 5, b"", b"last" * 100]
    for number, data in enumerate(contents):
        (tmp_path / f"{number}.bin").write_bytes(data)
    return [locate(f"{tmp_path}/{number}.bin") for number in range(3)], contents


def total(data):
    return xxhash.xxh3_128_hexdigest(data)


def test_what_comes_in_order_is_summed_and_not_read_again(files, monkeypatch):
    places, contents = files
    whole, kept = b"".join(contents), Running(places, "")
    monkeypatch.setattr(type(places[0]), "read", None)
    kept.heard(0, 0, contents[0])
    assert kept.noted() == [len(contents[0]), total(contents[0])]
    kept.heard(2, 0, memoryview(contents[2]))
    assert kept.whole() == total(whole)


def test_a_small_gap_is_read_at_once(files):
    places, contents = files
    kept = Running(places, "")
    kept.heard(2, 5, contents[2][5:9])
    assert (kept._sums.size, kept._held) == (len(contents[0]) + 9, 0)
    assert kept.noted() == [len(contents[0]) + 9, total(contents[0] + contents[2][:9])]


@pytest.mark.parametrize("gap", [0, 1 << 14])
def test_what_comes_early_waits_and_what_never_comes_is_read(files, monkeypatch, gap):
    monkeypatch.setattr(source_checksum, "MAX_GAP_BYTES", gap)
    places, contents = files
    kept = Running(places, "")
    kept.heard(0, 300, contents[0][300:400])
    kept.heard(0, 100, contents[0][100:200])
    assert kept.noted() == [400, total(contents[0][:400])]
    kept.heard(0, 0, contents[0][:350])
    assert kept.noted() == [400, total(contents[0][:400])]


def test_only_some_megabytes_wait(files, monkeypatch):
    monkeypatch.setattr(source_checksum, "MAX_GAP_BYTES", 0)
    monkeypatch.setattr(source_checksum, "MAX_WAITING_BYTES", 100)
    places, contents = files
    kept = Running(places, "")
    kept.heard(0, 600, contents[0][600:690])
    assert kept._sums.size == 0
    kept.heard(0, 900, contents[0][900:920])
    assert (kept._sums.size, kept._held) == (690, 20)
    assert kept.noted() == [920, total(contents[0][:920])]


def test_a_file_that_grew_is_none_of_the_one_behind_it(files):
    places, contents = files
    kept = Running(places, "")
    kept.heard(0, 0, contents[0] + b"more")
    kept.heard(0, len(contents[0]) + 4, b"and more")
    assert kept.noted() == [len(contents[0]), total(contents[0])]


def test_only_a_beginning_that_is_the_same_agrees(files):
    places, contents = files
    whole = b"".join(contents)
    noted = [1300, total(whole[:1300])]
    assert Running(places, "").agrees(noted)
    assert Running(places, "").agrees([0, total(b"")])
    for wrong in (
        None,
        [],
        [1299, noted[1]],
        [len(whole) + 1, noted[1]],
        [-1, noted[1]],
        ["1300", noted[1]],
        [1300, None],
        [1300],
        {"a": 1},
    ):
        assert not Running(places, "").agrees(wrong)
    resumed = Running(places, "")
    assert resumed.agrees(noted)
    resumed.heard(0, 0, contents[0])
    resumed.heard(2, 0, contents[2])
    assert resumed.whole() == total(whole)


@settings(max_examples=60, deadline=None)
@given(
    gap=st.sampled_from([0, 40, 1 << 14]),
    reads=st.lists(
        st.tuples(st.integers(0, 2), st.integers(0, 1300), st.integers(0, 500)), max_size=12
    ),
    most=st.sampled_from([0, 64, 1 << 20]),
)
def test_any_reads_give_the_sum_of_a_beginning_that_holds_them_all(
    tmp_path_factory, gap, reads, most
):
    folder = tmp_path_factory.mktemp("files")
    contents = [bytes(range(256)) * 5, b"", b"last" * 100]
    for number, data in enumerate(contents):
        (folder / f"{number}.bin").write_bytes(data)
    kept, firsts, end = (
        Running([locate(f"{folder}/{number}.bin") for number in range(3)], ""),
        [0, 1280, 1280],
        0,
    )
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(source_checksum, "MAX_WAITING_BYTES", most)
        patch.setattr(source_checksum, "MAX_GAP_BYTES", gap)
        for number, start, size in reads:
            data = contents[number][start : start + size]
            kept.heard(number, start, data)
            end = max(end, firsts[number] + start + len(data)) if data else end
        size, summed = kept.noted()
        assert size >= end
        assert summed == total(b"".join(contents)[:size])
        assert kept.whole() == total(b"".join(contents))


def test_memory_that_somebody_holds_is_not_written_again(tmp_path):
    data = bytes(range(256)) * 20_000
    (tmp_path / "a.bin").write_bytes(data)
    heard, parts = [], {}
    with open(tmp_path / "a.bin", "rb") as file:
        one = source.ObservedFile(locate(f"{tmp_path}/a.bin"), file.fileno())
        one.on_read = lambda start, piece: heard.append((start, bytes(piece)))
        for start, size in (
            (0, 100),
            (50, 300_000),
            (7, 4 << 20),
            (5_000_000, 1 << 20),
            (6 << 20, 5),
            (9, -1),
        ):
            one.seek(start)
            parts[start] = one.read(size)
        assert all(bytes(part) == data[start : start + len(part)] for start, part in parts.items())
        assert [len(part) for part in parts.values()] == [
            100,
            300_000,
            4 << 20,
            120_000,
            0,
            len(data) - 9,
        ]
        assert all(piece == data[start : start + len(piece)] for start, piece in heard)
        assert sum(len(piece) for _, piece in heard) == sum(map(len, parts.values()))
        parts.clear()
        one.close()
        assert one._memory == b""
