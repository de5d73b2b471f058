"""Expansion of braces and wildcards in addresses: `shards/*.csv`, `{00000..00127}`, `{a,b}`.

This module only handles text; `storage.locator` lists files.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from flarecli.errors import UsageError

__all__ = ["WILDCARDS", "expand_braces", "split_pattern", "compile_pattern"]

WILDCARDS = "*?["
MAX_ADDRESSES = 1 << 20
MAX_DEPTH = 100  # maximum depth of nested braces
_MARKS = r"\\[{},]|[{},]"
_NUMBERS = r"(?a)([+-]?\d{1,18})\.\.([+-]?\d{1,18})(?:\.\.([+-]?\d{1,18}))?"
_PADDED = r"[+-]?0\d"
_LETTERS = r"(?a)(?:([a-z])\.\.([a-z])|([A-Z])\.\.([A-Z]))(?:\.\.([+-]?\d{1,18}))?"


def expand_braces(address: str) -> list[str]:
    r"""Expand braces as bash does: `{a,b}`, `{,.gz}`, `{0..9}`, `{00..96..8}` and `{a..f}`.

    In the result, the words of the first braces vary most slowly. Braces may be nested. Unmatched
    braces, braces without a comma or a range, and the escaped marks `\{`, `\}` and `\,` are literal
    text. Other bash syntax (`${`, quotes, `{}`, ranges between `Z` and `a`) is literal text too.

    raises  UsageError for more than MAX_ADDRESSES addresses, or more than MAX_DEPTH nested braces
    """
    marks = list(re.finditer(_MARKS, address))
    if not marks:
        return [address]
    meanings, at = _meanings(address, marks), 0
    open_ = [_Words(address)]
    for i, mark in enumerate(marks):
        words = open_[-1]
        words.text += address[at : mark.start()]
        at = mark.end()
        meaning = meanings.get(i, "")
        if not meaning:
            words.text += mark[0][-1]
        elif meaning == "{":
            open_.append(_Words(address))
            if len(open_) > MAX_DEPTH:
                raise UsageError(f"{address!r:.80} has more than {MAX_DEPTH} nested braces")
        elif meaning == ",":
            words.next()
        elif meaning == "}":
            open_.pop()
            open_[-1].append_each(words.all())
        else:  # `words.text` ends with a range, such as `{0..9`; replace it with the range's words
            words.text = words.text[: -len(meaning)]
            words.append_each(_range_words(meaning))
    words = open_[0]
    words.text += address[at:]
    return [word for word in words.all() if word]


def _meanings(address: str, marks: Sequence[re.Match[str]]) -> dict[int, str]:
    """Return the braces and commas that are part of an expansion, as index in `marks` -> meaning.

    The meaning of a mark in a list of alternatives is the mark itself: `{`, `,` or `}`. The meaning
    of the closing brace of a range is the range without this brace, such as `{0..9`.
    """
    out = dict[int, str]()
    open_: list[list[int]] = []  # for each open brace, the indexes of the brace and its commas
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
    """The words to which one list of alternatives, such as `{a,b}`, expands.

    text  literal text of the current alternative, which has not been appended to its words yet
    """

    def __init__(self, address: str) -> None:
        self._address = address
        self._before: list[str] = []  # words of the finished alternatives
        self._words, self.text = [""], ""

    def append_each(self, endings: list[str]) -> None:
        """Append every ending to every word of the current alternative.

        For example, the words a, b and the endings 1, 2 become a1, a2, b1, b2.
        """
        if len(endings) == 1:
            self.text += endings[0]
            return
        self._bound(len(self._words) * len(endings))
        heads = self._ended()
        self._words, self.text = (
            endings if heads == [""] else [head + ending for head in heads for ending in endings],
            "",
        )

    def next(self) -> None:
        """Start the next alternative."""
        self._bound(len(self._before) + len(self._words))
        self._before += self._ended()
        self._words, self.text = [""], ""

    def all(self) -> list[str]:
        """Return the words of all alternatives."""
        self.next()
        return self._before

    def _bound(self, count: int) -> None:
        if count > MAX_ADDRESSES:
            raise UsageError(
                f"{self._address!r:.80} expands to more than {MAX_ADDRESSES} addresses"
            )

    def _ended(self) -> list[str]:
        return [word + self.text for word in self._words] if self.text else self._words


def _range_words(text: str) -> list[str]:
    """Return the words of a range, ascending or descending.

    text  the range without its closing brace: `{first..last..step`
    """
    first, last, *more = text[1:].split("..")
    is_letters = first.isalpha()
    start, end = (ord(first), ord(last)) if is_letters else (int(first), int(last))
    step = abs(int(more[0])) if more else 1
    step = (step or 1) if end >= start else -(step or 1)
    numbers = range(start, end + (1 if step > 0 else -1), step)
    if len(numbers) > MAX_ADDRESSES:
        raise UsageError(f"{text}}} expands to more than {MAX_ADDRESSES} addresses")
    if is_letters:
        return [chr(n) for n in numbers]
    width = (
        max(len(first), len(last)) if any(re.match(_PADDED, word) for word in (first, last)) else 0
    )
    return [f"{n:0{width}d}" for n in numbers]


def split_pattern(address: str) -> tuple[str, list[str]]:
    """Split an address with wildcards into the folder to list and the parts to match.

    return  the folder, which may be empty, and the parts
    raises  UsageError for wildcards in a bucket name
    """
    parts = address.split("/")
    plain = next(i for i, part in enumerate(parts) if any(sign in part for sign in WILDCARDS))
    if "://" in address and plain < 3:
        raise UsageError("a bucket name cannot contain *, ? or [")
    return ("/" if parts[:plain] == [""] else "/".join(parts[:plain])), parts[plain:]


def compile_pattern(parts: Sequence[str]) -> re.Pattern[str]:
    """Compile the parts of a glob to a regular expression.

    `**` matches any number of folders; other wildcards do not match a slash. Only a part that
    starts with a dot matches hidden files. An empty last part matches a trailing slash.
    """
    out = ""
    for i, part in enumerate(parts):
        if part == "**":
            out += "(?:(?!\\.)[^/]+/)*" if i < len(parts) - 1 else "(?:(?!\\.)[^/]+/)*(?!\\.)[^/]+"
            continue
        hidden = "" if part.startswith(".") or not part else "(?!\\.)"
        signs = re.split(r"(\*+|\?|\[!?\]?[^\]]*\])", part)
        runs = [""]  # patterns for the text before, between and after the stars
        for k, sign in enumerate(signs):
            if k % 2 and sign[0] == "*":
                runs.append("")
            else:
                runs[-1] += _sign_pattern(sign) if k % 2 else re.escape(sign)
        first, *between = runs
        last = f"[^/]*{between.pop()}" if between else ""
        # Atomic groups prevent backtracking over several stars, which takes exponential time. The
        # result is the same, because the first match of the text between two stars is sufficient.
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
        raise UsageError(f"invalid pattern {'/'.join(parts)!r:.80}") from None


def _sign_pattern(sign: str) -> str:
    if sign[0] == "[":
        inside = sign[1:-1].replace("\\", "\\\\").replace("[", "\\[")
        not_in = inside.startswith("!")
        inside = inside[not_in:].replace("]", "\\]").replace("^", "\\^")
        return f"(?!/)[{'^' if not_in else ''}{inside}]"
    return "[^/]"
