"""Streaming zstd that stops at the declared size."""

import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from flarecli.compress import compressed, decompress, suffix_of
from flarecli.errors import FormatError, IntegrityError, UsageError


@given(st.lists(st.binary(max_size=1000), max_size=5), st.sampled_from(["zstd", "zstd:1", "zstd:9"]))
def test_what_is_compressed_comes_back(parts, name):
    data = b"".join(parts)
    stored = b"".join(compressed(name, parts, len(data)))
    assert bytes(decompress("zstd", [stored], len(data), "x")) == data
    assert zstandard.ZstdDecompressor().decompress(stored) == data  # one frame that says its size


def test_frames_behind_one_another_are_read_to_the_end():
    frames = zstandard.compress(b"one") + zstandard.compress(b"two")
    assert bytes(decompress("zstd", [frames[:5], frames[5:]], 6, "x")) == b"onetwo"


def test_a_bomb_stops_at_the_declared_size():
    with pytest.raises(IntegrityError) as caught:
        decompress("zstd", [zstandard.compress(bytes(1 << 28))], 187, "a.zstd")
    assert str(caught.value) == "a.zstd: decompresses to more than 187 bytes"


def test_a_bomb_without_a_declared_size_stops_by_ratio():
    with pytest.raises(IntegrityError, match="^a.zstd: decompresses to more than 67108864 bytes$"):
        decompress("zstd", [zstandard.compress(bytes(1 << 28))], None, "a.zstd")


def test_a_window_larger_than_zstd_itself_takes_is_refused():
    params = zstandard.ZstdCompressionParameters.from_level(3, window_log=28, write_content_size=False)
    stored = zstandard.ZstdCompressor(compression_params=params).compressobj()
    data = stored.compress(b"x" * 1000) + stored.flush()
    with pytest.raises(FormatError, match="^a: not valid zstd: frame requires too much memory for decoding$"):
        decompress("zstd", [data], 1000, "a")


@pytest.mark.parametrize("cut", [1, 5, 20, -1])
def test_a_cut_file_is_an_error(cut):
    stored = zstandard.compress(bytes(range(256)) * 100)
    with pytest.raises(FormatError):
        decompress("zstd", [stored[:cut]], 25600, "a")


def test_rest_behind_the_last_frame_is_an_error():
    with pytest.raises(FormatError, match="^a: not valid zstd: unknown frame descriptor$"):
        decompress("zstd", [zstandard.compress(b"abc") + b"junk"], 3, "a")


@pytest.mark.parametrize("name", ["zstd:0", "zstd:23", "zstd:03", "ZSTD", "gzip", "zst", "zstd:", ""])
def test_names_are_spelt_exactly(name):
    with pytest.raises(UsageError):
        suffix_of(name)


def test_a_listing_that_declares_more_than_any_shard_holds_is_refused_before_a_byte_is_read():
    with pytest.raises(FormatError) as caught:
        decompress("zstd", (pytest.fail("it was read") for _ in "a"), 1 << 50, "x.mds.zstd")
    assert str(caught.value) == "x.mds.zstd: 1125899906842624 bytes when decompressed are listed, 4294967296 is the most that is read"
