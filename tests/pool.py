"""The state of the thread pool of `flarecli.prefetch`, for tests."""

import threading
import time

from flarecli import prefetch


def is_idle(but=frozenset()):
    """Wait up to 60 seconds until no thread of the pool runs a task; return whether the pool is
    idle.
    """
    end = time.monotonic() + 60
    while time.monotonic() < end:
        threads = {one for one in threading.enumerate() if one.name == "flare-pool"} - but
        if prefetch._idle._value >= len(threads):
            return True
        time.sleep(0.001)
    return False
