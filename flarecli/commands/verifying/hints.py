"""Hints of findings: the command that repairs the file."""

from __future__ import annotations

from dataclasses import replace

from flarecli.formats import INDEX
from flarecli.model import Finding
from flarecli.names import shell_quoted
from flarecli.playlists import PLAYLIST

__all__ = ["AGAIN", "with_command"]

AGAIN = "fetch or pack it again."  # end of all hints about damage
_COMMAND = "fetch it again, or pack it again with `flare pack … --overwrite`."
_OTHERS = (
    "reach",
    "listing",
    "streams",
    "unsafe",
)  # kinds that packing again does not repair


def with_command(found: Finding) -> Finding:
    """Return a finding with the repair command in its hint: rebuild a list of shards, else pack the
    file again.
    """
    folder, slash, name = found.address.rpartition("/")
    is_part = found.line is not None or bool(found.item)
    if (
        slash
        and name in (INDEX, PLAYLIST)
        and found.row is None
        and found.kind not in _OTHERS
        and not (is_part and found.hint)
    ):
        return replace(found, hint=again(folder, name))
    return replace(found, hint=found.hint.replace(AGAIN, _COMMAND))


def again(folder: str, name: str) -> str:
    """Return the hint that rebuilds a lost or damaged list from its shards."""
    out = "" if name == INDEX else f" -o {shell_quoted(f'{folder}/{name}')}"
    command = f"flare playlist {shell_quoted(folder)}{out}{' --reindex' * (name == INDEX)}"
    return f"Fetch it again, or write it again with `{command}`, once it is removed."
