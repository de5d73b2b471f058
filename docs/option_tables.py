"""Write docs/options.md: the options of the six commands, from their declarations.

python docs/option_tables.py > docs/options.md
"""

import importlib

from flarecli.arguments import declared
from flarecli.cli.app import COMMANDS

HEAD = """# Options

The options of the six commands, by group, with their names in Python. A variable such as `FLARE_SHARD_SIZE` sets the default of
`--shard-size` on the command line. Options without a name in Python concern the output of the command line only.

This page is generated: `python docs/option_tables.py > docs/options.md`.
"""


def page() -> str:
    """Return the page."""
    return "\n".join([HEAD, *(table for command in COMMANDS for table in section(command))])


def section(command: str) -> list[str]:
    """Return the lines on one command."""
    line = importlib.import_module(f"flarecli.cli.{command}").Line
    in_python = {one.name for one in declared(line.__bases__[0])}
    rows = [f"## flare {command}", "", "| option | Python | default | |", "|---|---|---|---|"]
    for one in declared(line):
        flags = ", ".join(f"`{flag}`" for flag in (*one.flags[1:], one.flags[0]))
        value = f" `{one.metavar}`" if one.metavar and not one.is_switch else ""
        name = f"`{one.name}`" if one.name in in_python else ""
        default = f"`{one.shown_default}`" if one.shown_default else ""
        cells = (flags + value, name, default, f"{one.option.group}: {one.help}")
        rows.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
    return [*rows, ""]


if __name__ == "__main__":
    print(page(), end="")
