"""Images, video and audio of a pack: resize, probe, and compare with the kind in their names.

    fetched rows -> values on threads, with bounded read-ahead -> the same rows in order, rejected
    ones as failures

The result depends only on the bytes, the name and the options of a value, not on the number of
threads. Pillow releases the GIL while it decodes, so threads use all cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

from flarecli.cpus import cpu_count
from flarecli.encodings import raw_values
from flarecli.errors import UsageError, ValueFitError
from flarecli.media import (
    INFO_COLUMNS,
    Resize,
    ffprobe,
    has_ffmpeg,
    is_image,
    is_media,
    kind_of,
    mismatch,
    resize_image,
    sniff,
)
from flarecli.prefetch import ordered_map
from flarecli.progress import Progress
from flarecli.redact import redact
from flarecli.units import format_count
from flarecli.write import Failure, key_text
from flarecli.write.fetch_links import Fetched

__all__ = ["Intake", "Medium", "info_names", "media_of", "processed"]

_AHEAD_BYTES = 32 << 20  # bytes of values in flight
# values that a thread is handed at a time: handing one over costs a thirtieth of a photograph
_AT_ONCE = 8
_MAX_TASKS = 4096  # in memory at a time
_HEAD = 512  # bytes read to detect the kind of a file
_TOLD = 3  # names reported for each mismatch
_PLAIN = (
    "bytes",
    "jpeg",
    "png",
    "jpeg_array",
    "pil",
    "mp4",
    "webm",
)  # encodings whose values are files


@dataclass(frozen=True, slots=True)
class Intake:
    """What a pack asks of media.

    info    width, height, frames and duration of each become columns
    strict  content that contradicts its name is a failed row
    films   FFmpeg is asked for what the headers of films and sounds do not say; None: where it is
            to be had, of an `info`
    """

    resize: Resize = field(default_factory=Resize)
    info: bool = False
    strict: bool = False
    films: bool | None = None

    def __post_init__(self) -> None:
        if self.films is None:  # to look for a library goes through all folders of packages
            object.__setattr__(self, "films", self.info and has_ffmpeg())

    @property
    def is_noop(self) -> bool:
        """Whether nothing is asked for: then contradictions are counted all the same."""
        return self == Intake()

    @property
    def option(self) -> str | None:
        """The first option that wants files to look at; None if none was given."""
        size, asked = self.resize, [("--media-info", self.info)]
        asked += [("--resize", size.size is not None), ("--quality", size.quality is not None)]
        asked += [("--min-size", size.min_size > 0), ("--max-aspect", size.max_aspect is not None)]
        return next((name for name, is_given in asked if is_given), None)

    def recorded_options(self) -> dict[str, Any]:
        """Give what decides which bytes come out; nothing if nothing is asked for."""
        if self.is_noop:
            return {}
        asked = {
            **asdict(self),
            "resize": {**asdict(self.resize), "size": self.resize.box and list(self.resize.box)},
        }
        return {"media": {**asked, "films": self.info and bool(self.films)}}


class Medium(NamedTuple):
    """A column of files.

    promised   the kind that the column's own name or encoding promises
    has_names  each value came from a file or an address, whose name may promise a kind
    is_medium  pictures in it are resized, and all of it is measured
    """

    name: str
    promised: str | None
    has_names: bool
    is_medium: bool


def media_of(
    schema: pa.Schema, names: Sequence[str], named: Sequence[str], encode: Mapping[str, str]
) -> list[Medium]:
    """Tell which columns hold files: those that came from somewhere, and those of bytes.

    schema  of the rows before links are fetched; names of links are not in it
    names   of the columns to pack; `named` are those whose values are fetched, or read from files
    encode  encodings that were asked for: text and numbers are no files
    """
    found = []
    types = dict(zip(schema.names, schema.types, strict=True))
    for name in names:
        given, said = encode.get(name), kind_of(f".{name}")
        is_bytes = name in types and _is_bytes(types[name])
        if name not in named and not is_bytes:
            continue
        is_file = given is None or given in _PLAIN
        promised = given if is_image(given) else said
        found.append(
            Medium(name, promised, name in named, is_file and (said is None or is_media(said)))
        )
    return found


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def info_names(media: Sequence[Medium], taken: Sequence[str]) -> dict[str, dict[str, str]]:
    """Name the columns of measures: medium -> measure -> column; `width` if one column is measured,
    else `image_width`.

    raises  UsageError if the names are taken
    """
    measured = [one.name for one in media if one.is_medium]
    plain = len(measured) == 1 and not set(INFO_COLUMNS) & set(taken)
    named = {
        one: {name: name if plain else f"{one}_{name}" for name in INFO_COLUMNS} for one in measured
    }
    for name in (column for columns in named.values() for column in columns.values()):
        if name in taken:
            raise UsageError(
                f"two columns would be named {name!r}",
                hint="Rename the one of the source, or leave out --media-info.",
            )
    return named


class _Taken(NamedTuple):
    """One value: its bytes, why it is refused, what it is against its name, and its measures."""

    data: bytes | None
    refused: str | None = None
    wrong: str | None = None
    info: tuple[int | float, ...] = (0, 0, 0, 0.0)


_Run: TypeAlias = list[
    _Taken | None
]  # what became of values that follow one another; None: a null, or as it came


def _take(data: bytes, name: str, medium: Medium, asked: Intake) -> _Taken:
    """Process one value; errors are returned, not raised."""
    head = data[:_HEAD]
    wrong = _contradiction(head, name, medium)
    if wrong is not None and asked.strict:
        return _Taken(None, f"is {wrong} as its name says", wrong)
    if not medium.is_medium:
        return _Taken(data, None, wrong)
    if not asked.resize.is_noop and _is_meant(head, name, medium):
        try:
            data = resize_image(data, asked.resize)
        except ValueFitError as error:
            return _Taken(None, error.message, wrong)
    if not asked.info:
        return _Taken(data, None, wrong)
    found = ffprobe(data, bool(asked.films))
    return _Taken(
        data,
        None,
        wrong,
        (found.width or 0, found.height or 0, found.frames or 0, found.duration or 0.0),
    )


def _contradiction(head: bytes, name: str, medium: Medium) -> str | None:
    if not medium.has_names:
        return None
    return mismatch(name if kind_of(name) else f".{medium.name}", head)


def _is_meant(head: bytes, name: str, medium: Medium) -> bool:
    """Return whether a value is, or should be, an image: by its bytes, else by its name, else yes."""
    found, promised = sniff(head), kind_of(name) or medium.promised
    return (
        is_image(found)
        or is_image(promised)
        or (medium.has_names and found is None and promised is None)
    )


class _Contradictions:
    """Values that do not match the kind in their names: count, and first names."""

    def __init__(self) -> None:
        self._counts, self._names = Counter[tuple[str, str]](), dict[tuple[str, str], list[str]]()

    def add(
        self, part: Fetched, media: Sequence[Medium], found: Sequence[Sequence[_Taken | None]]
    ) -> None:
        for medium, column in zip(media, found, strict=True):
            for row, one in enumerate(column):
                if one is not None and one.wrong is not None:
                    self._counts[medium.name, one.wrong] += 1
                    names = self._names.setdefault((medium.name, one.wrong), [])
                    if len(names) < _TOLD:
                        names.append(redact(_name(part, medium, row)))

    def notes(self) -> Iterator[str]:
        for (column, wrong), count in sorted(self._counts.items()):
            names = ", ".join(name for name in self._names[column, wrong] if name) + (
                ", …" if count > _TOLD else ""
            )
            yield f"column {column!r}: {format_count(count, 'value')} {'is' if count == 1 else 'are'} {wrong}: {names}"


def processed(
    parts: Generator[Fetched, None, None],
    media: Sequence[Medium],
    asked: Intake,
    infos: dict[str, dict[str, str]],
    key: str | None,
    progress: Progress,
    jobs: int,
) -> Generator[Fetched, None, None]:
    """Bring the columns of files to what is asked for, side by side; rows come in order.

    key     the column that names rows in failures
    jobs    threads, no more than there are cores; 1: none, all is done by whoever takes the rows
    return  the same rows; those of refused files are failures; int64 and float64 columns of
            measures at the end
    """
    contradictions = _Contradictions()
    is_work = asked.info or not asked.resize.is_noop

    def tasks() -> Iterator[_Task]:
        for part in parts:
            for medium in media:
                works = is_work and medium.is_medium
                step = _AT_ONCE if works else max(1, part.batch.num_rows)
                for start in range(0, max(1, part.batch.num_rows), step):
                    yield _Task(part, medium, start, start + step, works)

    def run(task: _Task) -> tuple[_Task, _Run]:
        return task, task.run(asked)

    runs = ordered_map(
        run,
        tasks(),
        workers=min(jobs, cpu_count()) if is_work and jobs > 1 else 0,
        max_items=_MAX_TASKS,
        max_bytes=_AHEAD_BYTES,
        weigh=lambda task: task.size,
    )
    found: list[list[_Taken | None]] = [[] for _ in media]
    try:
        for task, values in runs:
            found[media.index(task.medium)] += values
            if task.medium is media[-1] and task.stop >= task.part.batch.num_rows:
                contradictions.add(task.part, media, found)
                yield _finished(task.part, media, found, infos, key)
                found = [[] for _ in media]
        for note in contradictions.notes():
            progress.note(note)
    finally:
        runs.close()
        parts.close()


class _Task(NamedTuple):
    """Rows `start` to `stop` of a column; `works` if values are converted or measured."""

    part: Fetched
    medium: Medium
    start: int
    stop: int
    works: bool

    @property
    def size(self) -> int:
        """Bytes of the column's values."""
        column = self.part.batch.column(self.medium.name)
        size: int = column.slice(self.start, self.stop - self.start).nbytes
        return size

    def run(self, asked: Intake) -> _Run:
        """Return what becomes of the values."""
        column = self.part.batch.column(self.medium.name)
        names = self.part.names.get(self.medium.name)
        return (_take_run if self.works else _looked_at)(
            column.slice(self.start, self.stop - self.start),
            names and names[self.start : self.stop],
            self.medium,
            asked,
        )


def _name(part: Fetched, medium: Medium, row: int) -> str:
    names = part.names.get(medium.name)
    return names[row] if names is not None else ""


def _looked_at(
    column: pa.Array, names: Sequence[str] | None, medium: Medium, asked: Intake
) -> _Run:
    found: _Run = []
    for row, memory in enumerate(raw_values(column)):
        head = b"" if memory is None else bytes(memory[:_HEAD])
        wrong = (
            None if memory is None else _contradiction(head, names[row] if names else "", medium)
        )
        refused = f"is {wrong} as its name says" if wrong is not None and asked.strict else None
        found.append(None if wrong is None else _Taken(None, refused, wrong))
    return found


def _take_run(column: pa.Array, names: Sequence[str] | None, medium: Medium, asked: Intake) -> _Run:
    found: _Run = []
    for row, value in enumerate(raw_values(column)):
        data = None if value is None else bytes(value)
        taken = None if data is None else _take(data, names[row] if names else "", medium, asked)
        found.append(
            taken._replace(data=None) if taken is not None and taken.data is data else taken
        )  # None: as it came
    return found


def _finished(
    part: Fetched,
    media: Sequence[Medium],
    found: list[list[_Taken | None]],
    infos: dict[str, dict[str, str]],
    key: str | None,
) -> Fetched:
    """Return the rows with the processed values."""
    refused: dict[int, Failure] = {}
    keys = part.batch.column(key) if key is not None else None
    batch = part.batch
    for medium, column in zip(media, found, strict=True):
        for row, one in enumerate(column):
            if one is not None and one.refused is not None and row not in refused:
                name = redact(_name(part, medium, row)) or medium.name
                refused[row] = Failure(
                    int(part.rows[row]),
                    "" if keys is None else key_text(keys[row]),
                    medium.name,
                    "value",
                    f"{name}: {one.refused}",
                )
        if any(one is not None and one.data is not None for one in column):
            at, old = batch.schema.get_field_index(medium.name), batch.column(medium.name)
            values = [
                old[row].as_py() if one is None or one.data is None else one.data
                for row, one in enumerate(column)
            ]
            batch = batch.set_column(
                at,
                pa.field(medium.name, pa.large_binary(), metadata=batch.schema.field(at).metadata),
                pa.array(values, pa.large_binary()),
            )
        for place, (measure, name) in enumerate(infos.get(medium.name, {}).items()):
            numbers = [0 if one is None else one.info[place] for one in column]
            batch = batch.append_column(
                name, pa.array(numbers, pa.float64() if measure == "duration" else pa.int64())
            )
    return replace(part, batch=batch).without(refused)
