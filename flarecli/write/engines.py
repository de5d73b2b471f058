"""Where the parts of a pack run, or the shards of a check: in this process, or as tasks of a Ray
cluster.

An engine takes work that does not depend on where or in which order it is done, and gives the
results as they come.
"""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from flarecli.errors import MissingLibraryError, ReachError, UsageError

__all__ = ["ENGINES", "check", "joined", "run"]

ENGINES = ("local", "ray")
# tasks handed over for each core of the cluster: enough to keep it busy, few enough to hold in
# memory
_AHEAD = 4
_ALONE = {
    "address": "local",
    "include_dashboard": False,
    "_node_ip_address": "127.0.0.1",
}  # a cluster that listens to this machine alone
_RETRIES = 20  # of one task whose worker or node was lost

A = TypeVar("A")
B = TypeVar("B")


def run(engine: str, work: Callable[[A], B], items: Iterable[A]) -> Iterator[tuple[int, B]]:
    """Do the work on each item; give the place of the item and the result, in whatever order they
    end.

    engine  one of ENGINES; `local`: here, one after another; `ray`: on the cluster that RAY_ADDRESS
            names, else one of this machine's own
    raises  MissingLibraryError without ray; ReachError if the cluster cannot be reached
            or loses the same task again and again; what the work raises
    """
    return (
        _on_ray(work, items)
        if engine == "ray"
        else ((i, work(item)) for i, item in enumerate(items))
    )


def check(engine: str) -> None:
    """Refuse an engine that there is not. Raises UsageError."""
    if engine not in ENGINES:
        raise UsageError(f"--engine is {engine!r}", hint=f"Choose one of {', '.join(ENGINES)}.")


@contextlib.contextmanager
def joined(engine: str) -> Iterator[None]:
    """Stay in the cluster while the body runs; each `run` in it uses that. Raises what `run` raises
    of the cluster.
    """
    if engine != "ray":
        yield
        return
    ray = _ray()
    began = not ray.is_initialized()
    if began:
        _join(ray)
    try:
        yield
    finally:
        if began:
            ray.shutdown()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")  # whatever it says of its types differs by version
    except ImportError:
        raise MissingLibraryError(
            "--engine ray needs ray", hint="pip install 'flarecli[ray]'"
        ) from None


def _join(ray: Any) -> None:
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # it would report to its makers
    inner: Any = importlib.import_module("ray._private.worker")
    inner._worker_logs_enabled = (
        False  # else each lost worker is a line on stdout, whatever `log_to_driver` is
    )
    try:
        ray.init(
            **({"address": address} if address else _ALONE),
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ReachError(
            f"no Ray cluster: {error}",
            hint="Look at RAY_ADDRESS, or leave it out to use this machine.",
        ) from None


def _on_ray(work: Callable[[A], B], items: Iterable[A]) -> Iterator[tuple[int, B]]:
    with joined("ray"):
        ray = _ray()
        task = ray.remote(max_retries=_RETRIES, num_cpus=1)(work)
        waiting: dict[Any, int] = {}
        try:
            ahead = _AHEAD * max(1, int(ray.cluster_resources().get("CPU", 1)))
            for i, item in enumerate(items):
                waiting[task.remote(item)] = i
                if len(waiting) >= ahead:
                    yield _ended(ray, waiting)
            while waiting:
                yield _ended(ray, waiting)
        finally:
            for one in waiting:
                ray.cancel(one)


def _ended(ray: Any, waiting: dict[Any, int]) -> tuple[int, Any]:
    (one,), _ = ray.wait(list(waiting), num_returns=1)
    i = waiting.pop(one)
    try:
        return i, ray.get(one)
    except ray.exceptions.RayTaskError as error:
        raise error.cause from None
    except ray.exceptions.RayError as error:
        raise ReachError(
            f"the cluster lost task {i} {_RETRIES} times: {type(error).__name__}",
            hint="Run it again with --resume.",
        ) from None
