"""Arguments of public functions: addresses, names, type checks, and options that are declared once.

An option is a field of an `Options` class. The Python function, the command line, `FLARE_*`
variables and the option tables of the docs are all made from it.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, wraps
from typing import Any, ParamSpec, TypeAlias, TypeVar, cast

from flarecli.errors import UsageError
from flarecli.suggest import nearest

__all__ = [
    "Address",
    "Addresses",
    "Declared",
    "GROUPS",
    "Option",
    "Options",
    "address_text",
    "address_texts",
    "checked",
    "declared",
    "from_options",
    "name_list",
    "number",
    "option",
    "shown",
    "whole",
]

Address: TypeAlias = "str | os.PathLike[str]"
Addresses: TypeAlias = "Address | Sequence[Address]"
_MAX_BITS = 128  # of an integer argument
F = TypeVar("F", bound="Callable[..., Any]")
# returns the converted value, or raises TypeError or ValueError
_Taken: TypeAlias = "Callable[[Any], Any]"
_HINTS = {  # (parameter, expected type) -> hint, where Python and the command line differ
    (
        "cursor",
        "a Cursor",
    ): "Use the `cursor` of a run, or create one: flare.Cursor(seed, epoch, step, order).",
    ("part", "two whole numbers"): "Give part=(k, n): the k-th of n parts, counted from 0.",
    ("rank", "a whole number"): "Give rank=R, ranks=N: rank R of N.",
    ("rank", "two whole numbers"): "Give rank=(R, N): rank R of N.",
    ("ranks", "a whole number"): "Give rank=R, ranks=N: rank R of N.",
    ("rows", "text"): "Write rows like '5', '10:20', '-5:', '::100' or '3,1,4'.",
    ("weights", "a dict"): "Give {dataset: weight}, such as {a: 0.7, b: 0.3}.",
}


def address_text(given: Address) -> str:
    """Return an address, str or pathlib path, as text. Raises UsageError for other types."""
    text = os.fspath(given) if isinstance(given, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise UsageError(
            f"{type(given).__name__} is not an address", hint="Use a str or a pathlib path."
        )
    return text


def address_texts(given: Addresses) -> list[str]:
    """Return one or several addresses as a list of texts. Raises UsageError for other types."""
    try:
        several: Iterable[Any] = [given] if isinstance(given, (str, os.PathLike)) else iter(given)
    except TypeError:
        several = [given]
    return [address_text(one) for one in several]


def name_list(given: str | Iterable[str]) -> list[str]:
    """Return names as a list; a str is one name. Raises UsageError for other types, dicts included."""
    if isinstance(given, Mapping):
        raise UsageError(
            f"expected a list of names, got {type(given).__name__}",
            hint='Write a pair as "COLUMN:NAME".',
        )
    try:
        return list(_names(given))
    except TypeError:
        raise UsageError(f"{shown(given)} is not a list of names") from None


def shown(given: object) -> str:
    """Return the text of a value for a message: one line of at most 60 characters."""
    try:
        text = " ".join(f"{given!r:.400}".split())
    except ValueError:  # Python refuses to print integers of more than 4300 digits
        text = f"{type(given).__name__} of more digits than Python prints"
    return text if len(text) <= 60 else f"{text[:59]}…"


def whole(given: Any) -> int:
    """Return a Python or numpy integer as an int.

    Raises TypeError for other types, bools, and more than 128 bits.
    """
    if type(given).__name__.startswith("bool"):
        raise TypeError("a bool is not a number")
    value = operator.index(given)
    if value.bit_length() > _MAX_BITS:
        raise TypeError(f"an integer of {value.bit_length()} bits")
    return value


def number(given: Any) -> float:
    """Return a Python or numpy number as an int or float.

    Raises TypeError for other types and bools.
    """
    if type(given).__name__.startswith("bool") or isinstance(given, (str, bytes)):
        raise TypeError
    return given if isinstance(given, (int, float)) else float(given)


def checked(function: F) -> F:
    """Check the arguments of a function by its annotations; convert numpy numbers to Python
    numbers.

    Checked are integers, numbers, texts, bools, lists of names, pairs of integers, dicts, functions
    and classes; other annotations accept any value. The decorated function raises UsageError that
    names the parameter, the value and the expected type.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    known: dict[str, _Wanted] = {}

    @wraps(function)
    def call(*given: Any, **named: Any) -> Any:
        if not known:  # at the first call, all classes named in annotations are defined
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
    """Converters of one parameter, tried in order, and their descriptions.

    Without converters any value is accepted.
    """

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
    """Split an annotation into its alternatives."""
    out, depth = [""], 0
    for sign in annotation:
        depth += (sign == "[") - (sign == "]")
        if sign == "|" and not depth:
            out.append("")
        else:
            out[-1] += sign
    return [one.strip() for one in out]


def _of_class(kind: str, space: Mapping[str, Any]) -> tuple[str, _Taken] | None:
    """Return description and converter for a class of a module; None if it is unknown or a
    Protocol.
    """
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
    """Return names unchanged, or as a list if they are an iterator; `name_list` refuses a dict."""
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


GROUPS = (
    "Rows",
    "Links",
    "Shards",
    "Images and media",
    "Run",
    "Network and cache",
    "Safety",
    "Output",
)  # headings of the help, in this order
T = TypeVar("T")
R = TypeVar("R")
P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Option:
    """Declaration of one option, besides its name, type and default.

    group          heading in the help, one of GROUPS
    help           one or two sentences; `{choices}` is replaced by the values that `suggest`
                   returns
    flags          flags besides `--name`; a long one replaces it
    metavar        placeholder of the value in the help; not used for switches
    parse          text of the command line -> value; of a repeatable option, list of texts -> value
    takes_text     Python callers may pass the text of the command line as well
    choices        the values that are allowed; empty: any
    suggest        returns values for the help and for completion; others are allowed too
    complete       returns values for completion, if these are not the same
    minimum        smallest number allowed
    maximum        largest number allowed
    is_repeatable  may be given several times
    shown          default in the help, if it is not its `str`
    """

    group: str
    help: str
    flags: tuple[str, ...] = ()
    metavar: str = ""
    parse: Callable[[Any], Any] | None = None
    takes_text: bool = False
    choices: tuple[str, ...] = ()
    suggest: Callable[[], Sequence[str]] = tuple
    complete: Callable[[], Sequence[str]] | None = None
    minimum: float | None = None
    maximum: float | None = None
    is_repeatable: bool = False
    shown: str | None = None


def option(default: T, declaration: Option) -> T:
    """Return the field of an `Options` class for an option."""
    return field(default=default, metadata={"option": declaration})


class Declared:
    """A field of an `Options` class: its type check and, if it is an option, its declaration."""

    def __init__(self, name: str, default: Any, annotation: str, option: Option | None) -> None:
        self.name, self.default, self.option = name, default, option
        self.annotation = annotation
        self._wanted: _Wanted | None = None

    @property
    def flags(self) -> tuple[str, ...]:
        """The flags on the command line, the long one first."""
        given = self.option.flags if self.option else ()
        if any(one.startswith("--") for one in given):
            return given
        return (f"--{self.name.replace('_', '-')}", *given)

    @property
    def is_switch(self) -> bool:
        """Whether it takes no value on the command line."""
        return isinstance(self.default, bool)

    @property
    def variable(self) -> str:
        """The environment variable with its default."""
        return "FLARE_" + self.flags[0].lstrip("-").upper().replace("-", "_")

    @property
    def help(self) -> str:
        """The help text, with the suggested values."""
        if self.option is None or "{choices}" not in self.option.help:
            return self.option.help if self.option else ""
        return self.option.help.format(choices=", ".join(self.option.suggest()))

    def complete(self, start: str) -> list[str]:
        """Return the values that begin with a text, for completion."""
        option = self.option
        if option is None:
            return []
        values = option.choices or (option.complete or option.suggest)()
        return [value for value in values if value.startswith(start)]

    @property
    def metavar(self) -> str:
        """The placeholder of its value."""
        return (self.option.metavar or "|".join(self.option.choices)) if self.option else ""

    @property
    def shown_default(self) -> str:
        """The default as the help shows it; empty if there is nothing to show."""
        if self.option is not None and self.option.shown is not None:
            return self.option.shown
        return "" if self.default in (None, (), True, False) else str(self.default)

    def parse(self, texts: Sequence[str]) -> Any:
        """Return the value of the texts of the command line. Raises UsageError."""
        parse = self.option.parse if self.option else None
        if self.option is not None and self.option.is_repeatable:
            return self._parsed(parse or list, list(texts))
        return self._parsed(parse or _text_parser(self.annotation), texts[-1])

    def _parsed(self, parse: Callable[[Any], Any], given: Any) -> Any:
        try:
            return parse(given)
        except UsageError as error:
            message = f"{self.flags[0]}: {error.message}"
            raise UsageError(message, hint=error.hint) from None

    def check(self, value: Any, space: Mapping[str, Any]) -> Any:
        """Return the value in its own type, such as int for numpy's. Raises UsageError if it is not
        allowed.

        space  names of the module that declares it, to look up classes of the annotation
        """
        option = self.option
        if option is not None and option.takes_text and isinstance(value, str):
            value = self._parsed(option.parse or str, value)
        if self._wanted is None:
            self._wanted = _Wanted(self.name, self.annotation, space)
        value = self._wanted.taken(value)
        if option is None or value is None:
            return value
        if option.choices and value not in option.choices:
            guess = nearest(value, option.choices)
            raise UsageError(
                f"{self.flags[0]}: expected {_or(option.choices)}, got {shown(value)}",
                hint=f"Did you mean {guess}?" if guess else "",
            )
        low, high = option.minimum, option.maximum
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            wanted = f"at least {low}" if high is None else f"{low} to {high}"
            raise UsageError(f"{self.flags[0]}: expected {wanted}, got {shown(value)}")
        return value


@dataclass(frozen=True, kw_only=True)
class Options:
    """Base of classes that declare options. Values are checked when an object is made."""

    def __post_init__(self) -> None:
        for one, space in _declared(cast(Any, type(self))):
            object.__setattr__(self, one.name, one.check(getattr(self, one.name), space))

    def keywords(self, of: type[Options]) -> dict[str, Any]:
        """Return the options that `of` declares, as keyword arguments."""
        return {one.name: getattr(self, one.name) for one in declared(of)}


def declared(options: type[Options]) -> tuple[Declared, ...]:
    """Return the options of a class, by group."""
    found = [one for one, _ in _declared(cast(Any, options)) if one.option is not None]
    return tuple(sorted(found, key=lambda one: GROUPS.index(cast(Option, one.option).group)))


@cache
def _declared(options: type[Any]) -> tuple[tuple[Declared, Mapping[str, Any]], ...]:
    """Return every field of a class, with the names of the module that declares it."""
    out = []
    for one in fields(options):
        default = None if one.default is MISSING else one.default
        known = Declared(one.name, default, str(one.type), one.metadata.get("option"))
        owner = next(
            base for base in options.__mro__ if one.name in vars(base).get("__annotations__", {})
        )
        out.append((known, vars(importlib.import_module(owner.__module__))))
    return tuple(out)


def from_options(options: Callable[P, T]) -> Callable[[Callable[[T], R]], Callable[P, R]]:
    """Turn a function of one `Options` object into a function of keyword arguments.

    The result has the signature of the `Options` class, and its docstring lists the options.
    """
    kind = cast("type[Options]", options)

    def decorate(run: Callable[[T], R]) -> Callable[P, R]:
        @wraps(run, assigned=("__module__", "__name__", "__qualname__"))
        def call(*args: P.args, **named: P.kwargs) -> R:
            return run(options(*args, **named))

        groups = {one.name: i for i, one in enumerate(declared(kind))}
        parameters = sorted(
            inspect.signature(kind).parameters.values(),
            key=lambda one: (one.kind, groups.get(one.name, len(groups))),
        )
        returned = run.__annotations__["return"]
        vars(call)["__signature__"] = inspect.Signature(parameters, return_annotation=returned)
        lines = [f"{one.name}: {one.help}" for one in declared(kind)]
        call.__doc__ = "\n\n".join([inspect.cleandoc(run.__doc__ or ""), "\n".join(lines)])
        return call

    return decorate


def _or(names: Sequence[str]) -> str:
    return " or ".join([*([", ".join(names[:-1])] if names[1:] else []), names[-1]])


def _text_parser(annotation: str) -> Callable[[str], Any]:
    """Return the parser for text of the command line, by the type of an option."""
    kinds = _split(annotation)
    return _whole_text if "int" in kinds else _number_text if "float" in kinds else str


def _whole_text(text: str) -> int:
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"expected a whole number, got {shown(text)}") from None


def _number_text(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        raise UsageError(f"expected a number, got {shown(text)}") from None
