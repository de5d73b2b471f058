"""A local file is read once, front to back, and hashed, for any requested parts."""

import errno
import hashlib
import os

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import FormatError, ReachError
from flarecli.hashes import Sums
from flarecli.storage import locate
from flarecli.storage import single_pass as passing
from tests.properties import examples

DATA = bytes(i * i % 251 for i in range(700_001))


SHA1 = hashlib.sha1(DATA).hexdigest()


@pytest.fixture(scope="module")
def file(tmp_path_factory):
    path = tmp_path_factory.mktemp("passing") / "x.bin"
    path.write_bytes(DATA)
    return path


@given(
    st.lists(
        st.lists(
            st.tuples(st.integers(0, len(DATA)), st.integers(0, 400_000)), min_size=1, max_size=3
        ),
        max_size=8,
    ),
    st.sampled_from([1, 1000, 300_000]),
)
@settings(max_examples=examples(30), deadline=None)
def test_parts_are_correct_and_every_byte_is_hashed_once_in_any_order(file, asked, room):
    sums = Sums(["sha1"])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(passing, "_WINDOW_BYTES", room)
        with passing.single_pass(locate(str(file)), len(DATA), sums) as at:
            assert (at.size(), at.map()) == (len(DATA), None)
            for places in asked:
                ranges = [(start, min(start + size, len(DATA))) for start, size in places]
                assert [bytes(part) for part in at.read_many(ranges)] == [
                    DATA[start:stop] for start, stop in ranges
                ]
                start, stop = ranges[0]
                assert at.read(start, stop) == DATA[start:stop]
    assert (sums.size, sums.hex()) == (len(DATA), {"sha1": SHA1})


def test_other_files_of_the_folder_can_be_read(file):
    (file.parent / "x.meta").write_bytes(b"beside")
    with passing.single_pass(locate(str(file)), len(DATA), Sums([])) as at:
        assert ((at.folder / "x.meta").read(), at.name, str(at)) == (b"beside", "x.bin", str(file))


def test_a_part_past_the_end_is_refused_before_reading(file):
    with (
        pytest.raises(
            FormatError, match=f"x.bin: ends at byte {len(DATA)}; expected at least {1 << 60} bytes"
        ),
        passing.single_pass(locate(str(file)), len(DATA), Sums([])) as at,
    ):
        at.read(0, 1 << 60)


def test_a_file_truncated_meanwhile_is_reported_at_the_end(tmp_path):
    path = tmp_path / "y.bin"
    path.write_bytes(DATA[:1000])
    with (
        pytest.raises(FormatError) as caught,
        passing.single_pass(locate(str(path)), 1000, Sums([])) as at,
    ):
        assert at.read(0, 10) == DATA[:10]
        os.truncate(path, 300)
    assert str(caught.value) == f"{path}: ends at byte 300; expected at least 1000 bytes"


def test_bytes_after_an_unreadable_part_can_still_be_read(file, monkeypatch):
    real, bad = os.preadv, range(300_000, 304_096)

    def preadv(fd, buffers, offset):
        if offset < bad.stop and offset + len(buffers[0]) > bad.start:
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return real(fd, buffers, offset)

    monkeypatch.setattr(os, "preadv", preadv)
    with (
        pytest.raises(ReachError) as caught,
        passing.single_pass(locate(str(file)), len(DATA), Sums([])) as at,
    ):
        assert at.read(0, 1000) == DATA[:1000]
        with pytest.raises(ReachError):
            at.read(250_000, 400_000)
        assert at.read(500_000, 500_100) == DATA[500_000:500_100]
    assert str(caught.value) == f"{file}: input/output error while reading from byte 250000"
