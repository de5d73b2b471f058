"""Classes of streams by name, for `StreamingDataset(stream_name=…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flarecli.errors import UsageError

__all__ = ["Registry", "construct_from_registry"]


class Registry:
    """Classes or functions by name; `register` is a function or a decorator."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def register(self, name: str, *, func: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Register a class or a function; without `func`, return a decorator that does."""

        def add(one: Callable[..., Any]) -> Callable[..., Any]:
            self._functions[name] = one
            return one

        return add if func is None else add(func)

    def get(self, name: str) -> Callable[..., Any]:
        """Return the class or function of a name. Raises UsageError (a ValueError)."""
        if name not in self._functions:
            raise UsageError(
                f"no stream is registered as {name!r:.60}",
                hint=f"Registered names: {', '.join(sorted(self._functions))}.",
            )
        return self._functions[name]

    def get_all(self) -> dict[str, Callable[..., Any]]:
        """Return all registered classes and functions by name."""
        return dict(self._functions)

    def __contains__(self, name: object) -> bool:
        return name in self._functions


def construct_from_registry(
    name: str,
    registry: Registry,
    partial_function: bool = True,
    pre_validation_function: Callable[[Any], None] | type | None = None,
    post_validation_function: Callable[[Any], None] | None = None,
    kwargs: Mapping[str, Any] | None = None,
) -> Any:
    """Call the class or function that is registered under a name.

    partial_function          do not call a function, but return it with its arguments bound
    pre_validation_function   called with the class or function; or its required base class
    post_validation_function  called with the result
    raises                    UsageError; errors of these functions
    """
    found = registry.get(name)
    if isinstance(pre_validation_function, type):
        if not (isinstance(found, type) and issubclass(found, pre_validation_function)):
            raise UsageError(
                f"Expected {name:.60} to be of type {pre_validation_function.__name__}"
            )
    elif callable(pre_validation_function):
        pre_validation_function(found)
    elif pre_validation_function is not None:
        raise UsageError(
            "Expected pre_validation_function to be a callable or a type, "
            f"but got {type(pre_validation_function).__name__}"
        )
    if not callable(found):
        raise UsageError(
            f"Expected {name:.60} to be a class or function, but got {type(found).__name__}"
        )
    bound = dict(kwargs or {})
    is_call = isinstance(found, type) or not partial_function
    result = found(**bound) if is_call else partial(found, **bound)
    if post_validation_function is not None:
        post_validation_function(result)
    return result
