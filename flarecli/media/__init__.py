"""Pictures, video and sound: told by their magic numbers, measured by their headers, resized within limits."""

from __future__ import annotations

from flarecli.media.bounded import Decoders
from flarecli.media.checking import headers
from flarecli.media.films import INFO, has_films, measured
from flarecli.media.kinds import contradiction, extension_of, is_medium, is_picture, kind_of, sniff
from flarecli.media.measuring import Measures, measure
from flarecli.media.pixels import FORMATS
from flarecli.media.resize import MODES, Resize, resize, resized
from flarecli.media.shrink import thumbnail

__all__ = [
    "Decoders",
    "FORMATS",
    "INFO",
    "MODES",
    "Measures",
    "Resize",
    "contradiction",
    "extension_of",
    "has_films",
    "headers",
    "is_medium",
    "is_picture",
    "kind_of",
    "measure",
    "measured",
    "resize",
    "resized",
    "sniff",
    "thumbnail",
]
