"""Resized images compared with Pillow's; unchanged bytes; images rejected before decoding."""

import io
import os
import struct
import zlib

import pytest
from PIL import Image, ImageCms, ImageOps

from flarecli.errors import UsageError, ValueFitError
from flarecli.media import Resize, probe, resize_image


def picture(size=(90, 60), mode="RGB") -> Image.Image:
    return Image.effect_noise(size, 120).convert(mode)


def saved(image: Image.Image, kind: str = "png", **options) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)
    return out.getvalue()


def opened(data: bytes) -> Image.Image:
    return Image.open(io.BytesIO(data))


def refusal(data: bytes, asked: Resize) -> str:
    with pytest.raises(ValueFitError) as caught:
        resize_image(data, asked)
    return str(caught.value)


@pytest.mark.parametrize("size", [(90, 60), (60, 90), (50, 50), (333, 7)])
@pytest.mark.parametrize("mode", ["L", "RGB", "RGBA", "LA"])
def test_pixels_equal_those_of_pillow(size, mode):
    image = picture(size, mode)
    wanted = {
        "fit": ImageOps.contain(image, (32, 32), Image.Resampling.BICUBIC),
        "crop": ImageOps.fit(image, (32, 32), Image.Resampling.BICUBIC),
        "stretch": image.resize((32, 32), Image.Resampling.BICUBIC),
    }
    for way, result in wanted.items():
        found = opened(resize_image(saved(image), Resize(32, way)))
        assert (found.format, found.mode, found.size, found.tobytes()) == (
            "PNG",
            mode,
            result.size,
            result.tobytes(),
        )


@pytest.mark.parametrize("size", [(90, 60), (60, 90), (333, 7), (64, 48)])
@pytest.mark.parametrize("box", [(32, 24), (24, 32), (50, 3)])
def test_boxes_are_filled_like_pillow_does(size, box):
    image = picture(size)
    wanted = {
        "fit": ImageOps.contain(image, box, Image.Resampling.BICUBIC),
        "crop": ImageOps.fit(image, box, Image.Resampling.BICUBIC),
        "stretch": image.resize(box, Image.Resampling.BICUBIC),
    }
    for way, result in wanted.items():
        found = opened(resize_image(saved(image), Resize(box, way)))
        assert (found.size, found.tobytes()) == (result.size, result.tobytes())


def test_a_box_applies_to_the_upright_image():
    exif = Image.Exif()
    exif[0x0112] = 6
    data = saved(picture((90, 60)), "jpeg", exif=exif)
    assert resize_image(data, Resize((60, 90))) is data
    assert opened(resize_image(data, Resize((90, 60)))).size == (40, 60)


def test_jpeg_bytes_equal_those_of_pillow():
    data = saved(picture(), "jpeg", quality=80)
    wanted = ImageOps.contain(opened(data), (48, 48), Image.Resampling.BICUBIC)
    assert resize_image(data, Resize(48)) == saved(wanted, "jpeg", quality=95)
    assert resize_image(data, Resize(48, quality=50)) == saved(wanted, "jpeg", quality=50)


@pytest.mark.parametrize(
    ("data", "asked"),
    [
        (saved(picture(), "jpeg"), Resize()),
        (saved(picture(), "jpeg"), Resize(min_size=60, max_aspect=1.5)),
        (saved(picture(), "jpeg"), Resize(90)),
        (saved(picture(), "jpeg"), Resize(1000)),
        (saved(picture((64, 64)), "png"), Resize(64, "crop")),
        (saved(picture((64, 64)), "png"), Resize(64, "stretch", quality=10)),
        (
            saved(
                picture(),
                "jpeg",
                exif=b"Exif\0\0MM\0*\0\0\0\x08\0\x01\x01\x12\0\x03\0\0\0\x01\0\x06\0\0\0\0\0\0",
            ),
            Resize(90),
        ),
    ],
)
def test_bytes_stay_the_same_if_no_change_is_needed(data, asked):
    assert resize_image(data, asked) is data


def test_jpeg_bytes_are_the_same_on_systems_without_memfd(monkeypatch):
    data = saved(picture(), "jpeg", quality=80)
    wanted = resize_image(data, Resize(48))
    monkeypatch.delattr("os.memfd_create", raising=False)
    assert resize_image(data, Resize(48)) == wanted


def test_no_file_descriptor_is_leaked():
    data, before = saved(picture(), "jpeg"), len(os.listdir("/proc/self/fd"))
    for _ in range(20):
        resize_image(data, Resize(48))
    assert len(os.listdir("/proc/self/fd")) == before


def test_a_quality_alone_re_encodes():
    data = saved(picture(), "jpeg", quality=95)
    assert len(resize_image(data, Resize(quality=30))) < len(data) / 2
    assert opened(resize_image(data, Resize(quality=30))).size == (90, 60)


def test_small_images_are_enlarged_by_crop_and_stretch_but_not_by_fit():
    data = saved(picture((20, 10)))
    assert [
        opened(resize_image(data, Resize(32, way))).size for way in ("fit", "crop", "stretch")
    ] == [
        (20, 10),
        (32, 32),
        (32, 32),
    ]


def test_an_image_is_turned_upright_by_its_exif():
    image = Image.new("RGB", (80, 40), "red")
    image.paste("blue", (40, 0, 80, 40))
    exif = Image.Exif()
    exif[0x0112] = 6  # its top is at the right
    found = opened(resize_image(saved(image, "jpeg", exif=exif, quality=95), Resize(40)))
    assert found.size == (20, 40)
    assert found.getpixel((10, 5))[0] > 200 and found.getpixel((10, 35))[2] > 200
    assert found.getexif().get(0x0112) is None


@pytest.mark.parametrize("kind", ["jpeg", "png", "webp", "tiff"])
def test_the_color_profile_is_kept(kind):
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    found = opened(resize_image(saved(picture(), kind, icc_profile=profile), Resize(40)))
    assert (found.format, found.info["icc_profile"]) == (kind.upper(), profile)


@pytest.mark.parametrize(
    ("data", "mode"),
    [
        (saved(picture(mode="P")), "RGB"),
        (saved(picture(mode="1")), "L"),
        (saved(picture(mode="L").convert("I;16")), "I;16"),
        (saved(picture(mode="CMYK"), "jpeg"), "CMYK"),
        (saved(picture(), "bmp"), "RGB"),
        (saved(picture(), "avif"), "RGB"),
    ],
)
def test_other_modes_and_formats_are_resized(data, mode):
    found = opened(resize_image(data, Resize(30)))
    assert (found.size, found.mode, probe(data).kind) == ((30, 20), mode, found.format.lower())


# Results of img2dataset 1.47 for these sizes with 32 pixels and min_image_size=3: the new size or
# the reason of the rejection. First keep_ratio_largest with resize_only_if_bigger and
# max_aspect_ratio=20, then center_crop with max_aspect_ratio=3.
ASKED = {
    "fit": Resize(32, "fit", min_size=3, max_aspect=20),
    "crop": Resize(32, "crop", min_size=3, max_aspect=3),
}
OTHERS = [
    ((90, 60), (32, 21), (32, 32)),
    ((60, 90), (21, 32), (32, 32)),
    ((64, 64), (32, 32), (32, 32)),
    ((333, 7), "aspect", "aspect"),
    ((300, 100), (32, 11), (32, 32)),
    ((301, 100), (32, 11), "aspect"),
    ((99, 33), (32, 11), (32, 32)),
    ((31, 200), (5, 32), "aspect"),
    ((32, 32), (32, 32), (32, 32)),
    ((33, 31), (32, 30), (32, 32)),
    ((97, 64), (32, 21), (32, 32)),
    ((1, 50), "small", "small"),
    ((50, 3), (32, 2), "aspect"),
    ((123, 77), (32, 20), (32, 32)),
    ((40, 400), (3, 32), "aspect"),
]


@pytest.mark.parametrize(("size", "fit", "crop"), OTHERS)
def test_sizes_and_rejections_equal_those_of_img2dataset(size, fit, crop):
    for way, wanted in (("fit", fit), ("crop", crop)):
        if isinstance(wanted, str):
            assert {
                "aspect": "the aspect ratio must be at most",
                "small": "the shorter side must be at least 3",
            }[wanted] in refusal(saved(picture(size)), ASKED[way])
        else:
            assert opened(resize_image(saved(picture(size)), ASKED[way])).size == wanted


def bomb(width: int, height: int) -> bytes:
    """Return a PNG of one bit per pixel, all zero."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    row = bytes(1 + (width + 7) // 8)
    packer = zlib.compressobj(9)
    body = b"".join(packer.compress(row) for _ in range(height)) + packer.flush()
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )


def test_a_decompression_bomb_is_rejected_before_decoding():
    data = bomb(20_000, 20_000)
    assert len(data) < 60_000
    assert refusal(data, Resize(256)) == "20000×20000 pixels; the maximum is 67108864"


def test_both_sizes_of_a_contradictory_header_are_checked():
    data = bytearray(saved(picture((16, 16)), "gif"))
    data[6:10] = struct.pack("<HH", 16, 16)
    at = data.index(b"\x2c", 13 + (3 << (data[10] % 8 + 1)))  # after the palette
    data[at + 5 : at + 9] = struct.pack(
        "<HH", 60_000, 60_000
    )  # the frame is larger than the screen
    assert refusal(bytes(data), Resize(8)).startswith(("60000×60000 pixels", "damaged gif: "))


@pytest.mark.parametrize(
    ("data", "asked", "message"),
    [
        (
            saved(picture()),
            Resize(256, min_size=64),
            "90×60 pixels; the shorter side must be at least 64",
        ),
        (
            saved(picture((100, 20))),
            Resize(256, max_aspect=3),
            "100×20 pixels; the aspect ratio must be at most 3",
        ),
        (b"hello", Resize(256), "not an image in a supported format"),
        (b"", Resize(256), "not an image in a supported format"),
        (b"\xff\xd8\xff\xd9", Resize(256), "damaged jpeg: no image size in the header"),
        (
            saved(picture(), "jpeg")[:1500],
            Resize(40),
            "damaged jpeg: image file is truncated",
        ),
    ],
)
def test_rejections_state_their_reason(data, asked, message):
    assert refusal(data, asked).startswith(message)


def test_damaged_exif_rejects_the_image():
    orientation, title = (
        struct.pack("<HHIHH", 0x0112, 3, 1, 6, 0),
        struct.pack("<HHII", 0x010E, 11, 1, 5),
    )  # a title that is a float
    exif = b"Exif\0\0II*\0" + struct.pack("<IH", 8, 2) + title + orientation + bytes(4)
    out = io.BytesIO()
    picture().save(out, "jpeg", exif=exif)
    assert refusal(out.getvalue(), Resize(40)).startswith("damaged jpeg: ")


def test_animations_are_not_resized():
    out = io.BytesIO()
    Image.new("RGB", (80, 40)).save(
        out, "gif", save_all=True, append_images=[Image.new("RGB", (80, 40), "red")]
    )
    assert refusal(out.getvalue(), Resize(40)) == "an animation of 2 frames cannot be resized"
    assert resize_image(out.getvalue(), Resize(80)) == out.getvalue()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"mode": "pad"}, "--resize-mode: expected fit, crop or stretch, got 'pad'"),
        ({"mode": "crop"}, "--resize-mode crop needs --resize"),
        ({"size": 0}, "--resize: expected sides from 1 to 65536 pixels, got 0"),
        ({"size": (640, 0)}, "--resize: expected sides from 1 to 65536 pixels, got 640x0"),
        ({"min_size": -1}, "--min-size: expected a number of pixels, got -1"),
        ({"quality": 101}, "--quality: expected a number from 1 to 100, got 101"),
        ({"max_aspect": 0.5}, "--max-aspect must be at least 1, got 0.5"),
    ],
)
def test_invalid_options_are_rejected(options, message):
    with pytest.raises(UsageError) as caught:
        Resize(**options)
    assert str(caught.value) == message
