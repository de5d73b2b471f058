"""The `pack` command: write rows as shards."""

from __future__ import annotations

import contextlib
import tempfile
from dataclasses import replace

from flarecli import ingest
from flarecli.arguments import address_text, address_texts, from_options
from flarecli.commands.options import PackOptions
from flarecli.commands.packing.add_column import add_column
from flarecli.commands.packing.append import append_rows
from flarecli.commands.packing.media import MediaOptions
from flarecli.commands.packing.parts import join_parts, pack_one_part, pack_parts
from flarecli.commands.packing.plan import PackTask
from flarecli.commands.packing.run import Packed, pack_task
from flarecli.commands.packing.source import StoredColumns
from flarecli.errors import FlareError, UsageError
from flarecli.media import Resize
from flarecli.progress import Progress
from flarecli.read import Dataset
from flarecli.units import format_count, format_list
from flarecli.write import check_can_pack, engines
from flarecli.write.versions import count_versions

__all__ = ["Packed", "append", "pack"]


@from_options(PackOptions)
def pack(options: PackOptions) -> Packed:
    """Pack the rows of tables, a folder or a dataset into shards, and return the result.

    The source may also be a Python object: a DataFrame, an Arrow table or stream, a dataset, or an
    iterable of dicts, whose rows are first saved to a temporary file.

    `rows` selects rows of a dataset by number; `where` and `limit` then select from these rows. A
    row that is larger than `shard_size` (None: 4 GiB) becomes a shard of its own. Raises
    UsageError, ReachError, FormatError or UnsafeError, each of which has an exit code.
    """
    check_can_pack()
    if address_text(options.out) == "-":
        raise UsageError(
            "shards are written to a folder or a bucket, not to stdout",
            hint="Specify a folder; use `./-` for a folder named `-`.",
        )
    resize = Resize(
        options.resize,
        options.resize_mode,
        options.quality,
        options.min_size,
        options.max_aspect,
    )
    media = MediaOptions(resize, options.media_info, options.strict)
    rows, sources = ingest.rows_of(options.sources)
    if rows is None:
        # a task reads the addresses several times, but an iterator can be read only once
        return _pack(replace(options, sources=address_texts(sources)), media)
    if options.engine != "local":
        raise UsageError(
            f"--engine {options.engine} cannot pack a Python object, because only this process can read the object",
            hint="Save the object to a Parquet file, and pack the file.",
        )
    if options.input is not None:
        raise UsageError("--input cannot be used with a Python object")
    columns = None
    if isinstance(sources, Dataset):
        # Without a condition, numbers that are stored as text remain text. The result is the same
        # if the user passes the address of the dataset.
        exact = options.where is None
        columns = StoredColumns(
            sources.exact if exact else sources.schema,
            {column.name: column.encoding for column in sources.columns},
            sources.types,
        )
        rows = ingest.PythonRows(rows.name, sources.scan(exact=exact))
    with tempfile.TemporaryDirectory(prefix="flare-") as folder:
        saved = replace(options, sources=[rows.save(folder)])
        return _pack(saved, media, rows.name, columns)


@from_options(PackOptions)
def append(options: PackOptions) -> Packed:
    """Append the rows of tables, a folder or a dataset to a dataset, and return the result.

    This function is equivalent to `pack` with `append=True`. It creates a new version of the
    dataset, and accepts the same sources and options as `pack`.
    """
    values = {**options.keywords(PackOptions), "append": True}
    return pack(options.sources, options.out, progress=options.progress, **values)


def _pack(
    options: PackOptions,
    media: MediaOptions,
    object_name: str = "",
    object_columns: StoredColumns | None = None,
) -> Packed:
    """Pack the sources.

    object_name     class name of the Python object whose rows were saved to the source file; empty
                    if the user passed addresses
    object_columns  columns of this object, if it is a flare dataset
    """
    task = PackTask(options, media, object_name=object_name, object_columns=object_columns)
    # check these options before anything is read or removed
    is_change = options.append or options.add_column is not None
    if not is_change:  # a change uses the settings of the dataset
        _ = task.settings
    _ = task.links, task.guard, task.nulls, task.dialect
    engines.check(options.engine)
    if options.replace and options.add_column is None:
        raise UsageError(
            "--replace needs --add-column", hint="To replace a whole dataset, use --overwrite."
        )
    if options.on_duplicate == "replace" and not options.append:
        raise UsageError(
            "`--on-duplicate replace` needs --append",
            hint="Use `--on-duplicate first` to keep only the first row of each key.",
        )
    if options.on_duplicate in ("first", "replace") and options.key is None:
        raise UsageError(
            f"`--on-duplicate {options.on_duplicate}` needs --key",
            hint="Specify the key column with --key.",
        )
    progress = options.progress or Progress()
    if options.overwrite:
        _note_versions(task, progress)
    if options.dry_run:
        try:
            return _packed(task, progress)
        except KeyboardInterrupt:
            raise KeyboardInterrupt("") from None  # there is nothing to resume
    return _packed(task, progress)


def _note_versions(task: PackTask, progress: Progress) -> None:
    """Report the versions and pins that --overwrite deletes."""
    versions_and_pins = 0, 0
    with contextlib.suppress(FlareError):  # the pack reports why it cannot write to the address
        versions_and_pins = count_versions(task.out, task.guard)
    if any(versions_and_pins):
        parts = [
            format_count(count, word)
            for count, word in zip(versions_and_pins, ("version", "pin"), strict=True)
            if count
        ]
        progress.note(f"--overwrite deletes {format_list(parts)} of the dataset")


def _packed(task: PackTask, progress: Progress) -> Packed:
    options = task.options
    if options.engine != "local" and options.part_rows is None:
        raise UsageError(
            f"--engine {options.engine} needs --part-rows",
            hint="Add --part-rows, such as --part-rows 100000.",
        )
    if options.append or options.add_column is not None:
        return append_rows(task, progress) if options.append else add_column(task, progress)
    if options.join:
        return join_parts(task, progress)
    if options.part is not None:
        return pack_one_part(task, progress)
    if options.part_rows is not None:
        return pack_parts(task, progress)
    return pack_task(task, progress)
