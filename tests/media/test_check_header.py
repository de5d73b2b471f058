"""check_header on files by FFmpeg, libsndfile, Pillow and wave: complete, truncated and damaged."""

import io
import struct
import wave
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flarecli.errors import ValueFitError
from flarecli.media import MediaInfo, check_header, probe

MEDIA = Path(__file__).parents[2] / "fixtures" / "media"


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
def test_images_have_a_size(kind):
    assert check_header(PICTURES[kind]) == MediaInfo(kind, 31, 17, 1)


@pytest.mark.parametrize(
    ("name", "wanted"),
    [
        ("whole.mp4", MediaInfo("mp4", 48, 32, 6, 0.6)),
        ("whole.mov", MediaInfo("mov", 48, 32, 6, 0.6)),
        ("fragments.mp4", MediaInfo("mp4", 48, 32)),
        ("whole.mkv", MediaInfo("mkv", 48, 32, None, 0.6)),
        ("whole.webm", MediaInfo("webm", 48, 32, None, 0.6)),
        ("whole.flac", MediaInfo("flac", duration=0.5)),
        ("vorbis.ogg", MediaInfo("ogg", duration=0.5)),
        ("opus.ogg", MediaInfo("ogg", duration=0.5)),
        ("wav", MediaInfo("wav", duration=0.5)),
        ("xing.mp3", MediaInfo("mp3", duration=pytest.approx(9 * 576 / 8000))),
        ("plain.mp3", MediaInfo("mp3", duration=pytest.approx(16 * 576 / 16_000))),
        ("whole.m4a", MediaInfo("m4a", duration=pytest.approx(0.564, abs=0.001))),
    ],
)
def test_video_and_audio_have_size_and_duration(name, wanted):
    assert check_header(WHOLE[name]) == wanted


# an Ogg file that ends after a page looks complete
@pytest.mark.parametrize(
    ("name", "missed"),
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
def test_truncated_files_are_reported(name, missed):
    data = WHOLE[name]
    passed = 0
    for stop in range(1, len(data), max(1, len(data) // 700)):
        try:
            check_header(data[:stop])
        except ValueFitError:
            continue
        passed += 1
    assert passed <= missed


def changed(name: str, place: int, new: bytes) -> bytes:
    data = WHOLE[name]
    return data[:place] + new + data[place + len(new) :]


def damaged_files() -> list[tuple[bytes, str]]:
    mp4, png, flac = WHOLE["whole.mp4"], WHOLE["png"], WHOLE["whole.flac"]
    moov, mdat = mp4.index(b"moov"), mp4.index(b"mdat")
    return [
        (b"plain text", "not an image, video or audio file"),
        (b"%PDF-1.4", "not an image, video or audio file (found pdf)"),
        (mp4[: moov - 4], "damaged mp4: no box 'moov'"),
        (mp4[:300], "damaged mp4: box 'moov' at byte 256 is 841 bytes long; only 44 are left"),
        (
            changed("whole.mp4", mdat - 4, b"\0\0\0\3"),
            f"damaged mp4: box 'mdat' at byte {mdat - 4} is 3 bytes; its header alone is 8",
        ),
        (changed("whole.mp4", moov + 8, b"\x1b[2J"), "damaged mp4: box 'moov' has no 'mvhd'"),
        (
            changed("wav", 22, bytes(8)),
            "damaged wav: 0 channels, 0 samples per second, 4 bytes per sample",
        ),
        (changed("wav", 36, b"\x1b[2J"), "damaged wav: no chunk 'data'"),
        (
            WHOLE["wav"][:1044],
            "damaged wav: chunk 'data' at byte 36 is 16008 bytes long; only 1008 are left",
        ),
        (changed("png", 16, b"\0\0\x01\0"), "damaged png: chunk 'IHDR' does not match its CRC-32"),
        (png[:30], "damaged png: chunk 'IHDR' at byte 8 is 25 bytes long; only 22 are left"),
        (
            changed("png", 33, b"\xff\xff\xff\xff\x1b]0;"),
            f"damaged png: chunk '\\x1b]0;' at byte 33 is 4294967307 bytes long; "
            f"only {len(png) - 33} are left",
        ),
        (
            changed("whole.flac", 4, b"\1"),
            "damaged flac: first block has type 1 and 34 bytes; expected type 0 and 34 bytes",
        ),
        (flac[:60], "damaged flac: metadata block at byte 42 is 44 bytes long; only 18 are left"),
        (changed("vorbis.ogg", 58, b"oggs"), "damaged ogg: no page at byte 58"),
        (
            b"ID3\4\0\0\0\0\0\2no frame here",
            "damaged mp3: no frame where the first one should start",
        ),
        (WHOLE["xing.mp3"][:-1], "damaged mp3: the header states 9 frames; 8 are present"),
        (
            WHOLE["whole.webm"][:400],
            "damaged webm: element 1254c367 at byte 331 is 93 bytes long; only 69 are left",
        ),
        (
            WHOLE["webp"][:40],
            f"damaged webp: chunk 'VP8 ' at byte 12 is {len(WHOLE['webp']) - 12} bytes long; "
            "only 28 are left",
        ),
        (b"RIFF\4\0\0\0WEBP", "damaged webp: no image data"),
        (WHOLE["jpeg"][:40], "damaged jpeg: no image size in the header"),
        (WHOLE["bmp"][:20], "damaged bmp: the file ends inside its header"),
    ]


@pytest.mark.parametrize(("data", "message"), damaged_files())
def test_damage_is_described(data, message):
    with pytest.raises(ValueFitError) as caught:
        check_header(data)
    assert str(caught.value) == message


def test_files_written_to_a_pipe_without_their_size_are_accepted():
    data = bytearray(WHOLE["wav"])
    data[4:8] = data[40:44] = b"\xff\xff\xff\xff"
    assert check_header(bytes(data)).duration == 0.5
    segment = WHOLE["whole.webm"].index(bytes.fromhex("18538067"))
    live = (
        WHOLE["whole.webm"][: segment + 4]
        + b"\x01"
        + b"\xff" * 7
        + WHOLE["whole.webm"][segment + 12 :]
    )
    assert check_header(live) == MediaInfo("webm", 48, 32, None, 0.6)


def test_impossible_numbers_are_left_out():
    webm = WHOLE["whole.webm"]
    duration = webm.index(b"\x44\x89\x88") + 3
    assert (
        probe(webm[:duration] + struct.pack(">d", float("nan")) + webm[duration + 8 :]).duration
        is None
    )
    wide = webm.index(b"\xb0\x81\x30")
    assert probe(webm[:wide] + b"\xb0\x88" + b"\xff" * 8 + webm[wide + 3 :]).width is None


@given(
    st.sampled_from(sorted(WHOLE)),
    st.integers(0, 10_000),
    st.binary(min_size=1, max_size=9),
    st.integers(0, 10_000),
)
def test_damaged_files_are_probed_or_rejected(name, place, new, cut):
    data = WHOLE[name]
    place %= min(len(data), 900)
    for damaged in (
        data[: cut % len(data)],
        data[:place] + new + data[place + len(new) :],
        data[:place] + new + data[place:],
    ):
        try:
            found = check_header(damaged)
        except ValueFitError as error:
            assert str(error).isprintable()
            continue
        assert found == probe(damaged)
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
def test_random_bytes_after_a_magic_number_are_probed_or_rejected(start, rest):
    try:
        assert check_header(start + rest).kind
    except ValueFitError as error:
        assert str(error).isprintable()
