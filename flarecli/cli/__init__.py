"""The command line, which parses options, calls one command and prints its result.

Only this package uses Typer.
"""

from __future__ import annotations

from flarecli.cli.errors import run

__all__ = ["run"]
