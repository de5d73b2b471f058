"""What FFmpeg tells where headers are silent: files that it wrote itself, damaged ones, and small ones that ask for much."""

import io
import sys
from fractions import Fraction
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli import read, verbs
from flarecli.errors import MissingLibraryError
from flarecli.media import Measures, Resize, films, measure, measured
from flarecli.verbs.intake import Intake

FILES = {
    path.name: path.read_bytes()
    for path in sorted((Path(__file__).parents[1] / "fixtures" / "media").glob("*.*"))
    if path.suffix != ".md"
}
SILENT = ("fragments.mp4", "whole.mkv", "whole.webm")  # of the number of pictures


@pytest.fixture
def av():
    return pytest.importorskip("av")


@pytest.mark.parametrize("name", FILES)
def test_what_a_header_does_not_say_the_packets_do(av, name):
    known, found = measure(FILES[name]), measured(FILES[name], True)
    if name in SILENT:
        assert found == Measures(known.kind, 48, 32, 6, pytest.approx(0.6))
    else:
        assert found == known


@pytest.mark.parametrize(
    ("container", "codec", "kind"),
    [("ogg", "flac", "ogg"), ("webm", "libvpx", "webm"), ("matroska", "mpeg4", "mkv")],
)
def test_files_of_other_codecs_are_measured_too(av, container, codec, kind):
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
    found = measured(out.getvalue(), True)
    if is_sound:
        assert (found.kind, found.frames, found.duration) == (
            kind,
            None,
            pytest.approx(10 * frame.samples / 8000, rel=0.01),
        )
    else:
        assert found == Measures(kind, 64, 48, 10, pytest.approx(0.4, abs=0.05))


@settings(max_examples=60, deadline=None)
@given(
    name=st.sampled_from(SILENT),
    place=st.floats(0, 1, exclude_max=True),
    byte=st.integers(0, 255),
    cut=st.floats(0.1, 1),
)
def test_damage_gives_measures_or_none(name, place, byte, cut):
    pytest.importorskip("av")
    data = bytearray(FILES[name])
    data[int(place * len(data))] = byte
    assert isinstance(measured(bytes(data[: int(cut * len(data))]), True), Measures)


def test_a_few_bytes_that_say_billions_of_samples_are_not_believed(av, monkeypatch):
    data = FILES["fragments.mp4"]
    at = data.index(b"trun") + 8
    asked = data[:at] + (1 << 31).to_bytes(4) + data[at + 4 :]
    monkeypatch.setattr(av, "open", None)
    assert measured(asked, True) == measure(asked)
    packed = data.replace(b"mvhd", b"cmov")
    assert measured(packed, True) == measure(packed)


def packed(tmp_path, **options):
    table = pa.table({"name": list(FILES), "file": pa.array(list(FILES.values()), pa.binary())})
    pq.write_table(table, tmp_path / "i.parquet")
    verbs.pack(str(tmp_path / "i.parquet"), str(tmp_path / "out"), media_info=True, **options)
    data = read.Dataset(read.select_streams(found := read.resolve(str(tmp_path / "out"))), found)
    return {
        row["name"]: (row["width"], row["height"], row["frames"], round(row["duration"], 3))
        for batch in data.scan()
        for row in batch.to_pylist()
    }


@pytest.mark.parametrize("is_there", [True, False])
def test_measures_are_columns_of_what_is_packed(tmp_path, monkeypatch, is_there):
    if is_there:
        pytest.importorskip("av")
    else:
        monkeypatch.setattr(films.importlib.util, "find_spec", lambda name: None)
    found = packed(tmp_path)
    frames = 6 if is_there else 0  # 0: not known
    assert found["whole.webm"] == found["whole.mkv"] == (48, 32, frames, 0.6)
    assert found["fragments.mp4"] == (48, 32, frames, 0.6 if is_there else 0)
    assert found["whole.mp4"] == (48, 32, 6, 0.6)
    assert found["vorbis.ogg"] == (0, 0, 0, 0.5)


def test_a_pack_goes_on_only_where_it_measures_the_same(tmp_path, monkeypatch):
    monkeypatch.setattr(films.importlib.util, "find_spec", lambda name: None)
    without = Intake(info=True).options()
    monkeypatch.setattr(films.importlib.util, "find_spec", lambda name: object())
    assert without != Intake(info=True).options()
    assert (
        Intake(Resize(32), films=False).options() == Intake(Resize(32)).options()
    )  # nothing is measured


def test_what_a_driver_has_and_a_worker_lacks_is_said(monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(MissingLibraryError) as caught:
        measured(FILES["whole.webm"], True)
    assert (str(caught.value), caught.value.hint) == (
        "--media-info needs PyAV here",
        "Run pip install 'flarecli[media]'.",
    )
