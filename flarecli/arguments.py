"""Arguments of public functions: addresses, names, type checks, and declared options.

Options are fields of an `Options` class. The Python function, the command line, the `FLARE_*`
variables and the option tables of the docs are generated from these fields.
"""

from __future__ import annotations

import importlib
import inspect
import operator
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from functools import cache, cached_property, wraps
from typing import Any, ClassVar, NamedTuple, ParamSpec, TypeAlias, TypeVar, cast

from flarecli.errors import UsageError
from flarecli.suggest import nearest
from flarecli.units import format_list

__all__ = [
    "Address",
    "Addresses",
    "Conflict",
    "Declared",
    "GROUPS",
    "Option",
    "Options",
    "address_text",
    "address_texts",
    "check_minimum",
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
_MAX_BITS = 128  # maximum size of an integer argument
F = TypeVar("F", bound="Callable[..., Any]")
# A converter returns the converted value, or raises TypeError or ValueError.
_Converter: TypeAlias = "Callable[[Any], Any]"
_HINTS = {  # (parameter, expected type) -> hint with the Python syntax of the parameter
    (
        "cursor",
        "a Cursor",
    ): "Use the `cursor` of a run, or create one: flare.Cursor(seed, epoch, step, order).",
    ("part", "two whole numbers"): "Use part=(k, n) for the k-th of n parts, counted from 0.",
    ("rank", "a whole number"): "Use rank=R, ranks=N for rank R of N.",
    ("rank", "two whole numbers"): "Use rank=(R, N) for rank R of N.",
    ("ranks", "a whole number"): "Use rank=R, ranks=N for rank R of N.",
    ("rows", "text"): "Use a form such as '5', '10:20', '-5:', '::100' or '3,1,4'.",
    ("weights", "a dict"): "Use {dataset: weight}, such as {a: 0.7, b: 0.3}.",
}


def address_text(address: Address) -> str:
    """Return a str or a pathlib path as text. Raises UsageError for other types."""
    text = os.fspath(address) if isinstance(address, (str, os.PathLike)) else None
    if not isinstance(text, str):
        raise UsageError(
            f"expected an address, got {type(address).__name__}",
            hint="Use a str or a pathlib path.",
        )
    return text


def address_texts(addresses: Addresses) -> list[str]:
    """Return one or more addresses as a list of strings. Raises UsageError for other types."""
    if isinstance(addresses, (str, os.PathLike)):
        return [address_text(addresses)]
    try:
        items: Iterable[Any] = iter(addresses)
    except TypeError:
        items = [addresses]
    return [address_text(item) for item in items]


def name_list(names: str | Iterable[str]) -> list[str]:
    """Return names as a list; a str is one name.

    Raises UsageError for other types, such as a dict.
    """
    if isinstance(names, Mapping):
        raise UsageError(
            f"expected a list of names, got {type(names).__name__}",
            hint='Write a pair as "COLUMN:NAME".',
        )
    try:
        return list(_names(names))
    except TypeError:
        raise UsageError(f"expected a list of names, got {shown(names)}") from None


def check_pairs(flag: str, texts: object, example: str) -> None:
    """Raise UsageError if the value of an option for strings such as `KEY=VALUE` is a dict.

    example  Python code that passes strings to the option, for the hint
    """
    if isinstance(texts, Mapping):
        raise UsageError(
            f"{flag}: expected a list of strings, got {shown(texts)}",
            hint=f"Write each pair as a string, such as {example}.",
        )


def shown(value: object) -> str:
    """Format a value for a message, as one line of at most 60 characters."""
    try:
        text = " ".join(f"{value!r:.400}".split())
    except ValueError:  # Python cannot print integers with more than 4300 digits
        text = f"{type(value).__name__} with more digits than Python prints"
    return text if len(text) <= 60 else f"{text[:59]}…"


def whole(value: Any) -> int:
    """Return a Python or numpy integer as an int.

    Raises TypeError for other types, for bools, and for integers of more than 128 bits.
    """
    if type(value).__name__.startswith("bool"):
        raise TypeError("expected a number, got a bool")
    integer = operator.index(value)
    if integer.bit_length() > _MAX_BITS:
        raise TypeError(f"integer of {integer.bit_length()} bits is too large")
    return integer


def number(value: Any) -> float:
    """Return a Python or numpy number as an int or float.

    Raises TypeError for other types and for bools.
    """
    if type(value).__name__.startswith("bool") or isinstance(value, (str, bytes)):
        raise TypeError
    return value if isinstance(value, (int, float)) else float(value)


def check_minimum(minimum: float, **arguments: float | None) -> None:
    """Raise UsageError for the first argument below a minimum. Arguments may be None."""
    for name, value in arguments.items():
        if value is not None and not value >= minimum:  # `not >=` rejects NaN too
            raise UsageError(f"{name}: expected at least {minimum}, got {shown(value)}")


def checked(function: F) -> F:
    """Decorate a function so that its arguments are checked against their annotations.

    Integers, numbers, strings, bools, lists of names, pairs of integers, dicts, functions and
    classes are checked; other annotations accept any value. numpy numbers become Python numbers.
    The decorated function raises UsageError with the parameter, the expected type and the value.
    """
    names = function.__code__.co_varnames[: function.__code__.co_argcount]
    checks: dict[str, _TypeCheck] = {}

    @wraps(function)
    def call(*args: Any, **named: Any) -> Any:
        if not checks:  # annotations may name classes that are defined after the decoration
            for name, kind in function.__annotations__.items():
                checks[name] = _TypeCheck(name, kind, function.__globals__)
        values = [check(name, value) for name, value in zip(names, args, strict=False)]
        return function(
            *values,
            *args[len(names) :],
            **{name: check(name, value) for name, value in named.items()},
        )

    def check(name: str, value: Any) -> Any:
        return checks[name].convert(value) if name in checks else value

    return call  # type: ignore[return-value]


class _TypeCheck:
    """Type check for one parameter: converters to try in order, and their descriptions.

    Without converters, any value is accepted.
    """

    def __init__(self, name: str, annotation: str, space: Mapping[str, Any]) -> None:
        found = [
            ("", _instance(type(None)))
            if kind == "None"
            else _KINDS.get(kind) or _of_class(kind, space)
            for kind in _alternatives(annotation)
        ]
        self._name = name
        self._converters = [item for item in found if item] if all(found) else []
        kinds = [kind for kind, _ in self._converters if kind]
        if "a number" in kinds and "a whole number" in kinds:
            kinds.remove("a whole number")
        self._expected = " or ".join(kinds)

    def convert(self, value: Any) -> Any:
        """Convert the value to the parameter's type. Raises UsageError if the conversion fails."""
        for _, converter in self._converters:
            try:
                return converter(value)
            except (TypeError, ValueError, OverflowError):
                continue
        if not self._converters:
            return value
        raise UsageError(
            f"{self._name}: expected {self._expected}, got {shown(value)}",
            hint=_HINTS.get((self._name, self._expected), ""),
        )


def _alternatives(annotation: str) -> list[str]:
    """Split an annotation at each `|` outside brackets."""
    out, depth = [""], 0
    for sign in annotation:
        depth += (sign == "[") - (sign == "]")
        if sign == "|" and not depth:
            out.append("")
        else:
            out[-1] += sign
    return [kind.strip() for kind in out]


def _of_class(kind: str, space: Mapping[str, Any]) -> tuple[str, _Converter] | None:
    """Return the description and the converter for an annotation that names a class.

    The result is None if the class is not in the namespace `space`.
    """
    if kind.startswith("Mapping["):
        return "a dict", _instance(Mapping)
    if kind.startswith("Callable["):
        return "a function", _valid(callable)
    if kind.startswith("Sequence[Callable["):
        return "a list of functions", _valid(_are_functions)
    found = space.get(kind)
    if not isinstance(found, type):
        return None
    return f"a{'n' * (kind[0] in 'AEIOU')} {kind}", _instance(found)


def _valid(is_valid: Callable[[Any], bool]) -> _Converter:
    """Return a converter that returns valid values unchanged."""

    def convert(value: Any) -> Any:
        if not is_valid(value):
            raise TypeError
        return value

    return convert


def _instance(kind: type) -> _Converter:
    return _valid(lambda value: isinstance(value, kind))


def _truth(value: Any) -> bool:
    if type(value).__name__.startswith("bool") or whole(value) in (0, 1):
        return bool(value)
    raise TypeError


def _names(value: Any) -> Any:
    """Return an iterable of names as a list; return lists, tuples and dicts unchanged."""
    if isinstance(value, (str, Mapping)):
        return [value] if isinstance(value, str) else value
    names = value if isinstance(value, (list, tuple)) else list(value)
    if not all(isinstance(name, str) for name in names):
        raise TypeError
    return names


def _are_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(
        isinstance(text, str) for pair in value.items() for text in pair
    )


def _pair(value: Any) -> tuple[int, int]:
    first, second = value if isinstance(value, (list, tuple)) else ()
    return whole(first), whole(second)


def _are_functions(value: Any) -> bool:
    return isinstance(value, (list, tuple)) and all(map(callable, value))


def _is_file(value: Any) -> bool:
    return hasattr(value, "read") or hasattr(value, "write")


_KINDS: dict[str, tuple[str, _Converter]] = {
    "IO[bytes]": ("an open file", _valid(_is_file)),
    "Mapping[str, str]": ("a dict of strings", _valid(_are_texts)),
    "Sequence[str]": ("a list of names", _names),
    "bool": ("True or False", _truth),
    "float": ("a number", number),
    "int": ("a whole number", whole),
    "str": ("text", _instance(str)),
    "tuple[int, int]": ("two whole numbers", _pair),
}


GROUPS = (  # headings in the help output, in order
    "Rows",
    "Links",
    "Shards",
    "Pictures and media",
    "Run",
    "Network and cache",
    "Safety",
    "Output",
)
T = TypeVar("T")
R = TypeVar("R")
Opts = TypeVar("Opts", bound="Options")
P = ParamSpec("P")


@dataclass(frozen=True, kw_only=True)
class Option:
    """Declaration of one option, except its name, type and default.

    group          heading in the help, one of GROUPS
    help           help text; `{choices}` is replaced by the values of `choices` or `suggest`
    flags          flags in addition to `--name`; a long flag replaces `--name`
    metavar        placeholder for the value in the help; unused for switches
    parse          function that converts the command-line text to the value; for a repeatable
                   option, its argument is the list of strings
    takes_text     True if Python callers may pass the command-line text too
    choices        allowed values; any value is allowed if empty
    suggest        function that returns values for the help and for completion; other values are
                   allowed too
    complete       function that returns values for completion, if they differ from `suggest`
    takes_columns  whether the value begins with a column name, so that completion lists columns
    minimum        smallest allowed number
    maximum        largest allowed number
    is_repeatable  True if the command line may contain the option several times
    shown          default in the help, if it differs from `str(default)`
    is_everyday    whether `-h` shows the option; `--help` shows all options
    is_hidden      whether both `-h` and `--help` omit the option, because it is an alias
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
    takes_columns: bool = False
    minimum: float | None = None
    maximum: float | None = None
    is_repeatable: bool = False
    shown: str | None = None
    is_everyday: bool = False
    is_hidden: bool = False


class Conflict(NamedTuple):
    """Two options that cannot be combined.

    one, other  names of the options, in the order in which the message lists them
    reason      reason at the end of the message; empty if the reason is obvious
    hint        sentence that tells the user how to solve the problem
    unless      name of a switch; if it is set, the two options can be combined
    """

    one: str
    other: str
    reason: str = ""
    hint: str = ""
    unless: str = ""


def option(default: T, declaration: Option) -> T:
    """Return a dataclass field that declares an option and its default."""
    return field(default=default, metadata={"option": declaration})


_NO_OPTION = Option(group="", help="")  # for a field that only Python callers can set


class Declared:
    """A field of an `Options` class, with its declaration and its type check.

    space  namespace of the declaring module, to look up classes in the annotation
    """

    def __init__(
        self, name: str, default: Any, annotation: str, option: Option, space: Mapping[str, Any]
    ) -> None:
        self.name, self.default, self.option = name, default, option
        self._annotation, self._space = annotation, space

    @property
    def flags(self) -> tuple[str, ...]:
        """Return the command-line flags, the long flag first."""
        flags = self.option.flags
        if any(flag.startswith("--") for flag in flags):
            return flags
        return (f"--{self.name.replace('_', '-')}", *flags)

    @property
    def is_switch(self) -> bool:
        """Return whether the option is a switch, which has no value on the command line."""
        return isinstance(self.default, bool)

    @property
    def variable(self) -> str:
        """Return the name of the environment variable that sets the default."""
        return "FLARE_" + self.flags[0].lstrip("-").upper().replace("-", "_")

    @property
    def help(self) -> str:
        """Return the help text, including the suggested values."""
        if "{choices}" not in self.option.help:
            return self.option.help
        return self.option.help.format(
            choices=", ".join(self.option.choices or self.option.suggest())
        )

    def complete(self, start: str) -> list[str]:
        """Return the completions of `start`: the values that begin with `start`."""
        option = self.option
        values = option.choices or (option.complete or option.suggest)()
        return [value for value in values if value.startswith(start)]

    @property
    def metavar(self) -> str:
        """Return the placeholder for the value."""
        return self.option.metavar or "|".join(self.option.choices)

    @property
    def shown_default(self) -> str:
        """Return the text of the default in the help; empty if the help shows no default."""
        if self.option.shown is not None:
            return self.option.shown
        return "" if self.default in (None, (), True, False) else str(self.default)

    def parse(self, texts: Sequence[str]) -> Any:
        """Convert command-line texts to the value. Raises UsageError for invalid texts."""
        parse = self.option.parse
        if self.option.is_repeatable:
            return self._parsed(parse or list, list(texts))
        return self._parsed(parse or _text_parser(self._annotation), texts[-1])

    def _parsed(self, parse: Callable[[Any], Any], text: Any) -> Any:
        try:
            return parse(text)
        except UsageError as error:
            message = f"{self.flags[0]}: {error.message}"
            raise UsageError(message, hint=error.hint) from None

    @cached_property
    def _type_check(self) -> _TypeCheck:
        return _TypeCheck(self.name, self._annotation, self._space)

    def check(self, value: Any) -> Any:
        """Return the value, converted to its declared type; numpy numbers become Python numbers.

        raises  UsageError if the value is not allowed
        """
        option = self.option
        if option.takes_text and isinstance(value, str):
            value = self._parsed(option.parse or str, value)
        value = self._type_check.convert(value)
        if value is None:
            return value
        if option.choices and value not in option.choices:
            guess = nearest(value, option.choices)
            raise UsageError(
                f"{self.flags[0]}: expected {format_list(option.choices, 'or')}, got {shown(value)}",
                hint=f"Did you mean {guess}?" if guess else "",
            )
        low, high = option.minimum, option.maximum
        if (low is not None and not value >= low) or (high is not None and not value <= high):
            bounds = f"at least {low}" if high is None else f"{low} to {high}"
            raise UsageError(f"{self.flags[0]}: expected {bounds}, got {shown(value)}")
        return value


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class Options:
    """Base class for declarations of options. Creating an object checks its values.

    Subclasses are dataclasses with `eq=False` and `repr=False`. Otherwise, each start of the
    command line would generate `__eq__` and `__repr__` for the options of all commands. A class
    from which no objects are created also has `init=False`.

    conflicts  pairs of options that cannot be combined
    """

    conflicts: ClassVar[tuple[Conflict, ...]] = ()

    def __post_init__(self) -> None:
        for item in _declared(cast(Any, type(self))):
            object.__setattr__(self, item.name, item.check(getattr(self, item.name)))

    def keywords(self, of: type[Options]) -> dict[str, Any]:
        """Return the values of the options that the class `of` declares, as keyword arguments."""
        return {item.name: getattr(self, item.name) for item in declared(of)}

    def changed(self, names: Sequence[str]) -> list[str]:
        """Return the flags of the options in `names` whose values differ from the defaults."""
        known = {item.name: item for item in declared(type(self))}
        return [
            known[name].flags[0] for name in names if getattr(self, name) != known[name].default
        ]

    def check_conflicts(self) -> None:
        """Raise UsageError if two options cannot be combined."""
        for conflict in self.conflicts:
            flags = self.changed(conflict[:2])
            if len(flags) == 2 and not (conflict.unless and self.changed([conflict.unless])):
                reason = f", because {conflict.reason}" if conflict.reason else ""
                raise UsageError(
                    f"{' and '.join(flags)} cannot be combined{reason}", hint=conflict.hint
                )


def declared(options: type[Options]) -> tuple[Declared, ...]:
    """Return the options that a class declares, sorted by group.

    In each group, the options that `-h` shows are first.
    """

    def key(item: Declared) -> tuple[int, bool]:
        return GROUPS.index(item.option.group), not item.option.is_everyday

    found = [item for item in _declared(cast(Any, options)) if item.option is not _NO_OPTION]
    return tuple(sorted(found, key=key))


@cache
def _declared(options: type[Any]) -> tuple[Declared, ...]:
    """Return the fields of a class, including fields that are not options."""
    out = []
    for item in fields(options):
        default = None if item.default is MISSING else item.default
        option = item.metadata.get("option", _NO_OPTION)
        owner = next(
            base for base in options.__mro__ if item.name in vars(base).get("__annotations__", {})
        )
        space = vars(importlib.import_module(owner.__module__))
        out.append(Declared(item.name, default, str(item.type), option, space))
    return tuple(out)


def from_options(options: Callable[P, Opts]) -> Callable[[Callable[[Opts], R]], Callable[P, R]]:
    """Convert a function with one `Options` parameter to a function with keyword arguments.

    The result has the signature of the `Options` class, and its docstring lists the options. It
    raises UsageError for options that cannot be combined.
    """
    kind = cast("type[Options]", options)

    def decorate(run: Callable[[Opts], R]) -> Callable[P, R]:
        @wraps(run, assigned=("__module__", "__name__", "__qualname__"))
        def call(*args: P.args, **named: P.kwargs) -> R:
            try:
                signature.bind(*args, **named)
            except TypeError as error:  # the new message contains the name of the function
                raise TypeError(f"{run.__name__}() {error}") from None
            values = options(*args, **named)
            values.check_conflicts()
            return run(values)

        groups = {item.name: i for i, item in enumerate(declared(kind))}
        parameters = sorted(
            inspect.signature(kind).parameters.values(),
            key=lambda item: (item.kind, groups.get(item.name, len(groups))),
        )
        returned = run.__annotations__["return"]
        signature = inspect.Signature(parameters, return_annotation=returned)
        vars(call)["__signature__"] = signature
        lines = [f"{item.name}: {item.help}" for item in declared(kind)]
        call.__doc__ = "\n\n".join([inspect.cleandoc(run.__doc__ or ""), "\n".join(lines)])
        return call

    return decorate


def _text_parser(annotation: str) -> Callable[[str], Any]:
    """Return the parser for the command-line text of an option with this annotation."""
    kinds = _alternatives(annotation)
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
