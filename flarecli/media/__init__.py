"""Images, video and audio: detected by magic numbers, probed by headers, checked and resized."""

from __future__ import annotations

from flarecli.media.ffprobe import INFO_COLUMNS, ffprobe, has_ffmpeg
from flarecli.media.probe import MediaInfo, check_header, probe
from flarecli.media.resize import MODES, Resize, resize, resize_image
from flarecli.media.sandbox import Sandbox
from flarecli.media.sandbox_worker import FORMATS
from flarecli.media.sniff import extension_of, is_image, is_media, kind_of, mismatch, sniff
from flarecli.media.thumbnail import thumbnail

__all__ = [
    "FORMATS",
    "INFO_COLUMNS",
    "MODES",
    "MediaInfo",
    "Resize",
    "Sandbox",
    "check_header",
    "extension_of",
    "ffprobe",
    "has_ffmpeg",
    "is_image",
    "is_media",
    "kind_of",
    "mismatch",
    "probe",
    "resize",
    "resize_image",
    "sniff",
    "thumbnail",
]
