"""Frames and durations by FFmpeg: of its own files, of damaged ones, and of hostile ones."""

import importlib.util
import io
import sys
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import commands, read
from flarecli.commands.packing.media import Intake
from flarecli.errors import MissingLibraryError
from flarecli.media import MediaInfo, Resize, ffprobe, probe

FILES = {
    path.name: path.read_bytes()
    for path in sorted((Path(__file__).parents[2] / "fixtures" / "media").glob("*.*"))
    if path.suffix != ".md"
}
WITHOUT_FRAMES = ("fragments.mp4", "whole.mkv", "whole.webm")  # in their headers


@pytest.fixture
def av():
    return pytest.importorskip("av")


@pytest.mark.parametrize("name", FILES)
def test_packets_are_counted_if_the_header_has_no_count(av, name):
    known, found = probe(FILES[name]), ffprobe(FILES[name], True)
    if name in WITHOUT_FRAMES:
        assert found == MediaInfo(known.kind, 48, 32, 6, pytest.approx(0.6))
    else:
        assert found == known


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
    found = ffprobe(out.getvalue(), True)
    if is_sound:
        assert (found.kind, found.frames, found.duration) == (
            kind,
            None,
            pytest.approx(10 * frame.samples / 8000, rel=0.01),
        )
    else:
        assert found == MediaInfo(kind, 64, 48, 10, pytest.approx(0.4, abs=0.05))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(WITHOUT_FRAMES),
    place=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
    cut=st.floats(0.1, 1),
)
def test_damaged_files_never_raise(name, place, byte, cut):
    pytest.importorskip("av")
    data = bytearray(FILES[name])
    data[int(place * len(data))] = byte
    assert isinstance(ffprobe(bytes(data[: int(cut * len(data))]), True), MediaInfo)


def test_small_files_that_claim_billions_of_samples_are_not_opened(av, monkeypatch):
    data = FILES["fragments.mp4"]
    at = data.index(b"trun") + 8
    asked = data[:at] + (1 << 31).to_bytes(4) + data[at + 4 :]
    monkeypatch.setattr(av, "open", None)
    assert ffprobe(asked, True) == probe(asked)
    packed = data.replace(b"mvhd", b"cmov")
    assert ffprobe(packed, True) == probe(packed)


def packed(tmp_path, **options):
    table = pa.table({"name": list(FILES), "file": pa.array(list(FILES.values()), pa.binary())})
    pq.write_table(table, tmp_path / "i.parquet")
    commands.pack(str(tmp_path / "i.parquet"), str(tmp_path / "out"), media_info=True, **options)
    data = read.Dataset(read.select_streams(found := read.resolve(str(tmp_path / "out"))), found)
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
    found = packed(tmp_path)
    frames = 6 if has_av else 0  # 0: unknown
    assert found["whole.webm"] == found["whole.mkv"] == (48, 32, frames, 0.6)
    assert found["fragments.mp4"] == (48, 32, frames, 0.6 if has_av else 0)
    assert found["whole.mp4"] == (48, 32, 6, 0.6)
    assert found["vorbis.ogg"] == (0, 0, 0, 0.5)


def test_a_pack_is_resumed_only_with_the_same_probe(tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    without = Intake(info=True).options()
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: object())
    assert without != Intake(info=True).options()
    assert (
        Intake(Resize(32), films=False).options() == Intake(Resize(32)).options()
    )  # nothing is probed


def test_a_worker_without_pyav_is_reported(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingLibraryError) as caught:
        ffprobe(FILES["whole.webm"], True)
    assert (str(caught.value), caught.value.hint) == (
        "--media-info needs PyAV here",
        "Run pip install 'flarecli[media]'.",
    )
