"""Validation of a playlist: all faults with line and column, while reading stops at the first."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from flarecli.errors import FormatError
from flarecli.playlists.read import fault, parse, read_yaml
from flarecli.playlists.schema import (
    Steps,
    address_faults,
    header_faults,
    place_of,
    split_stream,
    stream_faults,
)
from flarecli.storage import Location

__all__ = ["faults", "places"]


def faults(data: bytes, at: Location) -> list[FormatError]:
    """Return all faults of a playlist, ordered by line.

    Invalid YAML is checked up to its first error.
    """
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
        for steps, message in _stream_faults(name, value)
    ]
    if found:  # aliases and duplicate names have no nodes, so items have no places
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


def _stream_faults(name: str, value: Any) -> list[tuple[Steps, str]]:
    headers, urls = split_stream(value)
    found = [*stream_faults(name, value), *address_faults(name, urls)]
    return found + [
        (("headers", *steps), message) for steps, message in header_faults(headers, len(urls))
    ]


def places(data: bytes, paths: Sequence[Steps]) -> list[int]:
    """Return line and column, in one number, of the nodes at paths of names and positions in a
    playlist.
    """
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
