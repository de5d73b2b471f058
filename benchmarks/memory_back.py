"""Memory of a virtual machine, brought back before something is measured; standard library only, the originals' processes use it too.

A host takes free memory away after a second or two, and whoever touches it next pays for its way back: several µs a page, more than
writing it takes. What a contender pays then depends on how long the one before it took. So free memory is touched first, outside the clock.
"""

import mmap


def bring_back(size: int) -> None:
    """Touch so many bytes of free memory and give them back at once."""
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | getattr(mmap, "MAP_POPULATE", 0)
    with mmap.mmap(-1, size, flags=flags) as area:
        if not hasattr(mmap, "MAP_POPULATE"):
            for start in range(0, size, mmap.PAGESIZE):
                area[start] = 1
