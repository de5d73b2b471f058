"""The transfers of stores: an engine for all of a process, and single ones on the thread that asks for them.

To wake another thread and be woken costs more than a small object does. Only the first try is made here: a redirect, a fault
that may pass, a host that asks for fewer requests, all that goes on in the engine, where every transfer of the process is
known. The main thread makes none: an interrupt could not end it.
"""

from __future__ import annotations

import math
import os
import threading
import time

import pycurl

from flarecli.storage.http import response as answers
from flarecli.storage.http.engine import SLOW, Engine
from flarecli.storage.http.ip_guard import Permit
from flarecli.storage.http.request import Request
from flarecli.storage.http.response import Fault
from flarecli.storage.http.transfer import Slot
from flarecli.storage.http.window import Window
from flarecli.storage.limits import Limits

__all__ = ["shared", "transfer"]

_BUFFER = (
    512 << 10
)  # bytes handed over at once: each time the interpreter is waited for, and here there are few transfers
_KEPT = 64  # idle handles of an engine, each with its connections, for each kind
_lock = threading.Lock()
_shared: dict[Limits, Engine] = {}


def shared(limits: Limits) -> Engine:
    """Give the process's engine for stores with these limits; it lives as long as the process."""
    engine = _shared.get(limits)
    if engine is None:
        with _lock:
            engine = _shared.get(limits)
            if engine is None:
                engine = _shared[limits] = Engine(limits)
    return engine


def transfer(request: Request, engine: Engine) -> bool:
    """Fetch what is wanted and deliver it, or leave it to the engine to do so; False if nothing was done."""
    if threading.current_thread() is threading.main_thread() or engine.hosts.is_crowded(
        request.origin
    ):
        return False
    limits, permit = engine.limits, request.permit
    free = engine.idle[permit]
    try:
        slot = free.pop()
    except IndexError:
        slot = _opened(limits, permit)
    now = time.monotonic()
    request.deadline, request.attempts = now + limits.deadline_s, 1
    try:
        slot.begin(request, now)
    except (pycurl.error, ValueError):  # an address of many megabytes, say
        engine.go_on(request, answers.broken(3))
        return True
    code = 0
    try:
        slot.easy.perform()
    except pycurl.error as error:
        code = error.args[0]
    fault = _late(slot, engine) if code == pycurl.E_OPERATION_TIMEDOUT else None
    fault = fault or slot.finish(code)
    slot.rest()
    if len(free) < _KEPT:
        free.append(slot)
    if fault is None:
        engine.hosts.answered(request.origin)
        request.done = True
        request.deliver(request)
    else:
        engine.go_on(request, fault)
    return True


def _opened(limits: Limits, permit: Permit) -> Slot:
    slot = Slot(limits, permit, Window(None))
    slot.easy.setopt(pycurl.BUFFERSIZE, _BUFFER)
    slot.easy.setopt(pycurl.LOW_SPEED_LIMIT, SLOW)
    slot.easy.setopt(pycurl.LOW_SPEED_TIME, math.ceil(limits.timeout_s))
    slot.easy.setopt(pycurl.TIMEOUT_MS, min(int(1000 * limits.deadline_s), (1 << 31) - 1))
    return slot


def _late(slot: Slot, engine: Engine) -> Fault | None:
    """Say what came too late, if it was not the connection."""
    if not slot.easy.getinfo(pycurl.PRETRANSFER_TIME):
        return None
    return slot.too_late() if time.monotonic() >= slot.request.deadline else slot.too_slow()


def _forked() -> None:
    global _lock
    _lock = threading.Lock()
    _shared.clear()


os.register_at_fork(after_in_child=_forked)
