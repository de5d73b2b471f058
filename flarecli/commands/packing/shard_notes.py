"""Notes about the shards of a pack: too many shards, and rows larger than the default size."""

from __future__ import annotations

from flarecli.commands.options import PackOptions
from flarecli.progress import Progress

__all__ = ["ShardNotes"]

MAX_SHARDS = 100_000  # a pack with more shards is reported
_MIN_SHARDS = 1000  # finished shards after which the total is estimated
_LARGE_ROW = (
    "some rows are larger than the default --shard-size of 64MiB; "
    "each of these rows becomes a shard of its own"
)


class ShardNotes:
    """Reporter of notes. Each note is reported at most once.

    total  number of rows (or parts) to pack; None if unknown
    texts  all notes that may be reported
    """

    def __init__(self, options: PackOptions, progress: Progress, total: int | None = None) -> None:
        limits = ["--shard-size"]
        limits += ["--shard-rows"] if options.shard_rows is not None else []
        limits += ["--part-rows"] if options.part_rows is not None else []
        self._many_shards = (
            f"more than {MAX_SHARDS:,} shards are expected; "
            f"increase {' or '.join(limits)} to write fewer files"
        )
        self.texts = (self._many_shards, _LARGE_ROW)
        self._has_default_size = options.shard_size == PackOptions.shard_size
        self._progress, self._total = progress, total
        self._reported = set[str]()

    def check_progress(self, shards: int, done: int) -> None:
        """Report a large number of finished or projected shards.

        shards  number of finished shards
        done    number of rows (or parts) that these shards contain
        """
        if shards >= _MIN_SHARDS and self._total is not None and done:
            shards = max(shards, shards * self._total // done)
        self.check_total(shards)

    def check_total(self, shards: int) -> None:
        """Report a large total number of shards."""
        if shards > MAX_SHARDS:
            self.report(self._many_shards)

    def check_rows(self, has_large_row: bool) -> None:
        """Report rows that are larger than a shard, unless the user chose the shard size."""
        if has_large_row and self._has_default_size:
            self.report(_LARGE_ROW)

    def report(self, text: str) -> None:
        """Report one of `texts`, unless it was reported before."""
        if text not in self._reported:
            self._reported.add(text)
            self._progress.note(text)
