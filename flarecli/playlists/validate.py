"""All that is wrong with a playlist, where reading it stops at the first fault: each with its line and its column."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flarecli.errors import FormatError
from flarecli.playlists.read import fault, parse, read_yaml
from flarecli.playlists.schema import (
    Steps,
    halves,
    not_addresses,
    place_of,
    wrong_halves,
    wrong_headers,
)
from flarecli.storage import Location

__all__ = ["faults", "places"]


def faults(data: bytes, at: Location) -> list[FormatError]:
    """Find all that is wrong with a playlist's form, in the order of its lines: of broken YAML what comes before the break, and that."""
    try:
        parse(data, at)
        return []
    except FormatError as error:
        first = error
    found = list[FormatError]()
    try:
        root = read_yaml(data.decode(), at, {}, found)
    except (FormatError, UnicodeDecodeError) as error:
        return [*found, error if isinstance(error, FormatError) else first]
    wrong = [
        (name, steps, message)
        for name, value in (root.items() if isinstance(root, dict) else ())
        for steps, message in _wrong(name, value)
    ]
    if found:  # an alias or a name used twice: of nodes that are not there no item has a place
        marks = [place_of(root, (name, *steps)) for name, steps, _ in wrong]
    else:
        marks = places(data, [(name, *steps) for name, steps, _ in wrong])
    out = [
        *found,
        *(fault(at, mark, message) for mark, (_, _, message) in zip(marks, wrong, strict=True)),
    ]
    return sorted(out, key=_order) or [first]


def _order(error: FormatError) -> tuple[int, int]:
    return error.line or 0, error.character or 0


def _wrong(name: str, value: Any) -> list[tuple[Steps, str]]:
    headers, urls = halves(value)
    found = [*wrong_halves(name, value), *not_addresses(name, urls)]
    return found + [
        (("headers", *steps), message) for steps, message in wrong_headers(headers, len(urls))
    ]


def places(data: bytes, paths: Sequence[Steps]) -> list[int]:
    """Find line and column, in one number, of what lies at paths of names and positions in the YAML of a playlist that was read."""
    import yaml

    root: Any = (
        yaml.compose(data.decode(), getattr(yaml, "CSafeLoader", yaml.SafeLoader))
        if paths
        else None
    )
    out, names = list[int](), dict[int, dict[str, Any]]()
    for path in paths:
        node, mark = root, root.start_mark
        for step in path:
            if isinstance(step, int):
                node = node.value[step]
                mark = node.start_mark
            else:
                if id(node) not in names:
                    names[id(node)] = {key.value: (key, value) for key, value in node.value}
                key, node = names[id(node)][step]
                mark = key.start_mark
        out.append((mark.line + 1) << 32 | (mark.column + 1))
    return out
