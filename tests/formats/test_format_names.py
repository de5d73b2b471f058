"""Code outside `formats/` never compares format names and never probes for methods."""

import ast
from pathlib import Path

import pytest

from flarecli import formats

PACKAGE = Path(formats.__file__).parents[1]
INSIDE = ("formats", "encodings", "compat")
# Names of formats only; `json`, `csv`, `parquet`, `table` and others are also outputs, keys and
# words.
NAMES = set(formats.names()) - {"json", "csv", "tsv", "files", "parquet", "arrow", "table"}


def modules():
    return [
        path
        for path in sorted(PACKAGE.rglob("*.py"))
        if path.relative_to(PACKAGE).parts[0] not in INSIDE
    ]


def strings(node):
    return {
        one.value
        for one in ast.walk(node)
        if isinstance(one, ast.Constant) and isinstance(one.value, str)
    }


def about_a_format(node):
    """Return whether an expression is a variable or attribute with the name of a format."""
    return (isinstance(node, ast.Attribute) and node.attr == "format") or (
        isinstance(node, ast.Name) and node.id == "format"
    )


def offences(source):
    """Return the lines that contain the name of a format, compare it, or look it up in a table."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Constant) and node.value in NAMES:
            found.append(node.lineno)
        elif isinstance(node, ast.Compare):
            sides = [node.left, *node.comparators]
            if any(map(about_a_format, sides)) and set(formats.names()) & strings(node):
                found.append(node.lineno)
        elif (isinstance(node, ast.Subscript) and about_a_format(node.slice)) or (
            isinstance(node, ast.Call)
            and isinstance(node.func, ast.Name)
            and node.func.id in ("getattr", "hasattr")
            and "form" in ast.unparse(node.args[0])
        ):
            found.append(node.lineno)
    return found


def test_code_outside_formats_never_compares_format_names():
    paths = modules()
    assert PACKAGE / "read" / "resolve.py" in paths
    found = {path: offences(path.read_text()) for path in paths}
    assert {path: lines for path, lines in found.items() if lines} == {}


@pytest.mark.parametrize(
    "source",
    [
        'if stream.format == "files":\n    pass',
        'if format in ("csv", "tsv"):\n    pass',
        'find("ffrecord")',
        "TABLE[stream.format]",
        'getattr(form, "gather_columns", None)',
        'hasattr(formats.find("x"), "y")',
    ],
)
def test_comparisons_tables_and_probes_are_detected(source):
    assert offences(source) == [1]
