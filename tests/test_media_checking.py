"""Headers held against their files: media by FFmpeg, libsndfile, Pillow and the wave module, whole, cut short and damaged."""

import io
import struct
import wave
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flarecli.errors import ValueFitError
from flarecli.media import Measures, headers, measure

MEDIA = Path(__file__).parents[1] / "fixtures" / "media"


def saved(kind, **options) -> bytes:
    out = io.BytesIO()
    Image.effect_noise((31, 17), 90).convert("RGB").save(out, kind, **options)
    return out.getvalue()


def sound(rate=8000) -> bytes:
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((2, 2, rate, 0, "NONE", ""))
        file.writeframes(bytes(rate * 4 // 2))
    return out.getvalue()


PICTURES = {kind: saved(kind) for kind in ("jpeg", "png", "webp", "gif", "bmp", "tiff", "avif")}
FILES = {path.name: path.read_bytes() for path in sorted(MEDIA.glob("*.*")) if path.suffix != ".md"}
WHOLE = {**PICTURES, **FILES, "wav": sound()}


@pytest.mark.parametrize("kind", PICTURES)
def test_pictures_say_their_size(kind):
    assert headers(PICTURES[kind]) == Measures(kind, 31, 17, 1)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("whole.mp4", Measures("mp4", 48, 32, 6, 0.6)),
        ("whole.mov", Measures("mov", 48, 32, 6, 0.6)),
        ("fragments.mp4", Measures("mp4", 48, 32)),
        ("whole.mkv", Measures("mkv", 48, 32, None, 0.6)),
        ("whole.webm", Measures("webm", 48, 32, None, 0.6)),
        ("whole.flac", Measures("flac", duration=0.5)),
        ("vorbis.ogg", Measures("ogg", duration=0.5)),
        ("opus.ogg", Measures("ogg", duration=0.5)),
        ("wav", Measures("wav", duration=0.5)),
        ("xing.mp3", Measures("mp3", duration=pytest.approx(9 * 576 / 8000))),
        ("plain.mp3", Measures("mp3", duration=pytest.approx(16 * 576 / 16_000))),
        ("whole.m4a", Measures("m4a", duration=pytest.approx(0.564, abs=0.001))),
    ],
)
def test_films_and_sounds_say_their_size_and_how_long_they_are(name, wanted):
    assert headers(WHOLE[name]) == wanted


# an Ogg file that ends with a page looks whole
@pytest.mark.parametrize(
    ("name", "unseen"),
    [
        *(
            (name, 0)
            for name in (
                "whole.mp4",
                "whole.mov",
                "whole.mkv",
                "whole.webm",
                "whole.m4a",
                "wav",
                "png",
                "xing.mp3",
            )
        ),
        ("vorbis.ogg", 2),
    ],
)
def test_a_file_that_is_cut_short_is_told_by_its_header(name, unseen):
    data = WHOLE[name]
    passed = 0
    for stop in range(1, len(data), max(1, len(data) // 700)):
        try:
            headers(data[:stop])
        except ValueFitError:
            continue
        passed += 1
    assert passed <= unseen


def changed(name: str, place: int, new: bytes) -> bytes:
    data = WHOLE[name]
    return data[:place] + new + data[place + len(new) :]


def broken() -> list[tuple[bytes, str]]:
    mp4, png, flac = WHOLE["whole.mp4"], WHOLE["png"], WHOLE["whole.flac"]
    moov, mdat = mp4.index(b"moov"), mp4.index(b"mdat")
    return [
        (b"plain text", "is no picture, video or sound"),
        (b"%PDF-1.4", "is no picture, video or sound, but pdf"),
        (mp4[: moov - 4], "is a damaged mp4: it has no box 'moov'"),
        (mp4[:300], "is a damaged mp4: box 'moov' at byte 256 takes 841 bytes of 44"),
        (
            changed("whole.mp4", mdat - 4, b"\0\0\0\3"),
            f"is a damaged mp4: box 'mdat' at byte {mdat - 4} takes 3 bytes, less than its head",
        ),
        (changed("whole.mp4", moov + 8, b"\x1b[2J"), "is a damaged mp4: box 'moov' has no 'mvhd'"),
        (
            changed("wav", 22, bytes(8)),
            "is a damaged wav: it has 0 channels, 0 samples a second, 4 bytes a sample",
        ),
        (changed("wav", 36, b"\x1b[2J"), "is a damaged wav: it has no chunk 'data'"),
        (
            WHOLE["wav"][:1044],
            "is a damaged wav: chunk 'data' at byte 36 takes 16008 bytes of 1008",
        ),
        (changed("png", 16, b"\0\0\x01\0"), "is a damaged png: chunk 'IHDR' fails its CRC-32"),
        (png[:30], "is a damaged png: chunk 'IHDR' at byte 8 takes 25 bytes of 22"),
        (
            changed("png", 33, b"\xff\xff\xff\xff\x1b]0;"),
            f"is a damaged png: chunk '\\x1b]0;' at byte 33 takes 4294967307 bytes of {len(png) - 33}",
        ),
        (
            changed("whole.flac", 4, b"\1"),
            "is a damaged flac: its first block is of kind 1 and 34 bytes, not the 34 bytes of kind 0",
        ),
        (flac[:60], "is a damaged flac: block at byte 42 takes 44 bytes of 18"),
        (changed("vorbis.ogg", 58, b"oggs"), "is a damaged ogg: byte 58 begins no page"),
        (
            b"ID3\4\0\0\0\0\0\2no frame here",
            "is a damaged mp3: it holds no frame where the first should be",
        ),
        (WHOLE["xing.mp3"][:-1], "is a damaged mp3: it says 9 frames, and 8 are there"),
        (
            WHOLE["whole.webm"][:400],
            "is a damaged webm: element 18538067 at byte 36 takes 599 bytes of 364",
        ),
        (
            WHOLE["webp"][:40],
            f"is a damaged webp: chunk 'VP8 ' at byte 12 takes {len(WHOLE['webp']) - 12} bytes of 28",
        ),
        (b"RIFF\4\0\0\0WEBP", "is a damaged webp: it holds no picture"),
        (WHOLE["jpeg"][:40], "is a damaged jpeg: its header says no size"),
        (WHOLE["bmp"][:20], "is a damaged bmp: its header says no size"),
    ]


@pytest.mark.parametrize(("data", "said"), broken())
def test_what_is_wrong_is_said(data, said):
    with pytest.raises(ValueFitError) as caught:
        headers(data)
    assert str(caught.value) == said


def test_who_wrote_into_a_pipe_did_not_know_the_size():
    data = bytearray(WHOLE["wav"])
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    assert headers(bytes(data)).duration == 0.5
    segment = WHOLE["whole.webm"].index(bytes.fromhex("18538067"))
    live = (
        WHOLE["whole.webm"][: segment + 4]
        + b"\x01"
        + b"\xff" * 7
        + WHOLE["whole.webm"][segment + 12 :]
    )
    assert headers(live) == Measures("webm", 48, 32, None, 0.6)


def test_numbers_that_are_none_are_left_out():
    webm = WHOLE["whole.webm"]
    duration = webm.index(b"\x44\x89\x88") + 3
    assert (
        measure(webm[:duration] + struct.pack(">d", float("nan")) + webm[duration + 8 :]).duration
        is None
    )
    wide = webm.index(b"\xb0\x81\x30")
    assert measure(webm[:wide] + b"\xb0\x88" + b"\xff" * 8 + webm[wide + 3 :]).width is None


@given(
    st.sampled_from(sorted(WHOLE)),
    st.integers(0, 10_000),
    st.binary(min_size=1, max_size=9),
    st.integers(0, 10_000),
)
def test_damage_is_measured_or_refused_and_nothing_else(name, place, new, cut):
    data = WHOLE[name]
    place %= min(len(data), 900)
    for damaged in (
        data[: cut % len(data)],
        data[:place] + new + data[place + len(new) :],
        data[:place] + new + data[place:],
    ):
        try:
            found = headers(damaged)
        except ValueFitError as error:
            assert str(error).isprintable()
            continue
        assert found == measure(damaged)
        assert all(0 <= number < 1 << 64 for number in found[1:] if number is not None)


STARTS = [
    b"\x89PNG\r\n\x1a\n",
    b"RIFF\0\0\0\0WAVE",
    b"RIFF\0\0\0\0WEBP",
    b"fLaC",
    b"OggS",
    b"ID3",
    b"\xff\xfb",
    b"\0\0\0\x10ftypisom",
    b"\x1aE\xdf\xa3",
]


@given(st.sampled_from(STARTS), st.binary(max_size=300))
def test_bytes_by_chance_behind_a_magic_number_are_refused_or_measured(start, rest):
    try:
        assert headers(start + rest).kind
    except ValueFitError as error:
        assert str(error).isprintable()
