"""Draw 100 texts of the project at random, for readers who judge its English.

    python tests/prose.py SEED

Of each draw, 50 texts are docstrings and comments of `flarecli`, 30 are messages, hints and help texts, and 20 are sentences of the
docs. The same seed draws the same texts from the same tree. Two readers without other context mark each text that a technical writer
would rewrite; a text that either of them marks counts.
"""

from __future__ import annotations

import ast
import io
import random
import re
import sys
import tokenize
from collections.abc import Iterable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DRAWN = (("docstring or comment", 50), ("message or help text", 30), ("sentence of the docs", 20))
DOCS = ("README.md", "CHANGELOG.md", "benchmarks/README.md", "docs/*.md")
MESSAGE_ARGUMENTS = frozenset({"hint", "help", "message", "epilog"})
MIN_WORDS = 3


def rendered(node: ast.expr) -> str | None:
    """Return the text of a string literal; an f-string has `{…}` in place of each value."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        parts = (
            rendered(part) if isinstance(part, ast.Constant) else "{…}" for part in node.values
        )
        return "".join(part or "" for part in parts)
    return None


def docstrings(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of every docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def comments(source: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of every comment; comments on adjacent lines of their own are one."""
    block: list[str] = []
    first = last = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type != tokenize.COMMENT:
            continue
        text, line = token.string.lstrip("#:! "), token.start[0]
        alone = not token.line[: token.start[1]].strip()
        if block and alone and line == last + 1:
            block.append(text)
            last = line
            continue
        if block:
            yield first, " ".join(block)
        block, first, last = [text], line, line if alone else -1
    if block:
        yield first, " ".join(block)


def messages(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield line and text of each first argument of an error or a finding, and of each `hint=` and `help=`."""
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        found = [word.value for word in node.keywords if word.arg in MESSAGE_ARGUMENTS]
        if name.endswith(("Error", "Finding", "note", "warn")):
            found += node.args[:3]
        for value in found:
            if text := rendered(value):
                yield node.lineno, text


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield line and text of each sentence outside code blocks."""
    line, is_code = 0, False
    for block in re.split(r"\n\s*\n", text):
        start, line = line + 1, line + block.count("\n") + 2
        fences = len(re.findall(r"^\s*```", block, re.M))
        if is_code or fences:
            is_code ^= fences % 2 == 1
            continue
        flat = " ".join(block.split())
        for sentence in re.split(r"(?<=[.!?:])\s+(?=[A-Z`*])|\s*\|\s*|\s+[-*] (?=\S)", flat):
            yield start, sentence.strip("#*-| ")


def texts() -> dict[str, list[tuple[str, str]]]:
    """Return kind -> (place, text) of everything that can be drawn."""
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind, _ in DRAWN}

    def keep(kind: str, path: Path, pairs: Iterable[tuple[int, str]]) -> None:
        for line, text in pairs:
            flat = " ".join(text.split())
            if len(re.findall(r"[A-Za-z]{2,}", flat)) >= MIN_WORDS:
                found[kind].append((f"{path.relative_to(ROOT)}:{line}", flat))

    for path in sorted((ROOT / "flarecli").rglob("*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        keep("docstring or comment", path, docstrings(tree))
        keep("docstring or comment", path, comments(source))
        keep("message or help text", path, messages(tree))
    for pattern in DOCS:
        for path in sorted(ROOT.glob(pattern)):
            keep("sentence of the docs", path, sentences(path.read_text()))
    return found


def main(arguments: list[str]) -> int:
    """Print the draw of a seed, one numbered text a line."""
    if len(arguments) != 1:
        print("usage: prose.py SEED", file=sys.stderr)
        return 2
    random_source, number = random.Random(arguments[0]), 0
    found = texts()
    for kind, count in DRAWN:
        print(f"\n{kind} ({len(found[kind])} in all)")
        for place, text in random_source.sample(found[kind], min(count, len(found[kind]))):
            number += 1
            print(f"{number:3}  {text}  [{place}]")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
