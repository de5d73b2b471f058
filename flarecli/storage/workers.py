"""Threads of the standard library that calls are handed to; where none can be started, that is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from flarecli.errors import ReachError

__all__ = ["Workers"]

T = TypeVar("T")


class Workers(ThreadPoolExecutor):
    """A ThreadPoolExecutor whose `submit` raises ReachError where the system allows no further thread."""

    def submit(self, call: Callable[..., T], /, *given: Any, **named: Any) -> Future[T]:
        """Have a thread make a call."""
        try:
            return super().submit(call, *given, **named)
        except RuntimeError as error:
            if not str(error).startswith("can't start new thread"):
                raise
            hint = "Lower --jobs, or raise the limit on processes (`ulimit -u`)."
            raise ReachError("cannot start another thread", hint=hint) from error
