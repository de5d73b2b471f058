"""Program of a sandbox process: decodes images that may crash, stall or exhaust the decoder.

It imports nothing of the package, so that it starts as fast as Pillow does. Protocol, integers
uint32 little-endian:

    stdin   size of the image, CPU seconds it may take, the image
    stdout  CPU microseconds it took, size of the message, status (1 byte), message in UTF-8

A process that uses more CPU than allowed is ended by the kernel.

    python sandbox_worker.py MEMORY_BYTES MAX_PIXELS
"""

from __future__ import annotations

import io
import os
import signal
import struct
import sys
import time
from typing import Any, BinaryIO

REQUEST, RESPONSE = struct.Struct("<II"), struct.Struct("<IIB")
OK, NOT_AN_IMAGE, OUT_OF_MEMORY, DAMAGED = range(4)  # status
MAX_MESSAGE = 120  # characters of a decoder's own message
# Formats that Pillow decodes by itself; for some others it runs programs.
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
    """Decode every frame of an image; return a status and what is wrong.

    max_pixels  per frame
    """
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # pixels are counted below
    Image.init()
    width = height = 0
    try:
        formats = [name for name in FORMATS if name in Image.OPEN]
        with Image.open(io.BytesIO(data), formats=formats) as image:
            frame = 0
            while True:
                width, height = image.size
                if width * height > max_pixels:
                    return DAMAGED, f"{width}×{height} pixels; at most {max_pixels} are decoded"
                image.load()
                frame += 1
                if not _seek(image, frame):
                    return OK, ""
    except UnidentifiedImageError:
        return NOT_AN_IMAGE, "not an image"
    except MemoryError:
        return OUT_OF_MEMORY, f"{width}×{height} pixels; decoding needs too much memory"
    except Exception as error:  # Pillow's decoders raise any class on damaged data
        return DAMAGED, str(error)[:MAX_MESSAGE] or type(error).__name__


def _seek(image: Any, frame: int) -> bool:
    """Go to a frame of an animation or a page; return False after the last one."""
    if not getattr(image, "is_animated", False):  # not every Pillow plugin has it
        return False
    try:
        image.seek(frame)
    except EOFError:
        return False
    return True


def serve(source: BinaryIO, sink: BinaryIO, max_pixels: int) -> None:
    """Answer requests until the input ends."""
    while len(request := source.read(REQUEST.size)) == REQUEST.size:
        size, seconds = REQUEST.unpack(request)
        data = source.read(size)
        if len(data) < size:
            return
        start = time.process_time()
        _limit_cpu(start + seconds)
        status, message = decode(data, max_pixels)
        text = message.encode("utf-8", "replace")
        cpu_us = min(int(1e6 * (time.process_time() - start)), (1 << 32) - 1)
        sink.write(RESPONSE.pack(cpu_us, len(text), status) + text)
        sink.flush()


def _limit_cpu(seconds: float) -> None:
    """Have the kernel end this process after so many seconds of CPU in total."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, hard))
    except (ImportError, OSError, ValueError):
        return  # the parent limits the time


def _limit_memory(memory: int) -> None:
    """Limit the address space of this process, where the system can; write no core file."""
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        return  # `max_pixels` limits it


if __name__ == "__main__":
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent handles it
    responses = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # a library that prints must not write into the protocol
    _limit_memory(int(sys.argv[1]))
    serve(sys.stdin.buffer, responses, int(sys.argv[2]))
