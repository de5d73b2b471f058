"""Options that `flare.open` and the commands have for reading tables."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from flarecli.arguments import Option, Options, option
from flarecli.errors import UsageError
from flarecli.formats.registry import INPUTS

__all__ = ["TableOptions"]


@dataclass(frozen=True, kw_only=True, eq=False, repr=False)
class TableOptions(Options):
    """Options for reading tables."""

    input: str | None = option(
        None,
        Option(
            group="Rows",
            metavar="KIND",
            choices=tuple(INPUTS),
            help="Kind of SOURCE (default: detected): {choices}. Use `lines` for a list of addresses.",
        ),
    )
    csv: Sequence[str] = option(
        (),
        Option(
            group="Rows",
            metavar="KEY=VALUE",
            is_repeatable=True,
            help="Setting for CSV files, such as header=no; repeatable. Keys: delimiter, header, quote, null, decimal, encoding.",
        ),
    )

    def source_format(self, format: str | None) -> str | None:
        """Return the format that --format or --input sets, for a command that reads datasets.

        The result is None if neither option is set.

        raises  UsageError if the options contradict each other, or for a list of addresses
        """
        if self.input is None:
            return format
        found = INPUTS.get(self.input)
        if format not in (None, found):
            raise UsageError(f"--input {self.input} contradicts --format {format}")
        if found is None:
            raise UsageError(
                f"--input {self.input}: this command does not read lists of addresses",
                hint="Use `flare pack` or `flare unpack --fetch`.",
            )
        return found

    def table_headers(self) -> dict[str, object]:
        """Return the values of --input and --csv as stream headers.

        raises  UsageError for an invalid setting
        """
        headers: dict[str, object] = {}
        if self.input is not None:
            headers["input"] = self.input
        if self.csv:
            from flarecli.formats.tables.dialect import Dialect  # slow: imports numpy

            Dialect.parse(self.csv)
            headers["csv"] = list(self.csv)
        return headers
