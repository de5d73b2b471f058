"""What texts of the command line mean, and what is made of them: of options that stand in several commands. Nothing here knows Typer."""

from __future__ import annotations

import re
import warnings
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any, cast

from flarecli.errors import UsageError

if TYPE_CHECKING:
    from flarecli.cli.show import Printer
    from flarecli.storage import Guard, Keeper

__all__ = ["guard", "keeper", "names", "pairs", "part", "rank", "share", "unescaped"]

_OF = r"(?a)(\d{1,18})/(\d{1,18})"
_ESCAPES = {"\\t": "\t", "\\n": "\n", "\\r": "\r", "\\\\": "\\"}


def pairs(items: Iterable[str], what: str) -> dict[str, str]:
    """Read options of the form NAME=VALUE. Raises UsageError for one that is not, or a name given twice."""
    found: dict[str, str] = {}
    for item in items:
        name, equals, value = item.partition("=")
        if not (name and equals):
            raise UsageError(f"{item!r} is not {what}", hint=f"Write it like {what}.")
        if name in found:
            raise UsageError(f"{name!r} is given twice in {what}")
        found[name] = value
    return found


def names(text: str | None) -> list[str] | None:
    """Read a list with commas. Raises UsageError for an empty name."""
    if text is None:
        return None
    found = text.split(",")
    if not all(found):
        raise UsageError(
            f"{text!r} holds an empty name",
            hint="Write names with single commas between, such as id,score.",
        )
    return found


def unescaped(text: str) -> str:
    """Read `\\t`, `\\n`, `\\r` and `\\\\` as the one character each stands for: shells make those hard to type."""
    return re.sub(r"\\[tnr\\]", lambda match: _ESCAPES[match[0]], text)


def guard(
    allow_private: bool,
    allow_host: Sequence[str] | None,
    allow_local: bool,
    jobs: int | None,
    retries: int,
    timeout: float,
    deadline: float,
    max_object: int = 10**9,
    keeper: Keeper | None = None,
) -> Guard:
    """Put the safety switches and the limits of transfers together."""
    from flarecli.storage import Guard, Limits, with_reach

    given = {} if jobs is None else {"jobs": jobs}
    limits = Limits(
        retries=retries, timeout_s=timeout, deadline_s=deadline, max_bytes=max_object, **given
    )
    guard = Guard(
        allow_private=allow_private, allow_local=allow_local, limits=limits, keeper=keeper
    )
    return with_reach(guard, allow_host or ())


def keeper(printer: Printer, folder: str | None, limit: int) -> Keeper | None:
    """Make what keeps copies of what is fetched, if a folder is named; one that cannot be used is a note, never an error."""
    if not folder:
        return None
    from flarecli.cache import Cache, CacheWarning

    others: Any = warnings.showwarning

    def shown(message: Warning | str, category: type[Warning], *place: Any) -> None:
        if issubclass(category, CacheWarning):
            printer.note(str(message))
        else:
            others(message, category, *place)

    warnings.simplefilter("always", CacheWarning)  # the cache itself says it once
    warnings.showwarning = cast("Any", shown)
    return Cache(folder, limit)


def share(text: str | None, what: str = "rows") -> int | float | None:
    """Read `10` as so many rows, `1%` as a share: 0.01. Raises UsageError for anything else."""
    if text is None:
        return None
    number, percent = text.removesuffix("%"), text.endswith("%")
    try:
        found = float(number) / 100 if percent else int(number)
    except ValueError:
        found = -1
    if not 0 <= found < (1.0000001 if percent else 1 << 63):
        raise UsageError(
            f"{text!r:.60} is neither a number of {what} nor a share",
            hint="Write it like 100 or 1%.",
        )
    return found


def rank(text: str | None) -> tuple[int, int] | None:
    """Read `0/8` as rank 0 of 8. Raises UsageError for anything else."""
    if text is None:
        return None
    found = re.fullmatch(_OF, text)
    if found is None or not int(found[1]) < int(found[2]):
        raise UsageError(f"{text!r:.60} is no rank", hint="Write it like 0/8: the first of eight.")
    return int(found[1]), int(found[2])


def part(text: str | None) -> tuple[int, int] | None:
    """Read `3/7` as the third of seven: (2, 7). Raises UsageError for anything else."""
    if text is None:
        return None
    found = re.fullmatch(_OF, text)
    if found is None or not 1 <= int(found[1]) <= int(found[2]):
        raise UsageError(f"{text!r:.60} is no part", hint="Write it like 3/7: the third of seven.")
    return int(found[1]) - 1, int(found[2])
