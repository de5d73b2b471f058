"""Engines that run independent tasks, such as the parts of a pack, in this process or on Ray."""

from __future__ import annotations

import contextlib
import importlib
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from typing import Any, TypeVar

from flarecli.errors import MissingLibraryError, ReachError, UsageError

__all__ = ["check", "joined", "run"]

ENGINES = ("local", "ray")

_TASKS_PER_CPU = 4  # maximum number of submitted tasks per CPU of the cluster
# options for a new local cluster that listens only on the loopback interface
_LOCAL_CLUSTER = {
    "address": "local",
    "include_dashboard": False,
    "_node_ip_address": "127.0.0.1",
}
_RETRIES = 20  # maximum number of retries of a task whose worker or node was lost

A = TypeVar("A")
B = TypeVar("B")


def run(engine: str, work: Callable[[A], B], items: Iterable[A]) -> Iterator[tuple[int, B]]:
    """Call `work` with each item, and yield (position of the item, result) when the call returns.

    engine  `local`: call `work` in this process, in order; `ray`: call `work` on the cluster at
            RAY_ADDRESS, or on a new cluster on this machine
    raises  MissingLibraryError if ray is not installed; ReachError if the cluster cannot be reached
            or loses a task repeatedly; the errors of `work`
    """
    return (
        _on_ray(work, items)
        if engine == "ray"
        else ((i, work(item)) for i, item in enumerate(items))
    )


def check(engine: str) -> None:
    """Raise UsageError for an unknown engine."""
    if engine not in ENGINES:
        raise UsageError(f"--engine: expected {' or '.join(ENGINES)}, got {engine!r}")


@contextlib.contextmanager
def joined(engine: str) -> Iterator[None]:
    """Keep one connection to the cluster for all calls of `run` in the `with` block.

    raises  the errors of `run`
    """
    if engine != "ray":
        yield
        return
    ray = _ray()
    is_new = not ray.is_initialized()
    if is_new:
        _connect(ray)
    try:
        yield
    finally:
        if is_new:
            ray.shutdown()


def _ray() -> Any:
    try:
        return importlib.import_module("ray")  # untyped: type hints differ between its versions
    except ImportError:
        raise MissingLibraryError(
            "--engine ray requires ray", hint="Run `pip install 'flarecli[ray]'`."
        ) from None


def _connect(ray: Any) -> None:
    address = os.environ.get("RAY_ADDRESS")
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")  # ray sends usage statistics by default
    inner: Any = importlib.import_module("ray._private.worker")
    # otherwise, ray writes reports of lost workers to stdout, even with log_to_driver=False
    inner._worker_logs_enabled = False
    try:
        ray.init(
            **({"address": address} if address else _LOCAL_CLUSTER),
            log_to_driver=False,
            logging_level=logging.ERROR,
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise ReachError(
            f"cannot connect to a Ray cluster: {error}",
            hint="Check RAY_ADDRESS, or unset it to use this machine.",
        ) from None


def _on_ray(work: Callable[[A], B], items: Iterable[A]) -> Iterator[tuple[int, B]]:
    with joined("ray"):
        ray = _ray()
        task = ray.remote(max_retries=_RETRIES, num_cpus=1)(work)
        waiting: dict[Any, int] = {}
        try:
            limit = _TASKS_PER_CPU * max(1, int(ray.cluster_resources().get("CPU", 1)))
            for i, item in enumerate(items):
                waiting[task.remote(item)] = i
                if len(waiting) >= limit:
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
            f"task {i} was lost by the cluster {_RETRIES + 1} times: {type(error).__name__}",
            hint="Run the same command with --resume.",
        ) from None
