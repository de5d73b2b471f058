"""`dataclass`, `field` and `replace` of the standard library for whoever is loaded at every start, made in a fifth of the time.

The library's own writes the text of six functions for each class and compiles them, and loads what takes source code apart: a tenth
of a start. Here only `__init__` is compiled. What is made is a dataclass to the library too, and to type checkers it is the library's.
"""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

__all__ = ["dataclass", "field", "replace"]

if TYPE_CHECKING:
    from dataclasses import dataclass, field, replace
else:
    _NONE = object()

    class _Field:
        """What is said of one field."""

        __slots__ = ("compare", "default", "default_factory", "name", "repr", "type")

        def __init__(self, default=_NONE, default_factory=_NONE, repr=True, compare=True):
            self.name, self.type = "", ""
            self.default, self.default_factory, self.repr, self.compare = (
                default,
                default_factory,
                repr,
                compare,
            )

    field = _Field

    class _Fields:
        """What the library knows a dataclass by, made when it first asks: that takes 150 µs, and its `replace` asks each time."""

        def __get__(self, one, cls):
            import dataclasses

            fields = []
            for mine in cls._record_fields:
                given = {"repr": mine.repr, "compare": mine.compare}
                given |= {
                    name: value
                    for name in ("default", "default_factory")
                    if (value := getattr(mine, name)) is not _NONE
                }
                fields.append((mine.name, mine.type, dataclasses.field(**given)))
            cls.__dataclass_fields__ = known = dataclasses.make_dataclass(
                cls.__name__, fields
            ).__dataclass_fields__
            return known

    def dataclass(cls=None, *, frozen=False, slots=False, eq=True):
        """Make a class of its annotations, as the library does; none of its bases may be one."""
        if cls is None:
            return lambda one: dataclass(one, frozen=frozen, slots=slots, eq=eq)
        fields = [_field_of(cls, name, kind) for name, kind in cls.__annotations__.items()]
        names = tuple(one.name for one in fields)
        made = {
            name: value
            for name, value in cls.__dict__.items()
            if name not in ("__dict__", "__weakref__")
        }
        for one in fields:
            if one.default is not _NONE and not slots:
                made[one.name] = one.default
            else:
                made.pop(one.name, None)
        made |= {
            "_record_fields": tuple(fields),
            "__dataclass_fields__": _Fields(),
            "__match_args__": names,
        }
        if slots:
            made["__slots__"] = names
        made.setdefault("__repr__", _repr([one.name for one in fields if one.repr]))
        if eq:
            _compare(made, [one.name for one in fields if one.compare], frozen)
        if frozen:
            made |= {"__setattr__": _refuse_to_set, "__delattr__": _refuse_to_delete}
        if frozen and slots:
            made |= {"__getstate__": _state, "__setstate__": _restore}
        out = type(cls)(cls.__name__, cls.__bases__, made) if slots else _changed(cls, made, fields)
        out.__qualname__ = cls.__qualname__
        out.__init__ = _init(out, fields, frozen)
        return out

    def _changed(cls, made, fields):
        for one in fields:
            if one.default is _NONE and one.name in cls.__dict__:
                delattr(cls, one.name)
        for name, value in made.items():
            if cls.__dict__.get(name, _NONE) is not value:
                setattr(cls, name, value)
        return cls

    def _field_of(cls, name, kind):
        said = cls.__dict__.get(name, _NONE)
        one = said if isinstance(said, _Field) else _Field(said)
        one.name, one.type = name, kind
        return one

    def _init(cls, fields, frozen):
        """Compile what takes the fields, in their order, by position or by name."""
        space = {"_none": _NONE, "_set": object.__setattr__}
        args, lines = ["self"], []
        for one in fields:
            name, value = one.name, one.name
            if one.default_factory is not _NONE:
                space[f"_new_{name}"] = one.default_factory
                args.append(f"{name}=_none")
                value = f"_new_{name}() if {name} is _none else {name}"
            elif one.default is not _NONE:
                space[f"_default_{name}"] = one.default
                args.append(f"{name}=_default_{name}")
            else:
                args.append(name)
            lines.append(f" _set(self, {name!r}, {value})" if frozen else f" self.{name} = {value}")
        if hasattr(cls, "__post_init__"):
            lines.append(" self.__post_init__()")
        exec(f"def __init__({', '.join(args)}):\n" + ("\n".join(lines) or " pass"), space)
        init = space["__init__"]
        init.__qualname__, init.__module__ = f"{cls.__qualname__}.__init__", cls.__module__
        init.__annotations__ = {one.name: one.type for one in fields} | {"return": None}
        return init

    def _repr(names):
        def __repr__(self):
            return f"{type(self).__qualname__}({', '.join(f'{name}={getattr(self, name)!r}' for name in names)})"

        return __repr__

    def _compare(made, names, frozen):
        if len(names) > 1:
            values = operator.attrgetter(*names)
        else:

            def values(one):
                return tuple(getattr(one, name) for name in names)

        def __eq__(self, other):
            return (
                values(self) == values(other)
                if other.__class__ is self.__class__
                else NotImplemented
            )

        def __hash__(self):
            return hash(values(self))

        made.setdefault("__eq__", __eq__)
        if "__hash__" not in made or made["__hash__"] is None:
            made["__hash__"] = __hash__ if frozen else None

    def _refuse_to_set(self, name, value):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot assign to field {name!r}")

    def _refuse_to_delete(self, name):
        from dataclasses import FrozenInstanceError

        raise FrozenInstanceError(f"cannot delete field {name!r}")

    def _state(self):
        return [getattr(self, one.name) for one in self._record_fields]

    def _restore(self, state):
        # A pickle by an earlier version lacks the fields added since: they get their defaults.
        added = [one.default for one in self._record_fields[len(state) :]]
        for one, value in zip(self._record_fields, [*state, *added], strict=True):
            object.__setattr__(self, one.name, value)

    def replace(one, /, **changes):
        """Give a copy with some fields changed, as the library does."""
        if not hasattr(type(one), "_record_fields"):  # the library's own
            from dataclasses import replace as its

            return its(one, **changes)
        for name in type(one)._record_fields:
            changes.setdefault(name.name, getattr(one, name.name))
        return type(one)(**changes)
