"""Wildcards and braces in addresses: `shards/*.csv`, `**/x.parquet`, `{00000..00127}`, `{a,b}`. Nothing is listed here."""

from __future__ import annotations

import re
from collections.abc import Sequence

from flarecli.errors import UsageError

__all__ = ["SIGNS", "braced", "divided", "pattern_of"]

SIGNS = "*?["
_BRACE_LIMIT = 1 << 20  # addresses
_DEEPEST = 100  # braces in braces
_MARKS = r"\\[{},]|[{},]"
_NUMBERS = r"(?a)([+-]?\d{1,18})\.\.([+-]?\d{1,18})(?:\.\.([+-]?\d{1,18}))?"
_PADDED = r"[+-]?0\d"
_LETTERS = r"(?a)(?:([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z]))(?:\.\.([+-]?\d{1,18}))?"


def braced(address: str) -> list[str]:
    r"""Expand braces as bash does, those on the left first: `{a,b}`, one in another, `{,.gz}`, `{0..9}`, `{00..96..8}`, `{a..f}`.

    Braces that nothing closes, or with neither a comma nor a range in them, stand for themselves, as do `\{`, `\}` and `\,`. Where bash
    has rules for its own language (`${`, quotes, `{}`), or counts through the signs between `Z` and `a`, an address holds mere characters.

    raises  UsageError for more than a million addresses, or braces more than a hundred deep in one another
    """
    marks = list(re.finditer(_MARKS, address))
    if not marks:
        return [address]
    meant, at = _meant(address, marks), 0
    open_ = [_Words(address)]
    for i, mark in enumerate(marks):
        words = open_[-1]
        words.text += address[at : mark.start()]
        at = mark.end()
        what = meant.get(i, "")
        if not what:
            words.text += mark[0][-1]
        elif what == "{":
            open_.append(_Words(address))
            if len(open_) > _DEEPEST:
                raise UsageError(
                    f"{address!r:.80} has braces more than {_DEEPEST} deep in one another"
                )
        elif what == ",":
            words.next()
        elif what == "}":
            open_.pop()
            open_[-1].times(words.all())
        else:  # a range, whose text stands before its `}`
            words.text = words.text[: -len(what)]
            words.times(_run(what))
    words = open_[0]
    words.text += address[at:]
    return [one for one in words.all() if one]


def _meant(address: str, marks: Sequence[re.Match[str]]) -> dict[int, str]:
    """Say what marks expand: `{`, `,` and `}` of what has alternatives, and the text of a range at its `}`."""
    out = dict[int, str]()
    open_: list[list[int]] = []  # of each brace that is open, and its commas
    for i, mark in enumerate(marks):
        if mark[0] == "{":
            open_.append([i])
        elif mark[0] == "," and open_:
            open_[-1].append(i)
        elif mark[0] == "}" and open_:
            first, *commas = open_.pop()
            inside = address[marks[first].end() : mark.start()]
            if commas:
                out |= {first: "{", i: "}", **dict.fromkeys(commas, ",")}
            elif i == first + 1 and (
                re.fullmatch(_NUMBERS, inside) or re.fullmatch(_LETTERS, inside)
            ):
                out[i] = "{" + inside
    return out


class _Words:
    """Words in the making: those of the alternatives before, those of this one, and the text that stands behind each of these."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._before: list[str] = []
        self._words, self.text = [""], ""

    def times(self, run: list[str]) -> None:
        """Put each word of a run behind each word."""
        if len(run) == 1:
            self.text += run[0]
            return
        self._bound(len(self._words) * len(run))
        heads = self._ended()
        self._words, self.text = (
            run if heads == [""] else [head + one for head in heads for one in run],
            "",
        )

    def next(self) -> None:
        """Begin another alternative."""
        self._bound(len(self._before) + len(self._words))
        self._before += self._ended()
        self._words, self.text = [""], ""

    def all(self) -> list[str]:
        self.next()
        return self._before

    def _bound(self, count: int) -> None:
        if count > _BRACE_LIMIT:
            raise UsageError(f"{self._address!r:.80} names more than {_BRACE_LIMIT} addresses")

    def _ended(self) -> list[str]:
        return [word + self.text for word in self._words] if self.text else self._words


def _run(text: str) -> list[str]:
    """Give the words of `{first..last..step`, up or down."""
    first, last, *more = text[1:].split("..")
    is_letters = first.isalpha()
    one, end = (ord(first), ord(last)) if is_letters else (int(first), int(last))
    step = abs(int(more[0])) if more else 1
    run = range(one, end + 1, step or 1) if end >= one else range(one, end - 1, -(step or 1))
    if len(run) > _BRACE_LIMIT:
        raise UsageError(f"{text}}} names more than {_BRACE_LIMIT} addresses")
    if is_letters:
        return [chr(n) for n in run]
    width = (
        max(len(first), len(last)) if any(re.match(_PADDED, word) for word in (first, last)) else 0
    )
    return [f"{n:0{width}d}" for n in run]


def divided(address: str) -> tuple[str, list[str]]:
    """Part an address with a sign in it: the folder to list, empty where that is the one to start from, and the parts to match.

    raises  UsageError for an address whose bucket would have to be found
    """
    parts = address.split("/")
    plain = next(i for i, part in enumerate(parts) if any(sign in part for sign in SIGNS))
    if "://" in address and plain < 3:
        raise UsageError("a bucket is named without *, ? or [")
    return ("/" if parts[:plain] == [""] else "/".join(parts[:plain])), parts[plain:]


def pattern_of(parts: Sequence[str]) -> re.Pattern[str]:
    """Make an expression of a glob: `**` is any number of folders, no other sign passes a slash, and only `.…` names what is hidden.

    An empty part at the end fits what ends in a slash.
    """
    out = ""
    for i, part in enumerate(parts):
        if part == "**":
            out += "(?:(?!\\.)[^/]+/)*" if i < len(parts) - 1 else "(?:(?!\\.)[^/]+/)*(?!\\.)[^/]+"
            continue
        hidden = "" if part.startswith(".") or not part else "(?!\\.)"
        signs = re.split(r"(\*+|\?|\[!?\]?[^\]]*\])", part)
        runs = [""]  # between stars
        for k, sign in enumerate(signs):
            if k % 2 and sign[0] == "*":
                runs.append("")
            else:
                runs[-1] += _sign(sign) if k % 2 else re.escape(sign)
        first, *between = runs
        last = f"[^/]*{between.pop()}" if between else ""
        # The first place where a run fits is as good as any later one: tried again and again, a few stars would take hours
        out += (
            hidden
            + first
            + "".join(f"(?>[^/]*?{run})" for run in between)
            + last
            + ("/" if i < len(parts) - 1 else "")
        )
    try:
        return re.compile(out, re.DOTALL)
    except re.error:
        raise UsageError(f"{'/'.join(parts)!r:.80} is no pattern") from None


def _sign(sign: str) -> str:
    if sign[0] == "[":
        inside = sign[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        not_in = inside.startswith("!")
        inside = inside[not_in:].replace("]", "\\]").replace("^", "\\^")
        return f"(?!/)[{'^' if not_in else ''}{inside}]"
    return "[^/]"
