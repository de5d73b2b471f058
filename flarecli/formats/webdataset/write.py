"""Write samples as a tar.

Arrow joins headers, members and padding. Usually, the members are prepared column by column for up
to 8192 rows at once. For a few rows with many small columns, the members of all columns are
prepared together.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import replace

from flarecli import encodings
from flarecli.encodings import lookup
from flarecli.errors import Place, ValueFitError
from flarecli.formats.byte_ranges import rows_by_offsets, value_bytes, value_offsets
from flarecli.formats.shard_files import write_file
from flarecli.formats.webdataset import index as webdataset_index
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.columns import (
    KEY,
    NAME,
    belongs_to,
    extensions_of,
    member_columns,
)
from flarecli.formats.webdataset.scan import Table
from flarecli.lazy import np, pa, pc
from flarecli.model import ByteArray, Chunk, Column, Columns, IntArray, Settings, column_of
from flarecli.names import check_name, escape, is_extension
from flarecli.storage import Location

__all__ = ["row_sizes", "write_shard"]

# Approximate limits for the bytes and rows that are joined in one step, to fit in the CPU cache.
_STEP_BYTES, _STEP_ROWS = 1 << 20, 8192
_MAX_JOINED_ROW_BYTES = 1 << 16  # members of larger rows are written separately, without joining
_MIN_STEP_ROWS = 8  # minimum rows per step for small members, to limit the number of Arrow calls
_MAX_WIDE_ROWS = 64  # maximum rows per step if the members of all columns are processed together
_NAME_BYTES = 100  # size of the name field in a header
_FRAGMENT = re.compile(r"/fragment\.([0-9a-f]{16})[0-9a-f]{16}/(?:([0-9]{5,})/)?")
# Matches a key that may be invalid; `_check_key` then checks it. Such a key
# - is an absolute path, or starts with `~`, a drive or a folder such as `__this__/`,
# - has an empty part, a part of only dots and spaces, or a dot in its last part, or
# - contains a backslash or a control character.
_INVALID_KEY = (
    r"^/|^~|(^|/)[A-Za-z]:|//|^\.[. ]+(/|$)|^ [. ]*(/|$)|/[. ]+(/|$)|/$|[\x00-\x1f\x7f\\]"
    r"|\.[^/]*$|^__[^/]*__/|^$"
)


def row_sizes(columns: Columns, batch: pa.RecordBatch, settings: Settings) -> tuple[int, IntArray]:
    """Return the size of an empty tar, and the bytes that each row adds: int64 [rows].

    The bytes of a row are its headers and its padded members.

    raises  ValueFitError or UnsafeError with the first row in the batch that has an invalid key, no
            member, or a member of 8 GiB or more
    """
    if KEY in batch.schema.names:
        _check_each(batch.column(KEY), "")
    _check_extensions(columns, batch)
    heads, sizes = _weights(columns, batch, _keys(batch, 0, 0))
    _check_sizes(sizes, "")
    return len(tar.END), (heads + np.where(sizes < 0, 0, tar.padded(sizes))).sum(0)


def write_shard(
    at: Location,
    number: int,
    columns: Columns,
    batches: Sequence[pa.RecordBatch],
    settings: Settings,
) -> Chunk:
    """Write rows as one tar with its index.

    The name of the tar is the shard number with at least five digits: `00000.tar`. In a fragment of
    a changed dataset, the name starts with a digest. Without a key column, the keys are
    `SHARD-ROW`. A null has no member. The caller must check that the keys are unique.

    raises  ValueFitError or UnsafeError, before anything is written, for an invalid key, a row
            without members, or a member of 8 GiB or more
    """
    name, rows = f"{_prefix(at)}{number:05d}.tar", 0
    to, keys = at / name, []
    for batch in batches:
        keys.append(_keys(batch, number, rows))
        rows += batch.num_rows
    if any(KEY in batch.schema.names for batch in batches):
        _check_each(pa.chunked_array(keys, encodings.TEXT), to)
    table, raw_size = _table(columns, batches, keys, to)
    to, file = write_file(at, name, _parts(columns, batches, keys), raw_size, settings)
    text = webdataset_index.text(table.in_order_of_use(), raw_size)
    plain = replace(settings, compression=None)
    index_at, index = write_file(at, webdataset_index.name_of(name), [text], len(text), plain)
    return Chunk(to, rows, (file, index), NAME, (index_at,))


def _prefix(at: Location) -> str:
    """Return the prefix of the tar names in a fragment or in its parts; empty for other folders.

    webdataset and wids cache a tar under the last part of its URL, so the tars in all fragments of
    a dataset must have different names.
    """
    found = _FRAGMENT.search(f"{at}/")
    return "".join(f"{one}-" for one in found.groups() if one) if found else ""


def _keys(batch: pa.RecordBatch, number: int, first: int) -> pa.Array:
    """Return the key of each row: the value of the key column, or a unique key `SHARD-ROW`."""
    if KEY in batch.schema.names:
        return batch.column(KEY)
    rows = pa.array(np.arange(first, first + batch.num_rows)).cast(encodings.TEXT)
    return pc.binary_join_element_wise(
        pa.scalar(f"{number:05d}", encodings.TEXT),
        pc.ascii_lpad(rows, 7, "0"),
        pa.scalar("-", encodings.TEXT),
    )


def _check_each(keys: pa.Array | pa.ChunkedArray, to: object) -> None:
    wrong = pc.or_kleene(
        pc.match_substring_regex(keys, _INVALID_KEY), pc.greater(pc.binary_length(keys), 255)
    ).fill_null(True)
    for row in pc.indices_nonzero(wrong).to_pylist():
        _check_key(keys[row].as_py(), Place(to, row))


def _check_key(key: str | None, where: Place) -> None:
    """Raise an error for a key that a tar cannot store.

    raises  ValueFitError for a null, or for a key that would be read back differently; UnsafeError
            for a key that is not a safe relative path. The prefix `./` is allowed
    """
    hint = "Change the keys, or omit the column, so that flare generates a key for each row."
    if key is None:
        raise ValueFitError("the key is null", where=where, hint=hint)
    check_name(key.removeprefix("./"), where=where)
    if "." in key.rpartition("/")[2]:
        raise ValueFitError(
            f"the last part of the key {escape(key)!r:.80} contains a dot,"
            " which would start the extension",
            where=where,
            hint=hint,
        )
    if re.match("__[^/]*__/", key):
        raise ValueFitError(
            f"the key {escape(key)!r:.80} is in a folder that webdataset ignores",
            where=where,
            hint=hint,
        )


def _check_extensions(columns: Columns, batch: pa.RecordBatch) -> None:
    """Raise ValueFitError for the first row whose extension would be read back differently."""
    members = member_columns(columns)
    fixed = {extension.lower() for extension in extensions_of(columns)}
    for one in members:
        if name := column_of(one.extension):
            values = batch.column(name)
            for value in values.unique().to_pylist():
                lower = (value or "").lower()
                if value is None or (
                    is_extension(value) and belongs_to(lower, one.name) and lower not in fixed
                ):
                    continue
                raise ValueFitError(
                    f"{escape(value)!r:.80} cannot be the extension of column {one.name!r}",
                    row=values.to_pylist().index(value),
                    column=name,
                )


def _members(columns: Columns, batch: pa.RecordBatch) -> list[tuple[Column, str | pa.Array]]:
    """Return the column and the extension of each member in a sample.

    The extension of a column with several extensions is an array with the extension of each row.
    """
    out = list[tuple[Column, "str | pa.Array"]]()
    for one, extension in zip(member_columns(columns), extensions_of(columns), strict=True):
        name = column_of(one.extension)
        out.append((one, batch.column(name).fill_null(extension) if name else extension))
    return out


def _weights(columns: Columns, batch: pa.RecordBatch, keys: pa.Array) -> tuple[IntArray, IntArray]:
    """Return the header size and the data size of each member.

    return  two arrays int64 [members, rows]; for a null, the header size is 0 and the data size -1
    """
    members = _members(columns, batch)
    sizes = np.empty((len(members), batch.num_rows), np.int64)
    for i, (one, _) in enumerate(members):
        sizes[i] = _sizes(_stored(batch, one))
    if _is_wide(batch.num_rows, members):
        names = _all_names(keys, [extension for _, extension in members])
        heads = _head_sizes(names).reshape(sizes.shape[::-1]).T.copy()
    else:
        heads = np.empty_like(sizes)
        for i, (_, extension) in enumerate(members):
            heads[i] = _head_sizes(_names(keys, extension))
    heads[sizes < 0] = 0
    return heads, sizes


def _is_wide(rows: int, members: Sequence[tuple[Column, str | pa.Array]]) -> bool:
    """Return whether to process the members of all columns together.

    For a few rows with many columns, this takes fewer Arrow and numpy calls than processing the
    columns one by one.
    """
    return 0 < rows < min(len(members), _MAX_WIDE_ROWS)


def _stored(batch: pa.RecordBatch, one: Column) -> pa.Array:
    return encodings.stored(batch.column(one.name), lookup(one.encoding))


def _sizes(data: pa.Array) -> IntArray:
    """Return the size of each value of a large_binary array: int64 [rows]; -1 for a null."""
    offsets = value_offsets(data)
    sizes = offsets[1:] - offsets[:-1]
    if data.null_count:
        sizes[data.is_null().to_numpy(zero_copy_only=False)] = -1
    return sizes


def _head_sizes(names: pa.Array) -> IntArray:
    """Return the size of the header for each member name: int64 [names]."""
    if _is_plain(names):
        return np.full(len(names), tar.BLOCK, np.int64)
    sizes = [len(tar.header(name, 0)) for name in names.view(encodings.BINARY).to_pylist()]
    return np.array(sizes, np.int64)


def _check_sizes(sizes: IntArray, to: object, first: int = 0) -> None:
    """Raise ValueFitError for a row without members, or with a member too large for a header."""
    for row in np.flatnonzero((sizes > tar.MAX_MEMBER_BYTES).any(0))[:1].tolist():
        tar.check_size(int(sizes[:, row].max()), Place(to, first + row))
    for row in np.flatnonzero((sizes < 0).all(0))[:1].tolist():
        raise ValueFitError(
            "every column is null; a sample needs at least one member",
            where=to,
            row=first + row,
            hint="Use -f tfrecord, which stores such rows, or --null COL=VALUE to store a value.",
        )


def _names(keys: pa.Array, extension: str | pa.Array) -> pa.Array:
    if isinstance(extension, str):
        extension = pa.scalar(extension, encodings.TEXT)
    return pc.binary_join_element_wise(keys, extension, pa.scalar(".", encodings.TEXT))


def _all_names(keys: pa.Array, extensions: Sequence[str | pa.Array]) -> pa.Array:
    """Return the names of all members in row order: large_string [rows * members]."""
    rows, members = len(keys), len(extensions)
    of_members = [  # for each column, the extension in each row
        pa.repeat(pa.scalar(one, encodings.TEXT), rows)
        if isinstance(one, str)
        else one.cast(encodings.TEXT)
        for one in extensions
    ]
    in_row_order = np.arange(members * rows).reshape(members, rows).T.reshape(-1)
    of_rows = pa.concat_arrays([pa.array([], encodings.TEXT), *of_members])
    return _names(
        keys.take(pa.array(np.repeat(np.arange(rows), members))),
        of_rows.take(pa.array(in_row_order)),
    )


def _is_plain(names: pa.Array) -> bool:
    """Return whether every name is ASCII and fits in the name field of a header."""
    return (
        bool(pc.all(pc.string_is_ascii(names), min_count=0).as_py())
        and (pc.max(pc.binary_length(names)).as_py() or 0) <= _NAME_BYTES
    )


def _table(
    columns: Columns, batches: Sequence[pa.RecordBatch], keys: Sequence[pa.Array], to: Location
) -> tuple[Table, int]:
    """Return a table of all members, and the size of the uncompressed tar in bytes."""
    starts: list[IntArray] = []
    all_sizes: list[IntArray] = []
    end = 0
    for batch, own in zip(batches, keys, strict=True):
        heads, sizes = _weights(columns, batch, own)
        _check_sizes(sizes, to, sum(part.shape[1] for part in all_sizes))
        steps = (heads + np.where(sizes < 0, 0, tar.padded(sizes))).T.reshape(
            -1
        )  # bytes of each member with header and padding, in the order of the tar
        ends = (end + np.cumsum(steps)).reshape(-1, len(heads)).T
        starts.append(np.where(sizes < 0, -1, ends - tar.padded(sizes)))
        all_sizes.append(sizes)
        end += int(steps.sum())
    none = np.empty((len(member_columns(columns)), 0), np.int64)
    text = pa.concat_arrays([pa.array([], encodings.TEXT), *keys])
    bounds = value_offsets(text)
    data = np.frombuffer(value_bytes(text), np.uint8)
    extensions, starts_of, sizes_of = _by_extension(
        columns, batches, np.hstack([none, *starts]), np.hstack([none, *all_sizes])
    )
    table = Table(extensions, data, bounds[1:] - bounds[0], starts_of, sizes_of)
    return table, end + len(tar.END)


def _by_extension(
    columns: Columns, batches: Sequence[pa.RecordBatch], starts: IntArray, sizes: IntArray
) -> tuple[tuple[str, ...], IntArray, IntArray]:
    """Group the members by extension instead of by column.

    starts, sizes  start and size of each member: int64 [columns, rows]
    return         all extensions; the starts and the sizes as int64 [extensions, rows], -1 for a
                   missing member
    """
    extensions, out = list[str](), list[tuple[IntArray, IntArray]]()
    named = zip(member_columns(columns), extensions_of(columns), strict=True)
    for i, (one, extension) in enumerate(named):
        name = column_of(one.extension)
        if not name:
            extensions.append(extension)
            out.append((starts[i], sizes[i]))
            continue
        values = [batch.column(name).fill_null(extension) for batch in batches]
        spelled = pa.chunked_array(values, encodings.TEXT)
        for spelling in spelled.filter(pa.array(starts[i] >= 0)).unique().to_pylist():
            is_spelled = pc.equal(spelled, spelling).to_numpy()
            extensions.append(spelling)
            out.append((np.where(is_spelled, starts[i], -1), np.where(is_spelled, sizes[i], -1)))
    return (
        tuple(extensions),
        np.stack([pair[0] for pair in out]),
        np.stack([pair[1] for pair in out]),
    )


def _parts(
    columns: Columns, batches: Sequence[pa.RecordBatch], keys: Sequence[pa.Array]
) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a tar with these rows."""
    count = len(member_columns(columns))
    for batch, own in zip(batches, keys, strict=True):
        weight = max(1, batch.nbytes) // max(1, batch.num_rows)
        is_small = weight <= tar.BLOCK * count
        step = max(_MIN_STEP_ROWS if is_small else 1, min(_STEP_ROWS, _STEP_BYTES // weight))
        for start in range(0, batch.num_rows, step):
            part, names = batch.slice(start, step), own.slice(start, step)
            members = _members(columns, part)
            if is_small and _is_wide(part.num_rows, members):
                yield _join(_all_pieces(members, part, names))
                continue
            pieces = [
                piece
                for one, extension in members
                for piece in _pieces(_names(names, extension), _stored(part, one))
            ]
            is_joined = is_small or weight <= _MAX_JOINED_ROW_BYTES
            yield from [_join(pieces)] if is_joined else _without_copy(pieces)
    yield tar.END


def _all_pieces(
    members: Sequence[tuple[Column, str | pa.Array]], batch: pa.RecordBatch, keys: pa.Array
) -> list[pa.Array]:
    """Return the header, data and padding of all members in row order; see `_pieces`."""
    data = pa.concat_arrays([_stored(batch, one) for one, _ in members])
    row_by_row = np.arange(len(data)).reshape(len(members), -1).T.reshape(-1)
    names = _all_names(keys, [extension for _, extension in members])
    return _pieces(names, data.take(pa.array(row_by_row)))


def _pieces(names: pa.Array, data: pa.Array) -> list[pa.Array]:
    """Return the header, data and padding of each member: three large_binary arrays [members].

    If the data of a member is null, its header and its padding are empty.
    """
    sizes = _sizes(data)
    padding = np.where(sizes < 0, 0, -sizes % tar.BLOCK)
    zeros = np.zeros(int(padding.sum()), np.uint8)
    return [_heads(names, sizes), data, _split(zeros, padding)]


def _heads(names: pa.Array, sizes: IntArray) -> pa.Array:
    if not _is_plain(names):
        pairs = zip(names.view(encodings.BINARY).to_pylist(), sizes.tolist(), strict=True)
        return pa.array(
            [tar.header(name, size) if size >= 0 else b"" for name, size in pairs], encodings.BINARY
        )
    text = pc.ascii_rpad(names, _NAME_BYTES, "\0")
    field = np.frombuffer(text.buffers()[2] or b"", np.uint8)[: len(names) * _NAME_BYTES].reshape(
        -1, _NAME_BYTES
    )
    is_stored = sizes >= 0
    return _split(
        tar.headers(field[is_stored], sizes[is_stored]).reshape(-1), is_stored * tar.BLOCK
    )


def _split(data: ByteArray, lengths: IntArray) -> pa.Array:
    """Split data into consecutive values with the given lengths: large_binary [lengths]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return rows_by_offsets(data, offsets)


def _join(pieces: list[pa.Array]) -> memoryview:
    body = pc.binary_join_element_wise(
        *pieces, pa.scalar(b"", encodings.BINARY), null_handling="replace", null_replacement=""
    )
    return value_bytes(body)


def _without_copy(pieces: list[pa.Array]) -> Iterator[memoryview]:
    """Yield the pieces of large members row by row, without copying them."""
    for values in zip(*map(encodings.raw_values, pieces), strict=True):
        yield from (value for value in values if value is not None)
