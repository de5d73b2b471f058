"""What callers give: an address as text or path, one name or several, and arguments held against what a signature says of them."""

from __future__ import annotations

import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import wraps
from typing import Any, TypeAlias, TypeVar

from flarecli.errors import UsageError

__all__ = [
    "Address",
    "Addresses",
    "address_text",
    "address_texts",
    "checked",
    "name_list",
    "number",
    "shown",
    "whole",
]

Address: TypeAlias = "str | os.PathLike[str]"
Addresses: TypeAlias = "Address | Sequence[Address]"
_MAX_BITS = 128  # of an integer that a caller gives: no count, seed or size needs more
F = TypeVar("F", bound="Callable[..., Any]")
_Taken: TypeAlias = "Callable[[Any], Any]"  # gives what it is given as the function wants it, or raises TypeError or ValueError
_HINTS = {  # parameter and what it wants: how a command line has it is not how Python does
    (
        "cursor",
        "a Cursor",
    ): "Give the `cursor` of a run, or make it anew: flare.Cursor(seed, epoch, step, order).",
    ("part", "two whole numbers"): "Give part=(k, n): the k-th of n parts, counted from 0.",
    ("rank", "a whole number"): "Give rank=R, ranks=N: rank R of N.",
    ("rank", "two whole numbers"): "Give rank=(R, N): rank R of N.",
    ("ranks", "a whole number"): "Give rank=R, ranks=N: rank R of N.",
    ("rows", "text"): "Write rows like '5', '10:20', '-5:', '::100' or '3,1,4'.",
    ("weights", "a dict"): "Give {dataset: weight}, such as {a: 0.7, b: 0.3}.",
}


def address_text(given: Address) -> str:
    """Give an address, or a path of pathlib, as text. Raises UsageError for anything else."""
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise UsageError(
            f"{type(given).__name__} is no address", hint="Give text, or a path of pathlib."
        )
    return text


def address_texts(given: Addresses) -> list[str]:
    """Give one address, or several, as texts. Raises UsageError for what is neither."""
    try:
        several: Iterable[Any] = [given] if isinstance(given, (str, os.PathLike)) else iter(given)
    except TypeError:
        several = [given]
    return [address_text(one) for one in several]


def name_list(given: str | Iterable[str]) -> list[str]:
    """Give names as a list; one text is one name, not its letters. Raises UsageError for what holds none, and for a dict, whose values are lost."""
    if isinstance(given, Mapping):
        raise UsageError(
            f"a list of names is wanted, not {type(given).__name__}",
            hint='Write a pair as "COLUMN:NAME".',
        )
    try:
        return list(_names(given))
    except TypeError:
        raise UsageError(f"{shown(given)} is no list of names") from None


def shown(given: object) -> str:
    """Give what a message shows of a value: one line of 60 characters at most."""
    try:
        text = " ".join(f"{given!r:.400}".split())
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        text = f"{type(given).__name__} of more digits than Python prints"
    return text if len(text) <= 60 else f"{text[:59]}…"


def whole(given: Any) -> int:
    """Return an integer, numpy's too, as Python's int. Raises TypeError for anything else, also for a truth value and for more than 128 bits."""
    if type(given).__name__.startswith("bool"):
        raise TypeError("a truth value is no number")
    value = operator.index(given)
    if value.bit_length() > _MAX_BITS:
        raise TypeError(f"an integer of {value.bit_length()} bits")
    return value


def number(given: Any) -> float:
    """Give a number, numpy's too, as Python's. Raises TypeError for anything else, a truth value too; ValueError, OverflowError."""
    if type(given).__name__.startswith("bool") or isinstance(given, (str, bytes)):
        raise TypeError
    return given if isinstance(given, (int, float)) else float(given)


def checked(function: F) -> F:
    """Hold what callers give against the annotations of a function, before anything of it runs; numpy's numbers get to it as Python's.

    Looked at are whole numbers, numbers, texts, truth values, lists of names, pairs of whole numbers, dicts, functions, and classes: an
    annotation that names anything else takes whatever is given. The function then raises UsageError that names the parameter, the value, and
    what is wanted.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    known: dict[str, _Wanted] = {}

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if not known:  # the classes that are named are all there by now
            known.update(
                {
                    name: _Wanted(name, kind, function.__globals__)
                    for name, kind in function.__annotations__.items()
                }
            )
        values = [taken(name, value) for name, value in zip(names, given, strict=False)]
        return function(
            *values,
            *given[len(names) :],
            **{name: taken(name, value) for name, value in named.items()},
        )

    def taken(name: str, value: Any) -> Any:
        return known[name].taken(value) if name in known else value

    return call  # type: ignore[return-value]


class _Wanted:
    """What one parameter takes: the ways to take it in turn, none if all is taken, and how they are called."""

    def __init__(self, name: str, annotation: str, space: Mapping[str, Any]) -> None:
        kinds = _split(annotation)
        found = [
            ("", _none) if kind == "None" else _KINDS.get(kind) or _of_class(kind, space)
            for kind in kinds
        ]
        self._name = name
        self._ways = [one for one in found if one] if all(found) else []
        said = [one for one, _ in self._ways if one]
        self._said = " or ".join(
            one for one in said if one != "a whole number" or "a number" not in said
        )

    def taken(self, value: Any) -> Any:
        for _, way in self._ways:
            try:
                return way(value)
            except (TypeError, ValueError, OverflowError):
                continue
        if not self._ways:
            return value
        verb = "are" if self._said.endswith("numbers") else "is"
        raise UsageError(
            f"{self._name} is {shown(value)}: {self._said} {verb} wanted",
            hint=_HINTS.get((self._name, self._said), ""),
        )


def _split(annotation: str) -> list[str]:
    """Give the alternatives of an annotation."""
    out, depth = [""], 0
    for sign in annotation:
        depth += (sign == "[") - (sign == "]")
        if sign == "|" and not depth:
            out.append("")
        else:
            out[-1] += sign
    return [one.strip() for one in out]


def _of_class(kind: str, space: Mapping[str, Any]) -> tuple[str, _Taken] | None:
    """Give the way to take what is of a class that a module has; None where it has none, or one that says only what methods there are."""
    if kind.startswith("Mapping["):
        return "a dict", _instance(Mapping)
    if kind.startswith("Callable["):
        return "a function", _function
    if kind.startswith("Sequence[Callable["):
        return "a list of functions", _functions
    found = space.get(kind)
    if not isinstance(found, type) or getattr(found, "_is_protocol", False):
        return None
    return f"a{'n' * (kind[0] in 'AEIOU')} {kind}", _instance(found)


def _instance(kind: type) -> _Taken:
    def taken(given: Any) -> Any:
        if not isinstance(given, kind):
            raise TypeError
        return given

    return taken


def _none(given: Any) -> None:
    if given is not None:
        raise TypeError


def _truth(given: Any) -> bool:
    if type(given).__name__.startswith("bool") or whole(given) in (0, 1):
        return bool(given)
    raise TypeError


def _names(given: Any) -> Any:
    """Give names as they are, or as a list if they come once; a dict is looked at by `name_list`."""
    if isinstance(given, (str, Mapping)):
        return [given] if isinstance(given, str) else given
    listed = given if isinstance(given, (list, tuple)) else list(given)
    if not all(isinstance(one, str) for one in listed):
        raise TypeError
    return listed


def _texts(given: Any) -> Any:
    if not isinstance(given, Mapping) or not all(
        isinstance(one, str) for pair in given.items() for one in pair
    ):
        raise TypeError
    return given


def _pair(given: Any) -> tuple[int, int]:
    first, second = given if isinstance(given, (list, tuple)) else ()
    return whole(first), whole(second)


def _function(given: Any) -> Any:
    if not callable(given):
        raise TypeError
    return given


def _functions(given: Any) -> Any:
    if not isinstance(given, (list, tuple)) or not all(map(callable, given)):
        raise TypeError
    return given


def _file(given: Any) -> Any:
    if not hasattr(given, "read") and not hasattr(given, "write"):
        raise TypeError
    return given


_KINDS: dict[str, tuple[str, _Taken]] = {
    "IO[bytes]": ("a file that is open", _file),
    "Mapping[str, str]": ("a dict of texts", _texts),
    "Sequence[str]": ("a list of names", _names),
    "bool": ("True or False", _truth),
    "float": ("a number", number),
    "int": ("a whole number", whole),
    "str": ("text", _instance(str)),
    "tuple[int, int]": ("two whole numbers", _pair),
}
