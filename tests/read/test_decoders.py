"""Decoders: images as arrays of one shape, text as bytes of one length; expected values from
Pillow.
"""

import io
import wave
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import flarecli as flare
from flarecli.errors import MissingLibraryError, UsageError, ValueFitError


def picture(size, kind="PNG", mode="RGB"):
    width, height = size
    rows, columns = np.mgrid[0:height, 0:width]
    out = io.BytesIO()
    pixels = np.stack(
        [columns * 255 // width, rows * 255 // height, np.full_like(rows, 90)], 2
    ).astype(np.uint8)
    Image.fromarray(pixels).convert(mode).save(out, kind)
    return out.getvalue()


@pytest.mark.parametrize("kind", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("size", [(640, 480), (48, 90), (1000, 20)])
def test_images_become_arrays_of_one_shape(kind, size):
    data = picture(size, kind)
    whole = np.asarray(Image.open(io.BytesIO(data)).convert("RGB"))
    assert (flare.presets.image()(data) == whole).all()
    out = flare.presets.image(32)(data)
    assert (out.shape, out.dtype) == ((32, 32, 3), np.uint8)
    edge = min(size)
    left, top = (size[0] - edge) // 2, (size[1] - edge) // 2
    middle = (
        Image.open(io.BytesIO(data))
        .convert("RGB")
        .crop((left, top, left + edge, top + edge))
        .resize((32, 32), Image.Resampling.BILINEAR)
    )
    assert np.abs(out.astype(int) - np.asarray(middle)).mean() < 6
    wide = flare.presets.image((20, 10), "L", crop=False)(data)
    squeezed = Image.open(io.BytesIO(data)).convert("L").resize((20, 10), Image.Resampling.BILINEAR)
    assert wide.shape == (10, 20)
    assert np.abs(wide.astype(int) - np.asarray(squeezed)).mean() < 8


def test_invalid_images_are_refused():
    for data in (b"", b"no picture", picture((64, 64), "JPEG")[:200]):
        with pytest.raises(ValueFitError, match="^invalid image: "):
            flare.presets.image(8)(data)
    with pytest.raises(UsageError, match="^size: expected at least 1 x 1, got 0 x 0$"):
        flare.presets.image(0)


def test_an_image_for_which_pillow_runs_a_program_is_refused(monkeypatch):
    monkeypatch.setattr(
        "PIL.EpsImagePlugin.Ghostscript",
        lambda *given, **named: pytest.fail("Pillow started a program"),
    )
    out = io.BytesIO()
    Image.new("RGB", (8, 8)).save(out, "EPS")
    with pytest.raises(ValueFitError, match="^invalid image: "):
        flare.presets.image(8)(out.getvalue())


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: flare.presets.text(-1), "size: expected at least 0, got -1"),
        (lambda: flare.presets.video(0), "frames: expected at least 1, got 0"),
        (lambda: flare.presets.video(4, step=0), "step: expected at least 1, got 0"),
        (lambda: flare.presets.video(4, size=(0, 8)), "size: expected at least 1 x 1, got 0 x 8"),
        (
            lambda: flare.presets.audio(0),
            "rate: expected at least 1, got 0",
        ),
        (
            lambda: flare.presets.audio(seconds=0),
            "seconds: expected more than 0, got 0",
        ),
        (
            lambda: flare.presets.audio(seconds=float("nan")),
            "seconds: expected more than 0, got nan",
        ),
    ],
)
def test_invalid_settings_are_refused_before_the_first_row(make, message):
    with pytest.raises(UsageError) as caught:
        make()
    assert str(caught.value) == message


@pytest.mark.parametrize(("hertz", "rate"), [(44100, 16000), (8000, 48000), (8000, 8000)])
def test_resampled_audio_includes_its_end(hertz, rate):
    pytest.importorskip("av")
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setnchannels(1)
        file.setsampwidth(2)
        file.setframerate(hertz)
        file.writeframes((np.sin(np.arange(hertz) / 20) * 20000).astype("<i2").tobytes())
    decoded = flare.presets.audio(rate)(out.getvalue())
    assert decoded.shape == (1, rate)
    assert (
        flare.presets.audio(rate, seconds=0.25)(out.getvalue()).tolist()
        == decoded[:, : rate // 4].tolist()
    )


def test_text_becomes_bytes_of_one_length():
    assert flare.presets.text(6)("héllo".encode()).tolist() == [104, 195, 169, 108, 108, 111]
    assert flare.presets.text(8)(b"ab").tolist() == [97, 98, 0, 0, 0, 0, 0, 0]


def test_video_without_pyav_is_an_error(monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "av", None)
    for preset in (flare.presets.video(4), flare.presets.audio()):
        with pytest.raises(MissingLibraryError, match="^PyAV is not installed(?m:$)"):
            preset(b"")


def test_addresses_inside_video_and_audio_are_not_opened(web):
    pytest.importorskip("av")
    address = web.page("/canary.ts", b"canary")
    session = f"v=0\no=- 0 0 IN IP4 127.0.0.1\ns=x\nc=IN IP4 127.0.0.1\nt=0 0\nm=video {web.port} RTP/AVP 96\na=rtpmap:96 H264/90000\n"
    lists = (
        f"#EXTM3U\n#EXT-X-TARGETDURATION:10\n#EXTINF:10,\n{address}\n#EXT-X-ENDLIST\n",
        f"ffconcat version 1.0\nfile {address}\n",
        session,
    )
    for data in lists:
        with pytest.raises(ValueFitError, match="^invalid video: "):
            flare.presets.video(4)(data.encode())
        with pytest.raises(ValueFitError, match="^invalid audio: "):
            flare.presets.audio()(data.encode())
    assert web.requests == []


def test_video_and_audio_become_arrays():
    pytest.importorskip("av")
    media = Path(__file__).parents[2] / "fixtures" / "media"
    for name in ("whole.mp4", "whole.mkv", "whole.webm", "whole.mov", "fragments.mp4"):
        assert flare.presets.video(4)((media / name).read_bytes()).shape == (4, 32, 48, 3)
        assert flare.presets.video(2, step=2, size=16)((media / name).read_bytes()).shape == (
            2,
            16,
            16,
            3,
        )
    for name in ("opus.ogg", "vorbis.ogg", "plain.mp3", "whole.flac", "whole.m4a"):
        decoded = flare.presets.audio(8000, seconds=0.05)((media / name).read_bytes())
        assert (decoded.dtype, decoded.shape[1]) == (np.float32, 400)


def test_a_loader_batches_decoded_values(tmp_path):
    with flare.Writer(str(tmp_path / "d"), columns={"image": "jpeg", "text": "str"}) as writer:
        for n in range(10):
            writer.write({"image": picture((40 + n, 30), "JPEG"), "text": "x" * n})
    data = flare.open(str(tmp_path / "d"))
    for options in ({}, {"processes": True, "workers": 1}):
        (batch,) = flare.Loader(
            data,
            10,
            decode={"image": flare.presets.image(16), "text": flare.presets.text(4)},
            **options,
        )
        assert (batch["image"].shape, batch["text"].shape) == ((10, 16, 16, 3), (10, 4))
