"""Detect, probe, check and resize images, video and audio files."""

from __future__ import annotations

from flarecli.media.headers import (
    INFO_COLUMNS,
    MediaInfo,
    check_header,
    ffprobe,
    has_ffmpeg,
    probe,
)
from flarecli.media.images import Resize, resize_image, thumbnail
from flarecli.media.kinds import (
    category_of,
    extension_of,
    is_image,
    is_media,
    kind_of,
    mismatch,
    sniff,
)
from flarecli.media.sandbox import Sandbox
from flarecli.media.sandbox_worker import FORMATS

__all__ = [
    "FORMATS",
    "INFO_COLUMNS",
    "MediaInfo",
    "Resize",
    "Sandbox",
    "category_of",
    "check_header",
    "extension_of",
    "ffprobe",
    "has_ffmpeg",
    "is_image",
    "is_media",
    "kind_of",
    "mismatch",
    "probe",
    "resize_image",
    "sniff",
    "thumbnail",
]
