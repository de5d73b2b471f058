"""What lies where a pack is to be written: a dataset that may be replaced, or something else that may not."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable

from flarecli import playlists
from flarecli.errors import FlareError, MissingError, UsageError
from flarecli.formats import BESIDE, INDEX, SPECS, sniffed
from flarecli.playlists import PLAYLIST
from flarecli.storage import Location
from flarecli.storage.local import SCRATCH
from flarecli.write.failures import FAILED

__all__ = ["DATASET", "HINT", "refuse_others"]

DATASET = (PLAYLIST, INDEX, *SPECS)  # what --overwrite must find before it replaces a folder
_OWN = re.compile(r"(?:shard\.)?\d{5,}\..+|shardindex\.json|shards")  # what a pack calls its shards and what lies beside them, in any format
_PART = re.compile(r"\d{5,}")  # what `parts.part_name` gives
HINT = "Give --resume to go on with an unfinished pack, --overwrite to replace a dataset, or name another folder."


def refuse_others(at: Location, names: Iterable[str], shown: str, is_begun: bool) -> None:
    """Refuse to replace a folder that holds more than a dataset: replacing removes all of it.

    names     what lies in the folder: its files and folders
    is_begun  an unfinished pack lies there: nothing lists its shards yet, so their names tell; else any shard may be one of the dataset's
    raises    UsageError for the first that is no part of a dataset
    """
    own = {*DATASET, FAILED, SCRATCH, *_listed(at)}
    for name in names:
        if name not in own and not (_OWN.fullmatch(name) if is_begun else sniffed(name)) and not _is_part(at, name, shown):
            raise UsageError(f"it holds {name!r}, which is no part of a dataset", where=shown, hint="Move that elsewhere first.")


def _is_part(at: Location, name: str, shown: str) -> bool:
    """Say whether a folder is a part of a pack in parts, done or not. Raises UsageError for one that holds more than a part."""
    if not _PART.fullmatch(name):
        return False
    inside: dict[str, None] = {}
    with contextlib.suppress(MissingError):
        inside = dict.fromkeys(entry.name.partition("/")[0] for entry in (at / name).list())
    if PLAYLIST not in inside and SCRATCH not in inside:
        return False
    refuse_others(at / name, inside, f"{shown.rstrip('/')}/{name}", SCRATCH in inside)
    return True


def _listed(at: Location) -> set[str]:
    """Name what a playlist there lists, by its first folder; nothing where there is none that can be read."""
    with contextlib.suppress(FlareError):
        found = playlists.read(at / PLAYLIST)
        packed = (one for one in found.streams if one.format in (*BESIDE, "webdataset"))  # a playlist may also list what nobody packed
        names = (name for one in packed for name in (*one.urls, *one.files, *(file.name for part in one.parts for file in part)))
        parts = (name for one in found.streams for name in one.files if name.endswith(f"/{PLAYLIST}"))
        return {name.partition("/")[0] for name in (*names, *parts)}
    return set()
