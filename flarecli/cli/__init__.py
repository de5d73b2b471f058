"""The command line: options in, one verb, its result through the printer. Nothing else knows Typer."""

from __future__ import annotations

from flarecli.cli.errors import run

__all__ = ["run"]
