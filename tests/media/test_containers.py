"""Container walkers: parts that the tests assembled, and arbitrary bytes."""

import struct
import zlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.errors import ValueFitError
from flarecli.media import containers

NAMES = st.binary(min_size=4, max_size=4)
PAYLOADS = st.binary(max_size=30)
PARTS = st.lists(st.tuples(NAMES, PAYLOADS), max_size=6)


def sliced(data, parts):
    return [(name, data[begin:end]) for name, begin, end in parts]


@given(PARTS)
def test_png_chunks_are_yielded_up_to_iend(parts):
    parts = [(name, payload) for name, payload in parts if name != b"IEND"] + [(b"IEND", b"")]
    data = b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(payload)) + name + payload + struct.pack(">I", zlib.crc32(payload))
        for name, payload in parts
    )
    assert sliced(data, containers.png_chunks(data + b"trailing bytes")) == parts


@given(PARTS)
def test_riff_chunks_are_padded_to_even_sizes(parts):
    data = b"RIFF\0\0\0\0TEST" + b"".join(
        name + struct.pack("<I", len(payload)) + payload + b"\0" * (len(payload) % 2)
        for name, payload in parts
    )
    assert sliced(data, containers.riff_chunks(data)) == parts


def test_a_truncated_riff_chunk_is_yielded_before_the_error():
    data = b"RIFF\0\0\0\0WAVEdata" + struct.pack("<I", 100) + b"abc"
    parts = containers.riff_chunks(data)
    assert next(parts) == (b"data", 20, 23)
    with pytest.raises(ValueFitError) as caught:
        next(parts)
    assert str(caught.value) == "chunk 'data' at byte 12 is 108 bytes long; only 11 are left"


def box(name, payload, form):
    """Return a box with a 32-bit size, a 64-bit size, or one that reaches to the end."""
    if form == "long":
        return struct.pack(">I4sQ", 1, name, 16 + len(payload)) + payload
    return struct.pack(">I4s", 0 if form == "rest" else 8 + len(payload), name) + payload


@given(
    st.lists(st.tuples(NAMES, PAYLOADS, st.sampled_from(["short", "long"])), max_size=6),
    st.booleans(),
)
def test_boxes_of_all_three_size_forms_are_yielded(parts, is_open):
    if is_open and parts:
        parts[-1] = (b"last", parts[-1][1], "rest")
    data = b"".join(box(*part) for part in parts)
    assert sliced(data, containers.boxes(data, 0, len(data))) == [part[:2] for part in parts]


def test_boxes_are_found_by_path_at_every_match():
    leaves = [box(b"leaf", bytes([n]), "short") for n in range(3)]
    data = box(b"root", leaves[0] + leaves[1], "short") + box(b"root", leaves[2], "long")
    found = containers.find_boxes(data, (b"root", b"leaf"), 0, len(data))
    assert [data[begin:end] for begin, end in found] == [b"\0", b"\1", b"\2"]


IDS = st.sampled_from([0x80, 0xAE, 0x4489, 0x2AD7B1, 0x1654AE6B])


def vint(value, width):
    return (value | 1 << 7 * width).to_bytes(width)


@given(st.lists(st.tuples(IDS, PAYLOADS, st.integers(1, 8)), max_size=6), st.booleans())
def test_ebml_elements_of_all_size_widths_are_yielded(parts, is_open):
    data = b""
    for number, (name, payload, width) in enumerate(parts):
        unknown = is_open and number == len(parts) - 1
        size = vint((1 << 7 * width) - 1 if unknown else len(payload), width)
        data += name.to_bytes((name.bit_length() + 7) // 8) + size + payload
    expected = [part[:2] for part in parts]
    assert sliced(data, containers.ebml_elements(data, 0, len(data))) == expected


@given(st.lists(st.tuples(st.integers(0, 126), PAYLOADS), min_size=1, max_size=6))
def test_flac_blocks_are_yielded_up_to_the_last_one(parts):
    data = b"fLaC"
    for number, (kind, payload) in enumerate(parts):
        last = 0x80 if number == len(parts) - 1 else 0
        data += bytes([kind | last]) + len(payload).to_bytes(3) + payload
    assert sliced(data, containers.flac_blocks(data + b"\xff\xf8")) == parts


@given(
    st.lists(st.tuples(st.integers(0, 7), st.lists(st.integers(0, 255), max_size=4)), max_size=5)
)
def test_the_flags_of_ogg_pages_are_yielded(pages):
    data = b"".join(
        b"OggS\0" + bytes([flags]) + bytes(20) + bytes([len(sizes), *sizes]) + bytes(sum(sizes))
        for flags, sizes in pages
    )
    assert list(containers.ogg_pages(data)) == [flags for flags, _ in pages]


def test_mp3_frames_after_an_id3_tag_are_yielded_until_one_is_truncated():
    frame = b"\xff\xfb\x90\x64" + bytes(413)  # MPEG 1, 128 kbit/s, 44.1 kHz
    data = b"ID3\4\0\0\0\0\0\5" + bytes(5) + 3 * frame + frame[:-1]
    starts = [15, 15 + 417, 15 + 2 * 417]
    assert list(containers.mp3_frames(data)) == [(at, at + 417, 1152 / 44_100) for at in starts]


def test_jpeg_segments_skip_fill_bytes_and_markers_without_payload():
    data = b"\xff\xd8\xff\xe0\0\4ab\xff\xff\xff\xfe\0\2\xff\xd0\xff\xda\0\2 scan \xff\xd9"
    assert list(containers.jpeg_segments(data)) == [(0xE0, 6), (0xFE, 14), (0xDA, 20)]


def test_gif_blocks_skip_palettes_and_sub_blocks():
    head = b"GIF89a" + bytes(4) + b"\x80\0\0" + bytes(6)  # a palette of two colors
    control = b"\x21\xf9\4" + bytes(4) + b"\0"
    image = b"\x2c" + bytes(8) + b"\x81" + bytes(12) + b"\2" + b"\3abc\1d\0"
    data = head + control + image + b";rest"
    assert list(containers.gif_blocks(data)) == [(0xF9, 21), (0x2C, 28)]


@pytest.mark.parametrize(("order", "mark"), [("<", b"II*\0"), (">", b"MM\0*")])
def test_tiff_directories_in_both_byte_orders_are_yielded(order, mark):
    entries = struct.pack(f"{order}HHIHxx", 256, 3, 1, 640)
    entries += struct.pack(f"{order}HHII", 257, 4, 1, 480)
    first = struct.pack(f"{order}H", 2) + entries + struct.pack(f"{order}I", 38)
    data = mark + struct.pack(f"{order}I", 8) + first + struct.pack(f"{order}HI", 0, 8)
    assert list(containers.tiff_directories(data)) == [{256: 640, 257: 480}, {}]


WALKERS = {
    "png": (b"\x89PNG\r\n\x1a\n", containers.png_chunks),
    "riff": (b"RIFF\0\0\0\0WAVE", containers.riff_chunks),
    "boxes": (b"", lambda data: containers.boxes(data, 0, len(data))),
    "ebml": (b"", lambda data: containers.ebml_elements(data, 0, len(data))),
    "flac": (b"fLaC", containers.flac_blocks),
    "ogg": (b"OggS\0", containers.ogg_pages),
    "mp3": (b"\xff\xfb", containers.mp3_frames),
    "jpeg": (b"\xff\xd8\xff", containers.jpeg_segments),
    "gif": (b"GIF89a", containers.gif_blocks),
    "tiff": (b"II*\0", containers.tiff_directories),
}


@pytest.mark.parametrize("name", WALKERS)
@given(rest=st.binary(max_size=200))
def test_arbitrary_bytes_give_a_bounded_number_of_parts(name, rest):
    start, walker = WALKERS[name]
    data = start + rest
    seen = 0
    try:
        for _ in walker(data):
            seen += 1
    except containers.DAMAGE as error:
        assert str(error).isprintable()
    assert seen <= len(data)


@pytest.mark.parametrize(
    ("name", "data"),
    [
        ("riff", b"RIFF\0\0\0\0WAVE" + b"test\0\0\0\0" * 20),
        ("boxes", b"\0\0\0\x08test" * 20),
        ("ebml", b"\x80\x80" * 20),
        ("jpeg", b"\xff\xd8" + b"\xff\xe0\0\2" * 20),
        ("gif", b"GIF89a" + bytes(7) + b"\x21\xfe\0" * 20),
    ],
)
def test_no_more_than_the_maximum_number_of_parts_is_yielded(name, data, monkeypatch):
    monkeypatch.setattr(containers, "MAX_PARTS", 5)
    assert len(list(WALKERS[name][1](data))) == 5
