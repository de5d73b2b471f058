"""Write the man pages to docs/man: flare(1) and one page per command, from the declarations of the
commands and options.

python docs/man_pages.py [FOLDER]
"""

import importlib
import inspect
import sys
from pathlib import Path

from flarecli import __version__
from flarecli.arguments import GROUPS, declared
from flarecli.cli import app

ROOT = Path(__file__).parent


def escaped(text: str) -> str:
    """Escape text for roff: backslashes, hyphens, and dots and quotes at the start of a line."""
    lines = text.replace("\\", "\\e").replace("-", "\\-").splitlines()
    return "\n".join(f"\\&{line}" if line.startswith((".", "'")) else line for line in lines)


def head(name: str, summary: str) -> list[str]:
    """Return the first lines of a page."""
    title = escaped(name.upper())
    return [
        f'.TH "{title}" "1" "" "flare {__version__}" "flare"',
        ".SH NAME",
        f"{escaped(name)} \\- {escaped(summary[:1].lower() + summary[1:].rstrip('.'))}",
    ]


def paragraphs(text: str) -> list[str]:
    """Return paragraphs as roff; a line that is indented is an example."""
    out = []
    for block in text.split("\n\n"):
        lines = [line.strip() for line in block.splitlines()]
        out += [".PP", escaped(" ".join(lines).replace("``", ""))]
    return out


def main_page() -> str:
    """Return flare(1)."""
    lines = head("flare", "pack, unpack, inspect, verify, list and print sharded datasets")
    lines += [".SH SYNOPSIS", ".B flare", "COMMAND [OPTIONS] ..."]
    lines += [".SH COMMANDS"]
    for name, summary in app.COMMANDS.items():
        lines += [".TP", f".BR flare\\-{name} (1)", escaped(summary)]
    lines += [".SH DESCRIPTION", *paragraphs(app.HELP_END)]
    return "\n".join(lines) + "\n"


def command_page(name: str) -> str:
    """Return the page of a command."""
    module = importlib.import_module(f"flarecli.cli.{name}")
    arguments = module.Line.arguments
    lines = head(f"flare-{name}", app.COMMANDS[name])
    lines += [
        ".SH SYNOPSIS",
        f".B flare {name}",
        escaped("[OPTIONS] " + " ".join(one.metavar for one in arguments.values())),
    ]
    lines += [".SH DESCRIPTION", *paragraphs(inspect.getdoc(module.command))]
    lines += [".SH ARGUMENTS"] if arguments else []
    for one in arguments.values():
        lines += [".TP", f".I {escaped(one.metavar)}", escaped(one.help)]
    lines += [".SH OPTIONS"]
    for group in GROUPS:
        found = [
            one
            for one in declared(module.Line)
            if not one.option.is_hidden and one.option.group == group
        ]
        lines += [f".SS {escaped(group)}"] if found else []
        for one in found:
            flags = ", ".join((*one.flags[1:], one.flags[0]))
            value = f" {one.metavar}" if one.metavar and not one.is_switch else ""
            default = f" (default: {one.shown_default})" if one.shown_default else ""
            lines += [".TP", f".B {escaped(flags + value)}", escaped(one.help + default)]
    lines += [".SH SEE ALSO", ".BR flare (1)"]
    return "\n".join(lines) + "\n"


def pages() -> dict[str, str]:
    """Return file name -> text of every page."""
    return {
        "flare.1": main_page(),
        **{f"flare-{name}.1": command_page(name) for name in app.COMMANDS},
    }


if __name__ == "__main__":
    folder = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "man"
    folder.mkdir(exist_ok=True)
    for name, text in pages().items():
        (folder / name).write_text(text, "utf-8")
