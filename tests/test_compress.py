"""Compressed files in every format of MDS: the libraries of the originals read them, and no output
exceeds its declared size.
"""

import bz2
import gzip
import random
import tracemalloc

import pyarrow as pa
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st

from flarecli.compress import NAMES, SUFFIXES, compressed, decompress, suffix_of
from flarecli.errors import FormatError, IntegrityError, ReachError, UsageError

TEXT = b"".join(b"line %d of a text that repeats\n" % (i % 700) for i in range(3000))
READERS = {
    "br": lambda data, size: pa.Codec("brotli").decompress(data, size).to_pybytes(),
    "bz2": lambda data, size: bz2.decompress(data),
    "gz": lambda data, size: gzip.decompress(data),
    "snappy": lambda data, size: (
        pa.Codec("snappy").decompress(data, size).to_pybytes() if size else b""
    ),
    "zstd": lambda data, size: zstandard.ZstdDecompressor().decompress(
        data
    ),  # one frame with its size
}


def packed(name, data):
    return b"".join(compressed(name, [data], len(data)))


@given(st.lists(st.binary(max_size=1000), max_size=5), st.sampled_from(NAMES), st.integers(1, 50))
def test_compressed_data_is_restored(parts, name, step):
    data, kind = b"".join(parts), suffix_of(name)
    stored = b"".join(compressed(name, parts, len(data)))
    assert (
        bytes(
            decompress(
                kind, [stored[i : i + step] for i in range(0, len(stored), step)], len(data), "x"
            )
        )
        == data
    )
    assert READERS[kind](stored, len(data)) == data


@pytest.mark.parametrize("kind", SUFFIXES)
def test_blocks_may_be_as_short_as_a_byte(kind):
    assert decompress(kind, [bytes([byte]) for byte in packed(kind, TEXT)], len(TEXT), "x") == TEXT


def test_names_are_the_58_of_mds():
    assert len(NAMES) == len(set(NAMES)) == 58
    assert [suffix_of(name) for name in ("br", "br:0", "bz2:1", "gz:0", "snappy", "zstd:22")] == [
        "br",
        "br",
        "bz2",
        "gz",
        "snappy",
        "zstd",
    ]


@pytest.mark.parametrize("kind", SUFFIXES)
def test_the_same_bytes_give_the_same_file(kind):
    first = packed(kind, TEXT)
    assert (
        b"".join(compressed(kind, [TEXT[:1000], memoryview(TEXT)[1000:]], len(TEXT))) == first
        or kind == "zstd"
    )
    assert packed(kind, TEXT) == first


def test_a_gzip_member_has_the_header_of_python_without_a_time():
    for level, flags in ((9, 2), (1, 4), (5, 0)):
        data = packed(f"gz:{level}", TEXT)
        assert data[:10] == bytes([31, 139, 8, 0, 0, 0, 0, 0, flags, 255])
        assert gzip.compress(TEXT, level, mtime=1)[10:] == data[10:]


@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_file_truncated_anywhere_is_an_error(kind):
    for data in (b"", b"abc", TEXT[:4000]):
        stored = packed(kind, data)
        for cut in {
            *range(min(30, len(stored))),
            len(stored) // 2,
            *range(max(0, len(stored) - 12), len(stored)),
        }:
            for size in (None, len(data)):
                with pytest.raises(FormatError):
                    decompress(kind, [stored[:cut]], size, "a")
    with pytest.raises(FormatError) as caught:
        decompress(kind, [], None, "a")
    assert (str(caught.value), caught.value.hint) == (
        f"a: the {kind} file is truncated",
        "The file was cut short; download or pack it again.",
    )


@pytest.mark.parametrize("kind", ["bz2", "gz", "zstd"])
def test_consecutive_streams_are_one_file(kind):
    both = packed(kind, TEXT) + packed(kind, b"") + packed(kind, b"two")
    for step in (1, 7, len(both)):
        assert (
            decompress(
                kind, [both[i : i + step] for i in range(0, len(both), step)], len(TEXT) + 3, "x"
            )
            == TEXT + b"two"
        )
    with pytest.raises(FormatError):
        decompress(kind, [both[:-1]], None, "x")


@pytest.mark.parametrize("kind", ["br", "gz", "snappy", "zstd"])
def test_bytes_after_the_end_are_an_error(kind):
    with pytest.raises(FormatError):
        decompress(kind, [packed(kind, TEXT) + b"junk"], len(TEXT), "a")


def test_padding_that_the_original_accepts_is_accepted():
    assert decompress("bz2", [packed("bz2", TEXT) + b"junk"], len(TEXT), "a") == TEXT
    assert decompress("gz", [packed("gz", TEXT) + bytes(99)], len(TEXT), "a") == TEXT
    with pytest.raises(FormatError, match="^a: not valid bz2: invalid data stream$"):
        decompress("bz2", [packed("bz2", TEXT) + b"BZh9 broken, not junk"], len(TEXT), "a")


@pytest.mark.parametrize("kind", SUFFIXES)
def test_a_bomb_in_any_format_stops_at_the_declared_size_in_bounded_memory(kind):
    size = 1 << 27
    stored = packed("br:4" if kind == "br" else kind, bytes(size))
    before = pa.total_allocated_bytes()
    tracemalloc.start()
    try:
        with pytest.raises(IntegrityError) as caught:
            decompress(kind, [stored], 187, "a")
        _, peak = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert str(caught.value) == "a: decompresses to more than 187 bytes"
    assert caught.value.hint == "The file may be a decompression bomb; do not trust it."
    assert pa.total_allocated_bytes() - before < 8 << 20
    assert peak < 80 << 20  # 2 KiB of zstd may decompress to 64 MiB


def test_snappy_with_an_invalid_declared_size_is_refused_before_allocation():
    for head, message in (
        (
            b"\xff\xff\xff\xff\x0f",
            "not valid snappy: 9 bytes of input cannot decompress to 4294967295 bytes",
        ),
        (b"\xff\xff\xff\xff\x1f", "not valid snappy: declared size is more than 4 GiB"),
        (b"\xff\xff\xff\xff\xff\xff", "not valid snappy: declared size is more than 4 GiB"),
        (b"\x00", "not valid snappy: bytes follow the end of the block"),
        (b"\x05", "not valid snappy: corrupt snappy compressed data"),
    ):
        with pytest.raises(FormatError, match=f"^a: {message}(?m:$)"):
            decompress("snappy", [head + b"abcd"], None, "a")


def test_nested_gzip_is_decompressed_once():
    inner = packed("gz", TEXT)
    assert decompress("gz", [packed("gz", inner)], len(inner), "a") == inner


@pytest.mark.parametrize("kind", SUFFIXES)
def test_damage_is_an_error_or_harmless(kind):
    stored, chance = packed(kind, TEXT[:3000]), random.Random(1)
    for _ in range(200):
        data = bytearray(stored)
        for _ in range(chance.randrange(1, 4)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        try:
            out = decompress(kind, [bytes(data)], chance.choice((None, 3000)), "a")
        except FormatError as error:
            assert str(error).startswith("a: ")
        else:
            assert len(out) < 1 << 20


def test_errors_of_the_source_are_raised_unchanged():
    for kind in SUFFIXES:
        with pytest.raises(ReachError, match="^there: the line went dead$"):
            decompress(kind, _dead(packed(kind, TEXT)), None, "a")


def _dead(data):
    yield data[: len(data) // 2]
    raise ReachError("the line went dead", where="there")


def test_consecutive_zstd_frames_are_read_to_the_end():
    frames = zstandard.compress(b"one") + zstandard.compress(b"two")
    assert bytes(decompress("zstd", [frames[:5], frames[5:]], 6, "x")) == b"onetwo"


def test_a_bomb_stops_at_the_declared_size():
    with pytest.raises(IntegrityError) as caught:
        decompress("zstd", [zstandard.compress(bytes(1 << 28))], 187, "a.zstd")
    assert str(caught.value) == "a.zstd: decompresses to more than 187 bytes"


def test_a_bomb_without_a_declared_size_stops_by_ratio():
    with pytest.raises(
        IntegrityError, match="^a.zstd: decompresses to more than 256000000 bytes(?m:$)"
    ):
        decompress("zstd", [zstandard.compress(bytes(1 << 28))], None, "a.zstd")


def test_a_window_above_the_default_limit_of_zstd_is_refused():
    params = zstandard.ZstdCompressionParameters.from_level(
        3, window_log=28, write_content_size=False
    )
    stored = zstandard.ZstdCompressor(compression_params=params).compressobj()
    data = stored.compress(b"x" * 1000) + stored.flush()
    with pytest.raises(
        FormatError, match="^a: not valid zstd: frame requires too much memory for decoding$"
    ):
        decompress("zstd", [data], 1000, "a")


def test_a_frame_with_a_dictionary_or_a_wrong_size_is_refused():
    words = zstandard.ZstdCompressionDict(b"a word and another word " * 200)
    with pytest.raises(FormatError, match="^a: not valid zstd: "):
        decompress(
            "zstd",
            [zstandard.ZstdCompressor(dict_data=words).compress(b"a word and another word " * 50)],
            None,
            "a",
        )
    data = bytearray(zstandard.compress(bytes(range(200))))
    assert data[4:6] == b"\x20\xc8"  # one segment, its size in one byte: 200
    for said in (199, 201):
        data[5] = said
        with pytest.raises(FormatError, match="^a: "):
            decompress("zstd", [bytes(data)], None, "a")


@pytest.mark.parametrize("cut", [1, 5, 20, -1])
def test_a_truncated_zstd_file_is_an_error(cut):
    stored = zstandard.compress(bytes(range(256)) * 100)
    with pytest.raises(FormatError):
        decompress("zstd", [stored[:cut]], 25600, "a")


def test_bytes_after_the_last_frame_are_an_error():
    with pytest.raises(FormatError, match="^a: not valid zstd: unknown frame descriptor$"):
        decompress("zstd", [zstandard.compress(b"abc") + b"junk"], 3, "a")


@pytest.mark.parametrize(
    "name",
    [
        "zstd:0",
        "zstd:23",
        "zstd:03",
        "ZSTD",
        "gzip",
        "zst",
        "zstd:",
        "",
        "snappy:1",
        "bz2:0",
        "br:12",
        "gz:10",
        "gz:-1",
        "br:00",
        " br",
    ],
)
def test_names_of_compressions_must_be_exact(name):
    with pytest.raises(UsageError):
        suffix_of(name)


def test_a_listed_size_above_the_maximum_is_refused_before_reading():
    with pytest.raises(FormatError) as caught:
        decompress("zstd", (pytest.fail("it was read") for _ in "a"), 1 << 50, "x.mds.zstd")
    assert (
        str(caught.value)
        == "x.mds.zstd: listed decompressed size is 1125899906842624 bytes; the maximum is 4294967296"
    )
