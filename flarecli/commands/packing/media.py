"""Media processing in a pack: resize images, read media headers, compare content with extensions.

Values are processed on threads, with bounded read-ahead. The rows are returned in order, without
the failed rows. The result depends only on the options, and on the bytes and the name of a value.
It does not depend on the number of threads. Pillow releases the GIL while it decodes, so threads
use all cores.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from typing import Any, NamedTuple, TypeAlias

import pyarrow as pa

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
from flarecli.prefetch import cpu_count, ordered_map
from flarecli.progress import Progress
from flarecli.redact import redact
from flarecli.units import format_count
from flarecli.write import Failure, key_text
from flarecli.write.fetch_links import Fetched

__all__ = ["FileKeys", "MediaColumn", "MediaOptions", "info_names", "media_columns", "processed"]

_AHEAD_BYTES = 32 << 20  # maximum size of the values in flight
_TASK_VALUES = 8  # values per task, to reduce the overhead of tasks
_MAX_TASKS = 4096  # maximum number of tasks in memory
_HEAD_BYTES = 512  # bytes that are read to detect the kind of a file
_MAX_NAMES = 3  # maximum number of file names reported for each mismatch
# encodings whose values may be complete files
_FILE_ENCODINGS = ("bytes", "jpeg", "png", "jpeg_array", "pil", "mp4", "webm")


@dataclass(frozen=True, slots=True)
class MediaOptions:
    """Processing of media files in a pack.

    info         add width, height, frames and duration as columns
    strict       treat rows as failed if the content of a file does not match its extension
    uses_ffmpeg  use FFmpeg for facts that video and audio headers do not contain; None: only if
                 `info` is set and FFmpeg is installed
    """

    resize: Resize = field(default_factory=Resize)
    info: bool = False
    strict: bool = False
    uses_ffmpeg: bool | None = None

    def __post_init__(self) -> None:
        if self.uses_ffmpeg is None:  # search for FFmpeg only once, because the search is slow
            object.__setattr__(self, "uses_ffmpeg", self.info and has_ffmpeg())

    @property
    def is_noop(self) -> bool:
        """Return True if no option is set. Even then, file types are checked against extensions."""
        return self == MediaOptions()

    @property
    def option(self) -> str | None:
        """Return the name of the first set option that needs a file column, or None."""
        options = {
            "--media-info": self.info,
            "--resize": self.resize.size is not None,
            "--quality": self.resize.quality is not None,
            "--min-size": self.resize.min_size > 0,
            "--max-aspect": self.resize.max_aspect is not None,
        }
        return next((name for name, is_set in options.items() if is_set), None)

    def recorded_options(self) -> dict[str, Any]:
        """Return the options that determine the output bytes; empty if no option is set."""
        if self.is_noop:
            return {}
        resize = {**asdict(self.resize), "size": self.resize.box and list(self.resize.box)}
        films = self.info and bool(self.uses_ffmpeg)
        return {
            "media": {"resize": resize, "info": self.info, "strict": self.strict, "films": films}
        }


class MediaColumn(NamedTuple):
    """A column in which each value is the content of a file.

    expected_kind  kind of media according to the column name or encoding; None: unknown
    has_names      whether the values were read from files or addresses, which have names
    is_media       whether the column may contain media files, which are resized and measured
    """

    name: str
    expected_kind: str | None
    has_names: bool
    is_media: bool


def media_columns(
    schema: pa.Schema, names: Sequence[str], named: Sequence[str], encode: Mapping[str, str]
) -> list[MediaColumn]:
    """Return the file columns: columns that are read from files or links, and byte columns.

    schema  schema of the rows before links are fetched, without the columns for the downloaded
            bytes
    names   columns to pack
    named   columns whose values are read from files or links
    encode  encodings chosen by the user; a column that is encoded as text or numbers has no files
    """
    columns = []
    types = dict(zip(schema.names, schema.types, strict=True))
    for name in names:
        encoding, kind_by_name = encode.get(name), kind_of(f".{name}")
        is_bytes = name in types and _is_bytes(types[name])
        if name not in named and not is_bytes:
            continue
        is_file = encoding is None or encoding in _FILE_ENCODINGS
        expected_kind = encoding if is_image(encoding) else kind_by_name
        can_be_media = is_file and (kind_by_name is None or is_media(kind_by_name))
        columns.append(MediaColumn(name, expected_kind, name in named, can_be_media))
    return columns


def _is_bytes(kind: pa.DataType) -> bool:
    return bool(
        pa.types.is_binary(kind) or pa.types.is_large_binary(kind) or pa.types.is_binary_view(kind)
    )


def info_names(columns: Sequence[MediaColumn], used: Sequence[str]) -> dict[str, dict[str, str]]:
    """Return the names of media info columns: file column -> measure -> name of the info column.

    If only one file column is measured and no other column has the name of a measure, each info
    column has the name of its measure, such as `width`. Otherwise, the name of the file column is a
    prefix, as in `image_width`.

    used    names of the other columns
    raises  UsageError if a name is already used
    """
    measured = [column.name for column in columns if column.is_media]
    is_short = len(measured) == 1 and not set(INFO_COLUMNS) & set(used)
    names = {
        column: {name: name if is_short else f"{column}_{name}" for name in INFO_COLUMNS}
        for column in measured
    }
    for name in (one for by_measure in names.values() for one in by_measure.values()):
        if name in used:
            raise UsageError(
                f"two columns would be named {name!r}",
                hint="Rename the column in the source, or omit --media-info.",
            )
    return names


class _Value(NamedTuple):
    """One processed value.

    data      new bytes; None: unchanged
    error     reason why the row fails; None: the row does not fail
    mismatch  difference between content and extension, such as `png, not jpeg`
    info      (width, height, number of frames, duration in seconds); 0 for an unknown measure
    """

    data: bytes | None
    error: str | None = None
    mismatch: str | None = None
    info: tuple[int | float, ...] = (0, 0, 0, 0.0)


_Values: TypeAlias = list[_Value | None]  # values of consecutive rows; None: null


def _process(
    value: memoryview, name: str, column: MediaColumn, options: MediaOptions, is_work: bool
) -> _Value:
    """Process one value; errors are returned, not raised.

    is_work  whether the value is resized or measured; otherwise, only its kind is detected
    """
    head = bytes(value[:_HEAD_BYTES])
    difference = None
    if column.has_names:
        difference = mismatch(name if kind_of(name) else f".{column.name}", head)
    if difference is not None and options.strict:
        error = f"content does not match the file extension: {difference}"
        return _Value(None, error, difference)
    if not is_work:
        return _Value(None, None, difference)
    data, resized = bytes(value), None
    if not options.resize.is_noop and _should_be_image(head, name, column):
        try:
            resized = resize_image(data, options.resize)
        except ValueFitError as error:
            return _Value(None, error.message, difference)
    changed = None if resized is data else resized
    if not options.info:
        return _Value(changed, None, difference)
    probed = ffprobe(data if resized is None else resized, bool(options.uses_ffmpeg))
    info = (probed.width or 0, probed.height or 0, probed.frames or 0, probed.duration or 0.0)
    return _Value(changed, None, difference, info)


def _should_be_image(head: bytes, name: str, column: MediaColumn) -> bool:
    """Return whether a value is an image according to its bytes or its name.

    A value that has a name but no known kind is treated as an image, so that damaged images fail.
    """
    kind, expected_kind = sniff(head), kind_of(name) or column.expected_kind
    return (
        is_image(kind)
        or is_image(expected_kind)
        or (column.has_names and kind is None and expected_kind is None)
    )


class _Mismatches:
    """Mismatches of content and extension, with the number of values and the first file names."""

    def __init__(self) -> None:
        self._counts, self._names = Counter[tuple[str, str]](), dict[tuple[str, str], list[str]]()

    def add(self, part: Fetched, columns: Sequence[MediaColumn], values: Sequence[_Values]) -> None:
        for column, column_values in zip(columns, values, strict=True):
            for row, value in enumerate(column_values):
                if value is not None and value.mismatch is not None:
                    self._counts[column.name, value.mismatch] += 1
                    names = self._names.setdefault((column.name, value.mismatch), [])
                    if len(names) < _MAX_NAMES:
                        names.append(redact(_file_name(part, column, row)))

    def notes(self) -> Iterator[str]:
        for (column, difference), count in sorted(self._counts.items()):
            names = ", ".join(name for name in self._names[column, difference] if name)
            more = ", …" if count > _MAX_NAMES else ""
            verb = "is" if count == 1 else "are"
            yield f"column {column!r}: {format_count(count, 'value')} {verb} {difference}: {names}{more}"


def processed(
    parts: Generator[Fetched, None, None],
    columns: Sequence[MediaColumn],
    options: MediaOptions,
    infos: Mapping[str, Mapping[str, str]],
    keys: FileKeys,
    progress: Progress,
    jobs: int,
) -> Generator[Fetched, None, None]:
    """Yield the rows with processed media columns, in order.

    infos   names of the media info columns, as returned by `info_names`
    keys    keys that identify rows in failures
    jobs    maximum number of threads; 1: process values in the calling thread
    return  processed rows, and failures for all other rows; the media info columns (int64,
            float64) are the last columns
    """
    mismatches = _Mismatches()
    needs_work = options.info or not options.resize.is_noop

    def tasks() -> Iterator[_Task]:
        for part in parts:
            for column in columns:
                is_work = needs_work and column.is_media
                step = _TASK_VALUES if is_work else max(1, part.batch.num_rows)
                for start in range(0, max(1, part.batch.num_rows), step):
                    yield _Task(part, column, start, start + step, is_work)

    def run(task: _Task) -> tuple[_Task, _Values]:
        return task, task.run(options)

    results = ordered_map(
        run,
        tasks(),
        workers=min(jobs, cpu_count()) if needs_work and jobs > 1 else 0,
        max_items=_MAX_TASKS,
        max_bytes=_AHEAD_BYTES,
        weigh=lambda task: task.size,
    )
    values: list[_Values] = [[] for _ in columns]
    try:
        for task, some in results:
            values[columns.index(task.column)] += some
            if task.column is columns[-1] and task.stop >= task.part.batch.num_rows:
                mismatches.add(task.part, columns, values)
                yield _with_values(task.part, columns, values, infos, keys)
                values = [[] for _ in columns]
        for note in mismatches.notes():
            progress.note(note)
    finally:
        results.close()
        parts.close()


class FileKeys(NamedTuple):
    """The keys of rows, for messages about files in these rows.

    column       column of keys; None: the rows have no keys
    is_file_key  function (key, file name) that returns whether the key is the name of the file
    """

    column: str | None
    is_file_key: Callable[[str, str], bool]


class _Task(NamedTuple):
    """The task to process rows start..stop of a column.

    is_work  whether values are resized or measured; otherwise, only their kind is detected
    """

    part: Fetched
    column: MediaColumn
    start: int
    stop: int
    is_work: bool

    def _array(self) -> pa.Array:
        array = self.part.batch.column(self.column.name)
        return array.slice(self.start, self.stop - self.start)

    @property
    def size(self) -> int:
        """Return the size of the values in bytes."""
        size: int = self._array().nbytes
        return size

    def run(self, options: MediaOptions) -> _Values:
        """Process the values."""
        names = self.part.names.get(self.column.name)
        values: _Values = []
        for row, data in enumerate(raw_values(self._array()), self.start):
            name = names[row] if names else ""
            values.append(
                None if data is None else _process(data, name, self.column, options, self.is_work)
            )
        return values


def _file_name(part: Fetched, column: MediaColumn, row: int) -> str:
    names = part.names.get(column.name)
    return names[row] if names is not None else ""


def _with_values(
    part: Fetched,
    columns: Sequence[MediaColumn],
    values: Sequence[_Values],
    infos: Mapping[str, Mapping[str, str]],
    keys: FileKeys,
) -> Fetched:
    """Return the rows with the processed values."""
    failures: dict[int, Failure] = {}
    key_column = part.batch.column(keys.column) if keys.column is not None else None
    batch = part.batch
    for column, column_values in zip(columns, values, strict=True):
        for row, value in enumerate(column_values):
            if value is not None and value.error is not None and row not in failures:
                name = _file_name(part, column, row)
                key = "" if key_column is None else key_text(key_column[row])
                is_key = bool(name) and keys.is_file_key(key, name)
                shown = redact(name) or column.name
                failures[row] = Failure(
                    int(part.rows[row]),
                    key,
                    column.name,
                    "value",
                    value.error if is_key else f"{shown}: {value.error}",
                    name=shown if is_key else "",
                )
        if any(value is not None and value.data is not None for value in column_values):
            at, unchanged = batch.schema.get_field_index(column.name), batch.column(column.name)
            new = [
                unchanged[row].as_py() if value is None or value.data is None else value.data
                for row, value in enumerate(column_values)
            ]
            metadata = batch.schema.field(at).metadata
            batch = batch.set_column(
                at,
                pa.field(column.name, pa.large_binary(), metadata=metadata),
                pa.array(new, pa.large_binary()),
            )
        for i, (measure, name) in enumerate(infos.get(column.name, {}).items()):
            numbers = [0 if value is None else value.info[i] for value in column_values]
            kind = pa.float64() if measure == "duration" else pa.int64()
            batch = batch.append_column(name, pa.array(numbers, kind))
    return replace(part, batch=batch).without(failures)
