"""Program of a sandbox process, which decodes images that may crash, stall or exhaust the decoder.

The program does not import the package, so that it starts quickly. The protocol, with
little-endian uint32 integers:

    stdin   size of the image, limit in CPU seconds, the image
    stdout  CPU microseconds used, size of the message, status (1 byte), message in UTF-8

The kernel ends a process that exceeds its CPU limit.

    python sandbox_worker.py MEMORY_BYTES MAX_PIXELS
"""

from __future__ import annotations

import contextlib
import io
import os
import signal
import struct
import sys
import time
from typing import Any, BinaryIO

REQUEST, RESPONSE = struct.Struct("<II"), struct.Struct("<IIB")
OK, NOT_AN_IMAGE, OUT_OF_MEMORY, DAMAGED = range(4)  # status
MAX_MESSAGE = 120  # maximum number of characters in a decoder's message
# Formats that Pillow decodes itself. For some other formats, Pillow runs external programs.
FORMATS = (
    "JPEG",
    "PNG",
    "WEBP",
    "GIF",
    "TIFF",
    "BMP",
    "DIB",
    "AVIF",
    "PPM",
    "TGA",
    "ICO",
    "JPEG2000",
    "PCX",
)


def decode(data: bytes, max_pixels: int) -> tuple[int, str]:
    """Decode every frame of an image; return a status and an error message.

    max_pixels  maximum number of pixels per frame
    """
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # the number of pixels is checked below
    Image.init()
    width = height = 0
    try:
        formats = [name for name in FORMATS if name in Image.OPEN]
        with Image.open(io.BytesIO(data), formats=formats) as image:
            frame = 0
            while True:
                width, height = image.size
                if width * height > max_pixels:
                    return DAMAGED, f"{width}×{height} pixels; the maximum is {max_pixels}"
                image.load()
                frame += 1
                if not _seek(image, frame):
                    return OK, ""
    except UnidentifiedImageError:
        return NOT_AN_IMAGE, "not an image"
    except MemoryError:
        return OUT_OF_MEMORY, f"{width}×{height} pixels; decoding needs too much memory"
    except Exception as error:  # Pillow's decoders may raise any error for damaged data
        return DAMAGED, str(error)[:MAX_MESSAGE] or type(error).__name__


def _seek(image: Any, frame: int) -> bool:
    """Go to a frame or a page of an image; return False after the last frame or page."""
    if not getattr(image, "is_animated", False):  # some Pillow plugins lack this attribute
        return False
    try:
        image.seek(frame)
    except EOFError:
        return False
    return True


def serve(source: BinaryIO, sink: BinaryIO, max_pixels: int) -> None:
    """Process requests until the input ends."""
    while len(request := source.read(REQUEST.size)) == REQUEST.size:
        size, seconds = REQUEST.unpack(request)
        data = source.read(size)
        if len(data) < size:
            return
        start = time.process_time()
        # The limit includes the CPU time of all earlier requests.
        _limit("RLIMIT_CPU", int(start + seconds) + 1)
        status, message = decode(data, max_pixels)
        text = message.encode("utf-8", "replace")
        cpu_us = min(int(1e6 * (time.process_time() - start)), (1 << 32) - 1)
        sink.write(RESPONSE.pack(cpu_us, len(text), status) + text)
        sink.flush()


def _limit(name: str, soft: int, hard: int | None = None) -> None:
    """Set a resource limit of this process, if the system supports it.

    Without these limits, the parent process limits the time, and `max_pixels` limits the memory.

    name  name in the module `resource`, such as RLIMIT_CPU
    hard  None keeps the hard limit
    """
    if sys.platform == "win32":
        return
    import resource

    kind = getattr(resource, name)
    if hard is None:
        hard = resource.getrlimit(kind)[1]
    with contextlib.suppress(OSError, ValueError):
        resource.setrlimit(kind, (soft, hard))


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent process handles SIGINT
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # output that a library prints must not corrupt the protocol
    memory = int(sys.argv[1])
    _limit("RLIMIT_AS", memory, memory)
    _limit("RLIMIT_CORE", 0, 0)  # no core dumps
    serve(sys.stdin.buffer, responses, int(sys.argv[2]))
