"""Headers of files by FFmpeg, libsndfile, Pillow and wave: complete, truncated, damaged and
hostile.
"""

import importlib.util
import io
import struct
import sys
import wave
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from flarecli import commands, read
from flarecli.commands.packing.media import MediaOptions
from flarecli.errors import MissingLibraryError, ValueFitError
from flarecli.media import MediaInfo, Resize, check_header, ffprobe, probe
from tests.properties import examples

MEDIA = Path(__file__).parents[2] / "fixtures" / "media"


def saved(kind, size=(31, 17), mode="RGB", **options) -> bytes:
    out = io.BytesIO()
    Image.effect_noise(size, 90).convert(mode).save(out, kind, **options)
    return out.getvalue()


def frames(count: int) -> list[Image.Image]:
    return [Image.new("RGB", (31, 17), (40 * n, 9, 200 - n)) for n in range(count)]


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
def test_intact_images_pass_the_check(kind):
    assert check_header(PICTURES[kind]) == MediaInfo(kind, 31, 17, 1)


@pytest.mark.parametrize(
    ("name", "expected"),
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
def test_video_and_audio_have_size_and_duration(name, expected):
    assert check_header(WHOLE[name]) == expected


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
            "damaged mp3: the first frame is missing",
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


def test_impossible_numbers_are_omitted():
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
        info = probe(damaged)
        numbers = (info.width, info.height, info.frames, info.duration)
        assert all(0 <= number < 1 << 64 for number in numbers if number is not None)
        try:
            assert check_header(damaged) == info
        except ValueFitError as error:
            assert str(error).isprintable()


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


# -- probe


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
    info = probe(out.getvalue())
    assert (info.width, info.height, info.frames) == (31, 17, 3)
    assert info.duration == pytest.approx(duration)


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


def test_a_cycle_of_tiff_directories_ends():
    data = bytearray(saved("tiff"))
    first = int.from_bytes(data[4:8], "little")
    count = int.from_bytes(data[first : first + 2], "little")
    data[first + 2 + 12 * count : first + 6 + 12 * count] = data[4:8]
    assert probe(bytes(data)).frames == 1


# -- ffprobe


WITHOUT_FRAMES = ("fragments.mp4", "whole.mkv", "whole.webm")  # in their headers


@pytest.fixture
def av():
    return pytest.importorskip("av")


@pytest.mark.parametrize("name", FILES)
def test_packets_are_counted_if_the_header_has_no_count(av, name):
    header, completed = probe(FILES[name]), ffprobe(FILES[name], True)
    if name in WITHOUT_FRAMES:
        assert completed == MediaInfo(header.kind, 48, 32, 6, pytest.approx(0.6))
    else:
        assert completed == header


@pytest.mark.parametrize(
    ("container", "codec", "kind"),
    [("ogg", "flac", "ogg"), ("webm", "libvpx", "webm"), ("matroska", "mpeg4", "mkv")],
)
def test_files_of_other_codecs_are_probed_too(av, container, codec, kind):
    out = io.BytesIO()
    is_sound = codec == "flac"
    with av.open(out, "w", format=container) as file:
        stream = file.add_stream(codec, 8000) if is_sound else file.add_stream(codec, 25)
        if is_sound:
            stream.layout = "mono"
        else:
            stream.width, stream.height, stream.pix_fmt = 64, 48, "yuv420p"
        for n in range(10):
            if is_sound:
                frame = av.AudioFrame(
                    format="s16", layout="mono", samples=stream.codec_context.frame_size or 800
                )
                frame.sample_rate, frame.pts, frame.time_base = (
                    8000,
                    n * frame.samples,
                    Fraction(1, 8000),
                )
                frame.planes[0].update(bytes(2 * frame.samples))
            else:
                frame = av.VideoFrame(64, 48, "yuv420p")
                frame.pts, frame.time_base = n, Fraction(1, 25)
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    info = ffprobe(out.getvalue(), True)
    if is_sound:
        assert (info.kind, info.frames, info.duration) == (
            kind,
            None,
            pytest.approx(10 * frame.samples / 8000, rel=0.01),
        )
    else:
        assert info == MediaInfo(kind, 64, 48, 10, pytest.approx(0.4, abs=0.05))


@settings(max_examples=examples(60), deadline=None)
@given(
    name=st.sampled_from(WITHOUT_FRAMES),
    place=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
    cut=st.floats(0.1, 1),
)
def test_ffprobe_of_damaged_files_never_raises(name, place, byte, cut):
    pytest.importorskip("av")
    data = bytearray(FILES[name])
    data[int(place * len(data))] = byte
    assert isinstance(ffprobe(bytes(data[: int(cut * len(data))]), True), MediaInfo)


def test_small_files_that_claim_billions_of_samples_are_not_opened(av, monkeypatch):
    data = FILES["fragments.mp4"]
    at = data.index(b"trun") + 8
    hostile = data[:at] + (1 << 31).to_bytes(4) + data[at + 4 :]
    monkeypatch.setattr(av, "open", None)
    assert ffprobe(hostile, True) == probe(hostile)
    compressed = data.replace(b"mvhd", b"cmov")
    assert ffprobe(compressed, True) == probe(compressed)


def packed(tmp_path, **options):
    table = pa.table({"name": list(FILES), "file": pa.array(list(FILES.values()), pa.binary())})
    pq.write_table(table, tmp_path / "i.parquet")
    commands.pack(str(tmp_path / "i.parquet"), str(tmp_path / "out"), media_info=True, **options)
    data = read.open(str(tmp_path / "out"))
    return {
        row["name"]: (row["width"], row["height"], row["frames"], round(row["duration"], 3))
        for batch in data.scan()
        for row in batch.to_pylist()
    }


@pytest.mark.parametrize("has_av", [True, False])
def test_media_info_is_packed_as_columns(tmp_path, monkeypatch, has_av):
    if has_av:
        pytest.importorskip("av")
    else:
        monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    columns = packed(tmp_path)
    frames = 6 if has_av else 0  # 0: unknown
    assert columns["whole.webm"] == columns["whole.mkv"] == (48, 32, frames, 0.6)
    assert columns["fragments.mp4"] == (48, 32, frames, 0.6 if has_av else 0)
    assert columns["whole.mp4"] == (48, 32, 6, 0.6)
    assert columns["vorbis.ogg"] == (0, 0, 0, 0.5)


def test_a_pack_is_resumed_only_with_the_same_probe(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    without = MediaOptions(info=True).recorded_options()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert without != MediaOptions(info=True).recorded_options()
    assert (
        MediaOptions(Resize(32), uses_ffmpeg=False).recorded_options()
        == MediaOptions(Resize(32)).recorded_options()
    )  # nothing is probed


def test_a_worker_without_pyav_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingLibraryError) as caught:
        ffprobe(FILES["whole.webm"], True)
    assert (str(caught.value), caught.value.hint) == (
        "--media-info needs PyAV for this file",
        "Run `pip install 'flarecli[media]'`.",
    )
