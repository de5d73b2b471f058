"""Detect the type of a file by its magic number or its extension, without decoding the file."""

from __future__ import annotations

import re
from itertools import chain

__all__ = ["category_of", "extension_of", "is_image", "is_media", "kind_of", "mismatch", "sniff"]

# File type -> extensions; flare uses the first extension for writing.
_IMAGES = {
    "jpeg": ("jpg", "jpeg", "jpe", "jfif"),
    "png": ("png", "apng"),
    "webp": ("webp",),
    "gif": ("gif",),
    "tiff": ("tif", "tiff"),
    "bmp": ("bmp",),
    "avif": ("avif",),
    "heic": ("heic", "heif"),
}
_VIDEO_AND_AUDIO = {
    "mp4": ("mp4", "m4v"),
    "m4a": ("m4a",),
    "mov": ("mov",),
    "webm": ("webm",),
    "mkv": ("mkv",),
    "wav": ("wav",),
    "flac": ("flac",),
    "mp3": ("mp3",),
    "ogg": ("ogg", "oga", "ogv", "opus"),
}
_EXTENSIONS = {
    **_IMAGES,
    **_VIDEO_AND_AUDIO,
    "npy": ("npy",),
    "npz": ("npz",),
    "zip": ("zip",),
    "gzip": ("gz",),
    "zstd": ("zst", "zstd"),
    "pdf": ("pdf",),
    "html": ("html", "htm", "xhtml"),
    "xml": ("xml", "svg", "rss"),
    "json": ("json",),
    "str": ("txt", "text"),
}
_KINDS = {extension: kind for kind, extensions in _EXTENSIONS.items() for extension in extensions}
# Category of files -> extensions. In a folder, the files of a category are one column.
_CATEGORIES = {
    "image": tuple(chain.from_iterable(_IMAGES.values())),
    "audio": ("wav", "flac", "mp3", "ogg", "oga", "opus", "m4a", "aac", "aif", "aiff"),
    "video": ("mp4", "m4v", "mov", "webm", "mkv", "ogv", "avi", "mpg", "mpeg"),
    "text": ("txt", "text", "md", "markdown", "rst"),
}
_CATEGORY_OF = {
    extension: category for category, extensions in _CATEGORIES.items() for extension in extensions
}
# Sets of file types with the same magic numbers.
_SAME = [{"mkv", "webm"}, {"mp4", "mov"}, {"mp4", "m4a"}, {"npz", "zip"}, {"avif", "heic"}]
_STARTS = (
    (b"\xff\xd8\xff", "jpeg"),
    (b"\x89PNG\r\n\x1a\n", "png"),
    (b"GIF87a", "gif"),
    (b"GIF89a", "gif"),
    (b"II*\0", "tiff"),
    (b"MM\0*", "tiff"),
    (b"\x1aE\xdf\xa3", "mkv"),
    (b"fLaC", "flac"),
    *((b"ID3" + bytes([version]), "mp3") for version in (2, 3, 4)),
    (b"OggS", "ogg"),
    (b"\x93NUMPY", "npy"),
    (b"PK\x03\x04", "zip"),
    (b"\x1f\x8b\x08", "gzip"),
    (b"\x28\xb5\x2f\xfd", "zstd"),
    (b"%PDF-", "pdf"),
)
_BMP_HEADERS = [size.to_bytes(4, "little") for size in (12, 40, 52, 56, 64, 108, 124)]
_BRANDS = {
    b"avif": "avif",
    b"avis": "avif",
    b"heic": "heic",
    b"heix": "heic",
    b"qt  ": "mov",
    b"M4A ": "m4a",
    b"M4B ": "m4a",
}
_COMMENT = re.compile(rb"(?:<!--.*?-->\s*)+", re.DOTALL)
_HTML = re.compile(rb"<(?:!doctype\s+html|html|head|body|title|script|meta|h1)[\s>]", re.IGNORECASE)
_XML = re.compile(
    rb"<(?:(?:\?xml|svg|error|rss|feed)[\s>]|[a-z_][\w:.-]*\s[^<>]*xmlns)", re.IGNORECASE
)


def sniff(head: bytes) -> str | None:
    """Return the type of a file according to its magic number; None if it is unknown.

    head  first bytes of the file; 512 bytes are sufficient
    """
    for start, kind in _STARTS:
        if head.startswith(start):
            return _container(kind, head)
    if head[:4] == b"RIFF":
        return {b"WEBP": "webp", b"WAVE": "wav"}.get(head[8:12])
    if head[4:8] == b"ftyp":
        brands = [
            head[8:12],
            *(head[at : at + 4] for at in range(16, min(int.from_bytes(head[:4]), 64), 4)),
        ]
        return next((_BRANDS[brand] for brand in brands if brand in _BRANDS), "mp4")
    if head[:2] == b"BM" and head[6:10] == bytes(4) and head[14:18] in _BMP_HEADERS:
        return "bmp"
    # the header of an MPEG audio frame, layer III
    if (
        len(head) > 2
        and head[0] == 0xFF
        and head[1] & 0xE6 == 0xE2
        and head[2] >> 4 != 15
        and head[2] & 12 != 12
    ):
        return "mp3"
    return _markup(head)


def _container(kind: str, head: bytes) -> str:
    """Return a more specific type for a container, according to the first bytes of the file."""
    if kind == "mkv" and b"webm" in head[:64]:
        return "webm"
    if kind == "zip" and head[30 : 30 + int.from_bytes(head[26:28], "little")].endswith(b".npy"):
        return "npz"
    return kind


def _markup(head: bytes) -> str | None:
    text = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if not text.startswith(b"<"):
        return None
    text = _COMMENT.sub(b"", text, count=1)
    if _HTML.match(text):
        return "html"
    if _XML.match(text):
        return "html" if b"<html" in text.lower() or b"<!doctype html" in text.lower() else "xml"
    return None


def kind_of(name: str) -> str | None:
    """Return the file type for the extension in a file name or URL; None if it is unknown."""
    path = name.partition("#")[0].partition("?")[0] if "://" in name else name
    _, dot, extension = path.rpartition("/")[2].rpartition(".")
    return _KINDS.get(extension.lower()) if dot else None


def category_of(extension: str) -> str | None:
    """Return the category of a lower-case file extension: image, audio, video, text or None."""
    return _CATEGORY_OF.get(extension)


def is_media(kind: str | None) -> bool:
    """Return whether a file type is an image, video or audio format."""
    return kind in _IMAGES or kind in _VIDEO_AND_AUDIO


def is_image(kind: str | None) -> bool:
    """Return whether a file type is an image format."""
    return kind in _IMAGES


def extension_of(kind: str) -> str | None:
    """Return the extension that flare writes for a file type, such as `jpg` for `jpeg`.

    The result is None for an unknown type.
    """
    return _EXTENSIONS[kind][0] if kind in _EXTENSIONS else None


def mismatch(name: str, head: bytes) -> str | None:
    """Return a message such as `png, not jpeg` if the content of a file does not match its name.

    head    first bytes of the file; 512 bytes are sufficient
    return  None if the content matches the name, or if one of the two types is unknown. An empty
            file does not match the name of an image, video or audio file
    """
    expected, found = kind_of(name), sniff(head)
    if not head and is_media(expected):
        return f"empty, not {expected}"
    if expected is None or found is None or found == expected or {expected, found} in _SAME:
        return None
    return f"{found}, not {expected}"
