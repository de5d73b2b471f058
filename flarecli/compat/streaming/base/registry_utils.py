"""Registry of stream classes by name, for `StreamingDataset(stream_name=…)`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any

from flarecli.errors import UsageError

__all__ = ["Registry", "construct_from_registry"]


class Registry:
    """Registry of classes and functions by name. `register` can be used as a decorator."""

    def __init__(self) -> None:
        self._functions: dict[str, Callable[..., Any]] = {}

    def register(self, name: str, *, func: Callable[..., Any] | None = None) -> Callable[..., Any]:
        """Register a class or a function; without `func`, return a decorator."""

        def add(function: Callable[..., Any]) -> Callable[..., Any]:
            self._functions[name] = function
            return function

        return add if func is None else add(func)

    def get(self, name: str) -> Callable[..., Any]:
        """Return the class or function registered as `name`.

        raises  UsageError (a ValueError) for an unknown name
        """
        if name not in self._functions:
            raise UsageError(
                f"no stream is registered as {name!r:.60}",
                hint=f"Choose a registered name: {', '.join(sorted(self._functions))}.",
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
    """Call the class or function that is registered as `name`, and return the result.

    partial_function          if True, a function is not called; the result is a `functools.partial`
                              of the function. A class is always called
    pre_validation_function   required base class, or function that checks the class or function
    post_validation_function  function that checks the result
    kwargs                    arguments of the class or function
    raises                    UsageError for an unknown name, or for a class without the required
                              base class; errors of the called functions
    """
    registered = registry.get(name)
    if isinstance(pre_validation_function, type):
        if not (isinstance(registered, type) and issubclass(registered, pre_validation_function)):
            raise UsageError(
                f"Expected {name:.60} to be of type {pre_validation_function.__name__}"
            )
    elif callable(pre_validation_function):
        pre_validation_function(registered)
    elif pre_validation_function is not None:
        raise UsageError(
            "Expected pre_validation_function to be a callable or a type, "
            f"but got {type(pre_validation_function).__name__}"
        )
    if not callable(registered):
        raise UsageError(
            f"Expected {name:.60} to be a class or function, but got {type(registered).__name__}"
        )
    bound = dict(kwargs or {})
    is_call = isinstance(registered, type) or not partial_function
    result = registered(**bound) if is_call else partial(registered, **bound)
    if post_validation_function is not None:
        post_validation_function(result)
    return result
