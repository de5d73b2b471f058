"""The command line: parse options, call one command, print its result. Only this package uses
Typer.
"""

from __future__ import annotations

from flarecli.cli.errors import run

__all__ = ["run"]
