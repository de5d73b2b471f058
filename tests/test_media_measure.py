"""What headers say, against what Pillow and the wave module wrote; boxes made by hand; damage and hostile sizes."""

import io
import random
import struct
import wave

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flarecli.media import Measures, contradiction, measure

NOISE = random.Random(1)


def saved(kind, size=(31, 17), mode="RGB", **options) -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 90).convert(mode).save(out, kind, **options)
    return out.getvalue()


def frames(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (31, 17), (40 * n, 9, 200 - n)) for n in range(count)]


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (saved("jpeg"), "jpeg"),
        (saved("jpeg", progressive=True), "jpeg"),
        (saved("jpeg", mode="L", exif=b"Exif\0\0" + bytes(3000)), "jpeg"),
        (saved("jpeg", mode="CMYK", icc_profile=b"\xff" * 70_000), "jpeg"),
        (saved("png"), "png"),
        (saved("png", mode="P"), "png"),
        (saved("webp"), "webp"),
        (saved("webp", lossless=True), "webp"),
        (saved("webp", mode="RGBA"), "webp"),
        (saved("webp", exif=b"Exif\0\0" + bytes(30)), "webp"),
        (saved("gif"), "gif"),
        (saved("bmp"), "bmp"),
        (saved("tiff"), "tiff"),
        (saved("tiff", compression="tiff_lzw"), "tiff"),
        (saved("avif"), "avif"),
    ],
)
def test_pictures_of_every_kind_are_measured(data, kind):
    assert measure(data) == Measures(kind, 31, 17, 1)


@pytest.mark.parametrize(("kind", "duration"), [("gif", 0.6), ("png", 0.6), ("webp", 0.6)])
def test_frames_of_an_animation_are_counted(kind, duration):
    out = io.BytesIO()
    first, *more = frames(3)
    first.save(out, kind, save_all=True, append_images=more, duration=200)
    found = measure(out.getvalue())
    assert (found.width, found.height, found.frames) == (31, 17, 3)
    assert found.duration == pytest.approx(duration)


def test_pages_of_a_tiff_are_counted():
    out = io.BytesIO()
    first, *more = frames(4)
    first.save(out, "tiff", save_all=True, append_images=more)
    assert measure(out.getvalue()) == Measures("tiff", 31, 17, 4)


def test_sound_has_a_duration():
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((2, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(8000 * 4 // 2))
    assert measure(out.getvalue()) == Measures("wav", duration=0.5)
    packed = (44_100 << 44 | 1 << 41 | 15 << 36 | 88_200).to_bytes(8)
    assert measure(b"fLaC\0\0\0\x22" + bytes(10) + packed + bytes(16)) == Measures(
        "flac", duration=2.0
    )


def box(name: bytes, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return struct.pack(">I4s", len(body) + 8, name) + body


def movie(version: int = 0) -> bytes:
    head = (
        struct.pack(">B3x16xIQ", 1, 600, 1500) if version else struct.pack(">B3x8xII", 0, 600, 1500)
    )
    sound = box(b"trak", box(b"tkhd", bytes(84)), box(b"mdia", box(b"hdlr", bytes(8), b"soun")))
    track = box(
        b"trak",
        box(b"tkhd", bytes(76), struct.pack(">II", 640 << 16, 360 << 16)),
        box(
            b"mdia",
            box(b"hdlr", bytes(8), b"vide", bytes(13)),
            box(b"minf", box(b"stbl", box(b"stsz", struct.pack(">III", 0, 0, 75)))),
        ),
    )
    return (
        box(b"ftyp", b"isom", bytes(4), b"mp41")
        + box(b"mdat", bytes(99))
        + box(b"moov", box(b"mvhd", head, bytes(80)), sound, track)
    )


@pytest.mark.parametrize("version", [0, 1])
def test_a_film_says_its_size_its_frames_and_how_long_it_is(version):
    assert measure(movie(version)) == Measures("mp4", 640, 360, 75, 2.5)


def element(name: str, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes.fromhex(name) + (len(body) | 1 << 56).to_bytes(8) + body


def test_matroska_says_its_size_and_how_long_it_is():
    info = element(
        "1549a966",
        element("2ad7b1", (1_000_000).to_bytes(3)),
        element("4489", struct.pack(">d", 2500)),
    )
    video = element("ae", element("e0", element("b0", b"\x02\x80"), element("ba", b"\x01\x68")))
    data = (
        element("1a45dfa3", element("4282", b"webm"))
        + bytes.fromhex("18538067")
        + b"\xff"
        + info
        + element("1654ae6b", video)
    )
    assert measure(data) == Measures("webm", 640, 360, None, 2.5)


WHOLE = [saved(kind) for kind in ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif")] + [
    movie(),
    saved("webp", lossless=True),
]


@given(st.sampled_from(WHOLE), st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 10_000))
def test_damaged_headers_are_measured_or_not_without_an_error(data, place, byte, cut):
    place, cut = place % min(len(data), 600), cut % len(data)
    for damaged in (data[:cut], data[:place] + bytes([byte]) + data[place + 1 :]):
        assert isinstance(measure(damaged), Measures)


def test_a_chain_of_pages_that_bites_its_tail_ends():
    data = bytearray(saved("tiff"))
    first = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[first : first + 2], "little")
    data[first + 2 + 12 * count : first + 6 + 12 * count] = data[4:8]
    assert measure(bytes(data)).frames == 1


@pytest.mark.parametrize(
    ("name", "data", "said"),
    [
        ("a.jpg", saved("png"), "png, not jpeg"),
        ("a.jpg", b"<html>no</html>", "html, not jpeg"),
        ("a.jpeg", saved("jpeg"), None),
        ("a.bin", saved("jpeg"), None),
        ("a.jpg", b"who knows", None),
        ("a.mov", movie(), None),
    ],
)
def test_content_that_contradicts_its_name_is_said(name, data, said):
    assert contradiction(name, data[:512]) == said
