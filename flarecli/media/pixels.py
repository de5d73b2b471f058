"""The program of a child that decodes pictures: whatever a file does to the decoder, it does it here.

It imports nothing of the package, so that it starts as fast as Pillow does. On stdin come pictures, each behind its
length (uint32, little-endian) and the seconds of CPU that it may take (uint32), after which the kernel ends this process; on
stdout goes for each the CPU microseconds that it took (uint32), the length of an answer (uint32) and the answer in UTF-8: empty
when every pixel of every frame could be decoded, else what was wrong.

    python pixels.py MEMORY_BYTES MOST_PIXELS
"""

from __future__ import annotations

import io
import os
import signal
import struct
import sys
import time
from typing import Any, BinaryIO

_HEAD = struct.Struct("<II")
NO_MEMORY = "takes more memory than decoding may have"  # how such an answer ends
_SHOWN = 120  # characters of a decoder's own words
# what Pillow decodes by itself: some others run programs
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


def reason(data: bytes, most: int) -> str:
    """Decode a picture; say what is wrong with it, or nothing.

    most  pixels of a frame that are decoded
    """
    from PIL import Image, UnidentifiedImageError

    Image.MAX_IMAGE_PIXELS = None  # of what is opened here the pixels are counted below
    Image.init()
    size = (0, 0)
    try:
        with Image.open(
            io.BytesIO(data), formats=[name for name in FORMATS if name in Image.OPEN]
        ) as picture:
            frame = 0
            while True:
                size = picture.size
                if size[0] * size[1] > most:
                    return f"a picture of {size[0]} x {size[1]} pixels, {most} are decoded at most"
                picture.load()
                frame += 1
                if not _goes_on(picture, frame):
                    return ""
    except UnidentifiedImageError:
        return "no picture"
    except MemoryError:
        return f"a picture of {size[0]} x {size[1]} pixels {NO_MEMORY}"
    except Exception as error:  # a decoder's own word on damaged pixels, whatever its class
        return f"{str(error)[:_SHOWN] or type(error).__name__}"


def _goes_on(picture: Any, frame: int) -> bool:
    """Go to a frame of an animation, or a page. False behind the last."""
    if not getattr(picture, "is_animated", False):
        return False
    try:
        picture.seek(frame)
    except EOFError:
        return False
    return True


def serve(source: BinaryIO, sink: BinaryIO, most: int) -> None:
    """Answer for each picture until there are no more."""
    while len(head := source.read(_HEAD.size)) == _HEAD.size:
        size, seconds = _HEAD.unpack(head)
        data = source.read(size)
        if len(data) < size:
            return
        began = time.process_time()
        _limit_cpu(began + seconds)
        answer = reason(data, most).encode("utf-8", "replace")
        took = min(int(1e6 * (time.process_time() - began)), (1 << 32) - 1)
        sink.write(_HEAD.pack(took, len(answer)) + answer)
        sink.flush()


def _limit_cpu(seconds: float) -> None:
    """Have the kernel end this process when it has used so many seconds of CPU."""
    try:
        import resource

        _, hard = resource.getrlimit(resource.RLIMIT_CPU)
        resource.setrlimit(resource.RLIMIT_CPU, (int(seconds) + 1, hard))
    except (ImportError, OSError, ValueError):
        return  # the bound on time is there all the same


def _limit(memory: int) -> None:
    """Bound the memory of this process, where the system can; leave an interrupt of the terminal to the parent."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        import resource

        resource.setrlimit(resource.RLIMIT_AS, (memory, memory))
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    except (ImportError, OSError, ValueError):
        return  # the bound on pixels is there all the same


if __name__ == "__main__":
    answers = os.fdopen(os.dup(1), "wb")
    os.dup2(2, 1)  # what a library prints is no answer
    _limit(int(sys.argv[1]))
    serve(sys.stdin.buffer, answers, int(sys.argv[2]))
