"""Headers of files by Pillow and the wave module, of boxes made by hand, and of damaged files."""

import io
import struct
import wave

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flarecli.media import MediaInfo, probe


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
def test_images_of_every_kind_have_a_size(data, kind):
    assert probe(data) == MediaInfo(kind, 31, 17, 1)


@pytest.mark.parametrize(("kind", "duration"), [("gif", 0.6), ("png", 0.6), ("webp", 0.6)])
def test_animations_have_frames_and_a_duration(kind, duration):
    out = io.BytesIO()
    first, *more = frames(3)
    first.save(out, kind, save_all=True, append_images=more, duration=200)
    found = probe(out.getvalue())
    assert (found.width, found.height, found.frames) == (31, 17, 3)
    assert found.duration == pytest.approx(duration)


def test_tiff_pages_are_counted():
    out = io.BytesIO()
    first, *more = frames(4)
    first.save(out, "tiff", save_all=True, append_images=more)
    assert probe(out.getvalue()) == MediaInfo("tiff", 31, 17, 4)


def test_audio_has_a_duration():
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((2, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(8000 * 4 // 2))
    assert probe(out.getvalue()) == MediaInfo("wav", duration=0.5)
    packed = (44_100 << 44 | 1 << 41 | 15 << 36 | 88_200).to_bytes(8)
    assert probe(b"fLaC\0\0\0\x22" + bytes(10) + packed + bytes(16)) == MediaInfo(
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
def test_mp4_has_size_frames_and_duration(version):
    assert probe(movie(version)) == MediaInfo("mp4", 640, 360, 75, 2.5)


def element(name: str, *parts: bytes) -> bytes:
    body = b"".join(parts)
    return bytes.fromhex(name) + (len(body) | 1 << 56).to_bytes(8) + body


def test_matroska_has_size_and_duration():
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
    assert probe(data) == MediaInfo("webm", 640, 360, None, 2.5)


WHOLE = [saved(kind) for kind in ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif")] + [
    movie(),
    saved("webp", lossless=True),
]


@given(st.sampled_from(WHOLE), st.integers(0, 10_000), st.integers(0, 255), st.integers(0, 10_000))
def test_probe_of_damaged_files_never_raises(data, place, byte, cut):
    place, cut = place % min(len(data), 600), cut % len(data)
    for damaged in (data[:cut], data[:place] + bytes([byte]) + data[place + 1 :]):
        assert isinstance(probe(damaged), MediaInfo)


def test_a_cycle_of_tiff_directories_ends():
    data = bytearray(saved("tiff"))
    first = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[first : first + 2], "little")
    data[first + 2 + 12 * count : first + 6 + 12 * count] = data[4:8]
    assert probe(bytes(data)).frames == 1
