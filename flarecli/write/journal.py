"""The journal of a pack: one JSON line per step. A line is durable before the next step starts.

    {"flare": VERSION, "format": …, "settings": …, "source": …, "options": …}
        the first line, called the head; with `--part K/N`, it also contains "parts": N
    {"columns": [[name, encoding], …], "schema": {…}, "extensions": {…}}  when the columns are known
    {"shard": …, "rows": …, "next": …, "files": […], "failed": …}  for each durable shard

`schema` and `extensions` are the playlist headers of the same names. A line omits each header that
the playlist does not have. `next` is the position of the next shard's first row in the selection.
`failed` is the state of `failed.jsonl`. An incomplete last line is ignored.

The checksum of the source may be computed while a pack reads the source. In this case, `source` in
the head is the checksum of file sizes and footers. Each later line has a key `source` with the
number of bytes read so far, and with the checksum of these bytes. A resumed pack raises UsageError
if the source starts with different bytes.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from flarecli.errors import FormatError, UsageError
from flarecli.model import File
from flarecli.names import is_fragment
from flarecli.read import parts_hint
from flarecli.storage import Location
from flarecli.storage.append_log import LogLine, format_line, open_log
from flarecli.storage.local import SCRATCH

if TYPE_CHECKING:
    # imported only for type hints, because `ingest` loads the readers of tables
    from flarecli.ingest import SourceChecksum

__all__ = ["Journal", "key_difference"]

_CHANGED = "another source, or before the source was changed"


class Journal:
    """The journal of one target.

    head      format, settings, source and options; they must equal the head of an existing journal
    checksum  checksum of the source that is computed while the source is read; None if `head`
              contains the checksum of the complete source
    columns   (name, encoding) of each column; None if unknown
    schema    playlist header with the Arrow types of the packed table; None without such a header
    extensions  playlist header with the file extensions of the columns
    shards    journal lines of the durable shards, in order
    raises    UsageError if a different pack wrote the journal; FormatError if the journal is
              damaged; ReachError if the journal cannot be written
    """

    def __init__(
        self, at: Location, head: Mapping[str, Any], checksum: SourceChecksum | None = None
    ) -> None:
        self._at, self._checksum = at, checksum
        self._log = open_log(at / f"{SCRATCH}/journal")
        self.columns: list[tuple[str, str]] | None = None
        self.schema: Mapping[str, Any] | None = None
        self.extensions: Mapping[str, str] = {}
        self.shards: list[dict[str, Any]] = []
        self.is_kept = False  # True: an abandoned pack can be resumed even without a durable shard
        try:
            self._load(dict(head))
        except BaseException:
            self._log.close()
            raise

    def _load(self, head: dict[str, Any]) -> None:
        lines = list(self._log.entries())
        stop = lines[-1].stop if lines else 0
        if stop < self._log.size:
            self._log.cut(stop)
        if not lines:
            self._log.append(format_line(head))
            return
        first, *rest = _checked(lines, self._at)
        head = json.loads(json.dumps(head))
        # earlier versions of flare wrote the checksum of the complete source to the head
        if self._checksum is not None and first != head == {**first, "source": head["source"]}:
            head["source"], self._checksum = self._checksum.total(), None
        if first != head:
            raise self._of_another(_difference(first, head))
        sizes = {entry.name: entry.size for entry in self._at.list()} if rest else {}
        good, state = lines[0].stop, None
        for line, entry in zip(lines[1:], rest, strict=True):
            if "columns" in entry:
                self.columns = [(name, encoding) for name, encoding in entry["columns"]]
                self.schema = entry.get("schema")
                self.extensions = entry.get("extensions", {})
            elif _has_files(entry, sizes):
                self.shards.append(entry)
            else:
                break
            good, state = line.stop, entry.get("source")
        if (
            self._checksum is not None
            and good > lines[0].stop
            and not self._checksum.matches(state)
        ):
            raise self._of_another(_CHANGED)
        # a file of the next shard is missing or incomplete, so the shard is packed again
        if good < stop:
            self._log.cut(good)

    def _of_another(self, difference: str) -> UsageError:
        return UsageError(
            f"the unfinished pack was started with {difference}",
            where=self._at,
            hint=_start_again_hint(self._at),
        )

    def source_state(self) -> list[Any] | None:
        """Return the number of bytes that were read from the source so far, and their checksum.

        The result is None if the checksum of the source was computed before the pack started.
        """
        return None if self._checksum is None else self._checksum.state()

    def source_matches(self, state: Any) -> bool:
        """Return whether the source starts with the bytes that a `source_state` describes."""
        return state is None if self._checksum is None else self._checksum.matches(state)

    def record_columns(
        self,
        columns: list[tuple[str, str]],
        schema: Mapping[str, Any] | None = None,
        extensions: Mapping[str, str] = MappingProxyType({}),
    ) -> None:
        """Record the columns, and the playlist headers `schema` and `extensions`."""
        self.columns, self.schema, self.extensions = columns, schema, extensions
        entry: dict[str, Any] = {"columns": columns}
        if schema is not None:
            entry["schema"] = schema
        if extensions:
            entry["extensions"] = dict(extensions)
        self._note(entry)

    def record_shard(
        self, rows: int, next: int, files: tuple[File, ...], failed: Mapping[str, Any]
    ) -> None:
        """Record a durable shard.

        next    position of the next shard's first row in the selection
        failed  state of `failed.jsonl`
        """
        entry = {
            "shard": files[0].name,
            "rows": rows,
            "next": next,
            "files": [
                {
                    "name": f.name,
                    "size": f.size,
                    "hashes": dict(f.hashes),
                    "raw_size": f.raw_size,
                    "raw_hashes": dict(f.raw_hashes),
                }
                for f in files
            ],
            "failed": dict(failed),
        }
        self._note(entry)
        self.shards.append(entry)  # last, because `_note` may raise an error

    def _note(self, entry: dict[str, Any]) -> None:
        source = {} if self._checksum is None else {"source": self._checksum.state()}
        self._log.append(format_line({**entry, **source}))

    def close(self) -> None:
        """Close the journal. `Target.finish` deletes it."""
        self._log.close()


def _checked(lines: list[LogLine], at: Location) -> list[dict[str, Any]]:
    """Return the entries of a journal. Raises FormatError for an invalid line."""
    entries = [line.entry for line in lines if line.entry is not None]
    if len(entries) < len(lines) or not all(
        _are_columns(entry["columns"]) for entry in entries[1:] if "columns" in entry
    ):
        raise FormatError("cannot read the journal", where=at, hint=_start_again_hint(at))
    return entries


def _start_again_hint(at: Location) -> str:
    """Return the hint for a pack that cannot be resumed.

    For a pack with `--part K/N`, the hint does not name --overwrite, which would remove the parts
    of other jobs. A fragment is not packed with --overwrite, which would replace the dataset.
    """
    if any(map(is_fragment, str(at).split("/"))):
        return "Delete this folder to start again."
    return parts_hint(at) or "Use --overwrite to start again."


def _are_columns(value: Any) -> bool:
    """Return whether a value from JSON is a list of pairs of strings."""
    return isinstance(value, list) and all(
        isinstance(one, list) and len(one) == 2 and all(isinstance(text, str) for text in one)
        for one in value
    )


def _has_files(entry: dict[str, Any], sizes: Mapping[str, int]) -> bool:
    """Return whether the files in a journal line for a shard exist with the listed sizes."""
    with contextlib.suppress(Exception):
        files = [File(**file) for file in entry["files"]]
        is_valid = all(isinstance(entry[name], int) for name in ("rows", "next")) and isinstance(
            entry["failed"], dict
        )
        return is_valid and bool(files) and all(sizes.get(file.name) == file.size for file in files)
    return False


def _difference(old: Mapping[str, Any], new: Mapping[str, Any]) -> str:
    """Describe the first difference between two heads, for example `shard_bytes 1024, not 4096`."""
    for key in (*old, *new):
        one, two = old.get(key), new.get(key)
        if one == two:
            continue
        if isinstance(one, dict) and isinstance(two, dict):
            return _difference(one, two)
        if key == "source":  # a message with two checksums would not help the user
            return _CHANGED
        if key == "parts":
            wanted = "" if two is None else f", not --part K/{two}"
            return ("--part-rows" if one is None else f"--part K/{one}") + wanted
        return key_difference(key, one, two)
    return "other options"


def key_difference(key: str, old: Any, new: Any) -> str:
    """Describe a key whose values differ, for example `shard_bytes 1024, not 4096`."""
    return f"{key} {_short(old)}, not {_short(new)}"


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "…"
