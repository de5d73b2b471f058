"""Read nested dicts of names and integers from a pickle without unpickling it.

The parser supports the twenty opcodes of protocols 2 to 5 that nested OrderedDicts of text and
integers need. It imports no class and calls no object: for `OrderedDict` it makes a dict. Any other
opcode is an error.
"""

from __future__ import annotations

from typing import Any, TypeAlias

from flarecli.errors import FormatError, UnsafeError

__all__ = ["HINT", "Folder", "read_names"]

Folder: TypeAlias = dict[str, Any]  # name -> integer, or Folder

_CLASS = ("collections", "OrderedDict")
HINT = "It is no list of files; read its records as they are instead."


def read_names(data: bytes, at: int, where: object = "") -> Folder:
    """Parse the pickle from byte `at` to the end.

    raises  UnsafeError for a pickle of other objects than names and integers; FormatError for an
            invalid one
    """
    return _Machine(data, at, where).run()


class _Machine:
    """A pickle machine: the stack, its marks and the memo; one method per opcode."""

    def __init__(self, data: bytes, at: int, where: object) -> None:
        self._data, self._at, self._where = data, at, where
        self._stack: list[Any] = []
        self._marks: list[int] = []
        self._memo: list[Any] = []

    def run(self) -> Folder:
        while (code := self._take(1)) != b".":
            do = _OPCODES.get(code)
            if do is None:
                raise UnsafeError(
                    f"opcode {code!r} of its pickle at byte {self._at - 1} makes more than names",
                    where=self._where,
                    hint=HINT,
                )
            do(self)
        if len(self._stack) != 1 or not isinstance(self._stack[0], dict) or self._marks:
            raise self._broken("does not end as one folder")
        if self._at != len(self._data):
            rest = len(self._data) - self._at
            raise self._broken(f"has {rest} byte{'s' * (rest > 1)} behind its end")
        return self._stack[0]

    def _broken(self, what: str) -> FormatError:
        return FormatError(
            f"its list of names {what}",
            where=self._where,
            hint="It was damaged or cut short; fetch or pack it again.",
        )

    def _take(self, size: int) -> bytes:
        out = self._data[self._at : self._at + size]
        if len(out) != size:
            raise self._broken(f"ends at byte {len(self._data)}, {self._at + size} are needed")
        self._at += size
        return out

    def _number(self, size: int, signed: bool = False) -> int:
        return int.from_bytes(self._take(size), "little", signed=signed)

    def _pop(self) -> Any:
        if len(self._stack) <= (self._marks[-1] if self._marks else 0):
            raise self._broken(f"takes more than there is at byte {self._at}")
        return self._stack.pop()

    def skip(self, size: int) -> None:
        self._take(size)

    def text(self, width: int) -> None:
        size = self._number(width)
        try:
            self._stack.append(self._take(size).decode("utf-8", "surrogatepass"))
        except UnicodeDecodeError:
            raise self._broken(f"has a name that is not UTF-8 at byte {self._at - size}") from None

    def integer(self, size: int, signed: bool = False) -> None:
        self._stack.append(self._number(size, signed))

    def long(self) -> None:
        self._stack.append(self._number(self._number(1), True))

    def mark(self) -> None:
        self._marks.append(len(self._stack))

    def empty(self) -> None:
        self._stack.append(())

    def memoize(self, width: int) -> None:
        if width and self._number(width) != len(self._memo):
            raise self._broken(f"remembers out of order at byte {self._at}")
        top = self._pop()
        self._stack.append(top)
        # A folder is not kept in the memo: it could be put into itself.
        self._memo.append(None if isinstance(top, dict) else top)

    def recall(self, width: int) -> None:
        which = self._number(width)
        if which >= len(self._memo) or self._memo[which] is None:
            raise self._broken(f"takes what was not remembered at byte {self._at}")
        self._stack.append(self._memo[which])

    def named_class(self) -> None:
        name, module = self._pop(), self._pop()
        self._push_class(module, name)

    def class_by_lines(self) -> None:
        module, name = (self._line() for _ in range(2))
        self._push_class(module, name)

    def _line(self) -> str:
        end = self._data.find(b"\n", self._at, self._at + 200)
        line = self._take(max(end, self._at) - self._at)
        self._take(1)
        return line.decode("utf-8", "replace")

    def _push_class(self, module: Any, name: Any) -> None:
        if (module, name) != _CLASS:
            shown = (
                f"{module}.{name}"
                if isinstance(module, str) and isinstance(name, str)
                else "no class"
            )
            raise UnsafeError(
                f"its pickle names {shown!r:.80}, and could run code with it",
                where=self._where,
                hint=HINT,
            )
        self._stack.append(_CLASS)

    def reduce(self) -> None:
        if self._pop() != () or self._pop() is not _CLASS:
            raise UnsafeError(
                f"its pickle calls something at byte {self._at - 1}", where=self._where, hint=HINT
            )
        self._stack.append({})

    def set_item(self) -> None:
        entry, name = self._pop(), self._pop()
        self._put(name, entry)

    def set_items(self) -> None:
        if not self._marks:
            raise self._broken(f"sets what it did not mark at byte {self._at}")
        start = self._marks.pop()
        entries = self._stack[start:]
        del self._stack[start:]
        if len(entries) % 2:
            raise self._broken(f"has a name without an entry at byte {self._at}")
        for i in range(0, len(entries), 2):
            self._put(entries[i], entries[i + 1])

    def _put(self, name: Any, entry: Any) -> None:
        folder = self._pop()
        self._stack.append(folder)
        if (
            not isinstance(folder, dict)
            or not isinstance(name, str)
            or not isinstance(entry, (int, dict))
        ):
            raise self._broken(f"has no name or no entry before byte {self._at}")
        if name in folder:
            raise self._broken(f"has {name!r:.80} twice in one folder")
        folder[name] = entry


_OPCODES = {
    b"\x80": lambda machine: machine.skip(1),  # PROTO
    b"\x95": lambda machine: machine.skip(8),  # FRAME
    b"\x8c": lambda machine: machine.text(1),  # SHORT_BINUNICODE
    b"X": lambda machine: machine.text(4),  # BINUNICODE
    b"K": lambda machine: machine.integer(1),  # BININT1
    b"M": lambda machine: machine.integer(2),  # BININT2
    b"J": lambda machine: machine.integer(4, True),  # BININT
    b"\x8a": _Machine.long,  # LONG1
    b"(": _Machine.mark,
    b")": _Machine.empty,  # EMPTY_TUPLE
    b"\x94": lambda machine: machine.memoize(0),
    b"q": lambda machine: machine.memoize(1),  # BINPUT
    b"r": lambda machine: machine.memoize(4),  # LONG_BINPUT
    b"h": lambda machine: machine.recall(1),  # BINGET
    b"j": lambda machine: machine.recall(4),  # LONG_BINGET
    b"\x93": _Machine.named_class,  # STACK_GLOBAL
    b"c": _Machine.class_by_lines,  # GLOBAL
    b"R": _Machine.reduce,
    b"s": _Machine.set_item,
    b"u": _Machine.set_items,
}
