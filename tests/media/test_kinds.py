"""Magic numbers of files by Pillow and the standard library, and text that only looks like them."""

import gzip
import io
import wave
import zipfile

import numpy as np
import pytest
import zstandard
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from flarecli.media import extension_of, kind_of, mismatch, sniff


def written(save) -> bytes:
    file = io.BytesIO()
    save(file)
    return file.getvalue()


def image(kind: str) -> bytes:
    return written(lambda file: Image.new("RGB", (9, 7), (200, 30, 40)).save(file, kind))


def sound(file) -> None:
    with wave.open(file, "wb") as out:
        out.setparams((1, 2, 8000, 4, "NONE", ""))
        out.writeframes(bytes(8))


@pytest.mark.parametrize("kind", ["jpeg", "png", "gif", "webp", "tiff", "bmp"])
def test_images_written_by_pillow_are_recognized(kind):
    assert sniff(image(kind)[:512]) == kind


def test_files_by_other_libraries_are_recognized():
    made = {
        "wav": written(sound),
        "npy": written(lambda file: np.save(file, np.arange(3))),
        "npz": written(lambda file: np.savez(file, x=np.arange(3))),
        "zip": written(lambda file: zipfile.ZipFile(file, "w").writestr("x.txt", "x")),
        "gzip": gzip.compress(b"x"),
        "zstd": zstandard.compress(b"x"),
        "pdf": b"%PDF-1.7\n",
        "flac": b"fLaC\0\0\0\x22",
        "ogg": b"OggS\0\2",
        "mp3": b"\xff\xfb\x90\x64",
        "mkv": b"\x1aE\xdf\xa3\x93\x42\x82\x88matroska",
        "webm": b"\x1aE\xdf\xa3\x93\x42\x82\x84webm",
    }
    assert {kind: sniff(data[:512]) for kind, data in made.items()} == {kind: kind for kind in made}


@pytest.mark.parametrize(
    ("brand", "others", "kind"),
    [
        (b"isom", [b"iso2", b"mp41"], "mp4"),
        (b"qt  ", [], "mov"),
        (b"M4A ", [b"isom"], "m4a"),
        (b"avif", [b"mif1"], "avif"),
        (b"mif1", [b"avif", b"miaf"], "avif"),
        (b"mif1", [b"heic"], "heic"),
    ],
)
def test_mp4_like_files_are_recognized_by_their_brands(brand, others, kind):
    box = b"ftyp" + brand + bytes(4) + b"".join(others)
    assert sniff((len(box) + 4).to_bytes(4) + box + b"\0\0\0\x08mdat") == kind


@pytest.mark.parametrize(
    ("page", "kind"),
    [
        (b"<!DOCTYPE html><html>", "html"),
        (b"\xef\xbb\xbf \r\n<html lang=en>", "html"),
        (b"<!-- served by x -->\n<HTML>", "html"),
        (b"<head><title>Sign in</title>", "html"),
        (b'<?xml version="1.0"?>\n<!DOCTYPE html PUBLIC "x">', "html"),
        (b'<?xml version="1.0"?>\n<Error><Code>NoSuchKey</Code></Error>', "xml"),
        (b"<Error><Code>AccessDenied</Code></Error>", "xml"),
        (b'<svg xmlns="http://www.w3.org/2000/svg"/>', "xml"),
        (b'<ListBucketResult xmlns="http://s3.amazonaws.com/doc/2006-03-01/">', "xml"),
    ],
)
def test_html_and_xml_error_pages_are_recognized(page, kind):
    assert sniff(page) == kind


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"B",
        b"BMW is a car, and no bitmap",
        b"<3 you",
        b"< html",
        b"<header>",
        b"a <html> tag",
        b'{"a": 1}',
        b"\xff\xfe<\0h\0",
        b"\x1f\x8bx",
    ],
)
def test_text_that_resembles_a_magic_number_is_not_recognized(text):
    assert sniff(text) is None


@given(st.binary(max_size=600))
def test_sniff_never_raises(head):
    assert sniff(head) is None or extension_of(sniff(head))


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("a.jpg", "jpeg"),
        ("a/b.JPEG", "jpeg"),
        ("https://h/x.png?size=1.gif#a.bmp", "png"),
        ("https://h.com", None),
        ("https://h.com/page.html", "html"),
        ("a.tar/x", None),
        ("x", None),
        (".jpg", "jpeg"),
        ("what?.wav", "wav"),
        ("x.unknown", None),
    ],
)
def test_the_extension_determines_the_kind_of_a_name(name, kind):
    assert kind_of(name) == kind


def test_each_kind_has_an_extension_of_the_same_kind():
    kinds = ["jpeg", "png", "webp", "gif", "tiff", "mp4", "mp3", "npy", "html", "str"]
    assert [kind_of(f"x.{extension_of(kind)}") for kind in kinds] == kinds
    assert (extension_of("jpeg"), extension_of("nothing")) == ("jpg", None)


@pytest.mark.parametrize(
    ("name", "data", "expected"),
    [
        ("a.jpg", image("png"), "png, not jpeg"),
        ("a.jpg", b"<html>no</html>", "html, not jpeg"),
        ("a.jpeg", image("jpeg"), None),
        ("a.bin", image("jpeg"), None),
        ("a.jpg", b"unknown", None),
        ("a.mov", b"\0\0\0\x10ftypisom\0\0\0\0", None),
    ],
)
def test_content_that_contradicts_its_name_is_reported(name, data, expected):
    assert mismatch(name, data[:512]) == expected
