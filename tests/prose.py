"""Draw 100 texts of the project at random, for readers who judge its English.

    python tests/prose.py SEED

Of each draw, 50 texts are docstrings and comments of `flarecli`, 30 are messages, hints and help
texts, and 20 are sentences of the docs. The same seed draws the same texts from the same tree. Each
text is complete and is printed below its file and line. Two readers without other context mark each
text that a technical writer would rewrite; a text that either of them marks counts.
"""

from __future__ import annotations

import ast
import io
import random
import re
import sys
import tokenize
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DRAWN = (("docstring or comment", 50), ("message or help text", 30), ("sentence of the docs", 20))
DOCS = ("README.md", "CONTRIBUTING.md", "CHANGELOG.md", "benchmarks/README.md", "docs/*.md")
MESSAGE_ARGUMENTS = frozenset({"hint", "help", "message", "epilog"})
DIRECTIVES = ("type:", "noqa", "pragma:", "fmt:", "ruff:")  # comments for tools
GENERATED = frozenset({"api.md"})  # from docstrings, which are drawn themselves
MIN_WORDS = 3
Texts = Iterator[tuple[int, str]]  # line and text


def docstrings(tree: ast.Module) -> Texts:
    """Yield every docstring."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    for node in ast.walk(tree):
        if isinstance(node, kinds) and (text := ast.get_docstring(node)):
            yield node.body[0].lineno, text


def has_words(text: str) -> bool:
    """Return whether a text is long enough to judge it."""
    return len(re.findall(r"[A-Za-z]{2,}", text)) >= MIN_WORDS


def comments(source: str) -> Texts:
    """Yield every comment except directives: beside code with its line, on adjacent lines as
    one.
    """
    block: list[str] = []
    first = 0
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        text, line = token.string.lstrip("#:! "), token.start[0]
        if token.type != tokenize.COMMENT or text.startswith(DIRECTIVES):
            continue
        is_alone = not token.line[: token.start[1]].strip()
        if block and (not is_alone or line != first + len(block)):
            yield first, " ".join(block)
            block = []
        if is_alone:
            first = first if block else line
            block.append(text)
        elif has_words(text):
            yield line, token.line.strip()
    if block:
        yield first, " ".join(block)


def rendered(node: ast.expr, constants: Mapping[str, ast.expr]) -> Iterator[str]:
    """Yield the texts that an expression can have: `{…}` stands for a value, both branches of a
    condition are texts.

    constants  the variables of the module with a text
    """
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        yield node.value
    elif isinstance(node, ast.JoinedStr):
        yield "".join(
            str(part.value) if isinstance(part, ast.Constant) else "{…}" for part in node.values
        )
    elif isinstance(node, ast.IfExp):
        yield from rendered(node.body, constants)
        yield from rendered(node.orelse, constants)
    elif isinstance(node, ast.BinOp) and isinstance(node.op, ast.Add):
        for left in list(rendered(node.left, constants)) or ["{…}"]:
            for right in list(rendered(node.right, constants)) or ["{…}"]:
                yield left + right
    elif isinstance(node, ast.Name) and node.id in constants:
        yield from rendered(constants[node.id], {})


def messages(tree: ast.Module) -> Texts:
    """Yield the texts of errors, findings, warnings and notes, and of each `hint=`, `help=` and
    `message=`.
    """
    constants = {
        target.id: node.value
        for node in tree.body
        if isinstance(node, ast.Assign)
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    drawn = set()
    for node in ast.walk(tree):
        if not isinstance(node, ast.Call):
            continue
        name = getattr(node.func, "id", getattr(node.func, "attr", ""))
        found = [word.value for word in node.keywords if word.arg in MESSAGE_ARGUMENTS]
        if name.endswith(("Error", "Finding", "note", "warn")):
            found += node.args[:3]
        for value in found:
            at = (
                constants[value.id]
                if isinstance(value, ast.Name) and value.id in constants
                else value
            )
            for text in rendered(value, constants):
                if (
                    at.lineno,
                    text,
                ) not in drawn:  # a constant is one text, however often it is used
                    drawn.add((at.lineno, text))
                    yield at.lineno, text


def sentences(text: str) -> Texts:
    """Yield each sentence outside code blocks, and each row of a table as one text."""
    paragraph: list[str] = []
    first, is_code = 0, False
    for number, line in enumerate([*text.splitlines(), ""], 1):
        is_fence = line.lstrip().startswith("```")
        is_start = re.match(r"\s*([-*]|\d+\.) |#", line) is not None
        if paragraph and (is_fence or is_start or not line.strip() or line.startswith("|")):
            yield from _split(first, paragraph)
            paragraph = []
        if is_fence:
            is_code = not is_code
        elif is_code or not line.strip() or (line.startswith("    ") and not paragraph):
            continue
        elif line.startswith("|"):
            cells = [cell.strip() for cell in re.split(r"(?<!\\)\|", line.strip("| "))]
            if not all(re.fullmatch(":?-+:?", cell) for cell in cells):
                yield number, " | ".join(cells)
        else:
            first = first if paragraph else number
            paragraph.append(line)


def _split(first: int, lines: list[str]) -> Texts:
    """Yield the sentences of a paragraph, a heading or an item of a list, each with its line."""
    flat, starts = "", []
    for line in lines:
        starts.append(len(flat))
        flat += line.strip() + " "
    begin = 0
    for end in [*(m.end() for m in re.finditer(r"[.!?]\s+(?=[A-Z`*])", flat)), len(flat)]:
        line = first + sum(start <= begin for start in starts) - 1
        yield line, re.sub(r"^([-*#]+|\d+\.) ", "", flat[begin:end].strip())
        begin = end


@cache
def texts(root: Path = ROOT) -> dict[str, list[tuple[str, str]]]:
    """Return kind -> (file and line, text) of everything that can be drawn."""
    found: dict[str, list[tuple[str, str]]] = {kind: [] for kind, _ in DRAWN}

    def keep(kind: str, path: Path, pairs: Texts) -> None:
        for line, text in pairs:
            if has_words(text):
                found[kind].append((f"{path.relative_to(root)}:{line}", text.strip()))

    for path in sorted((root / "flarecli").rglob("*.py")):
        source = path.read_text()
        tree = ast.parse(source)
        keep("docstring or comment", path, docstrings(tree))
        keep("docstring or comment", path, comments(source))
        keep("message or help text", path, messages(tree))
    for pattern in DOCS:
        for path in sorted(root.glob(pattern)):
            if path.name in GENERATED:
                continue
            keep("sentence of the docs", path, sentences(path.read_text()))
    return found


def main(arguments: list[str]) -> int:
    """Print the draw of a seed: a number, the file and line, and below them the text."""
    if len(arguments) != 1:
        print("usage: prose.py SEED", file=sys.stderr)
        return 2
    source, number = random.Random(arguments[0]), 0
    found = texts()
    for kind, count in DRAWN:
        print(f"\n== {kind}: {count} of {len(found[kind])}")
        for place, text in source.sample(found[kind], min(count, len(found[kind]))):
            number += 1
            print(f"\n{number:3}  {place}")
            for line in text.splitlines():
                print(f"     {line}".rstrip())
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
