"""Threads of the standard library that calls are handed to; where none can be started, that is told."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, TypeVar

from flarecli.storage.threads import none_left

__all__ = ["Workers"]

T = TypeVar("T")


class Workers(ThreadPoolExecutor):
    """A ThreadPoolExecutor whose `submit` raises ReachError where the system allows no further thread."""

    def submit(self, call: Callable[..., T], /, *given: Any, **named: Any) -> Future[T]:
        """Have a thread make a call."""
        try:
            return super().submit(call, *given, **named)
        except RuntimeError as error:
            raise none_left(error) or error from None
