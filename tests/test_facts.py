"""Facts of errors and findings are fields: no code parses them from texts, and copies keep them."""

import ast
import pickle
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import flarecli
from flarecli.compat.streaming.base.format.reader import CorruptIndexError
from flarecli.errors import FlareError, FormatError, Place, ReachError
from flarecli.model import Finding, finding_of
from flarecli.names import check_name

TEXTS = (
    "where",
    "message",
    "reason",
)  # texts of an error, a finding or a failed row; for people only
PARSING = {
    *("partition", "rpartition", "split", "rsplit", "splitlines", "startswith", "endswith"),
    *("removeprefix", "removesuffix", "find", "rfind", "index", "rindex", "count", "replace"),
    *("strip", "lstrip", "rstrip", "lower", "upper", "casefold", "translate"),
}
MATCHING = {"match", "fullmatch", "search", "findall", "finditer", "split", "sub", "subn"}


def parsed_texts(source):
    """Return the lines of code that parse `where` or `message` of an object."""
    tree = ast.parse(source)
    scopes = [tree, *(node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef))]
    return sorted({line for scope in scopes for line in _parsed(scope, _names(scope))})


def _names(scope):
    """Return the names of local variables with such a text."""
    found = set()
    for node in ast.walk(scope) if isinstance(scope, ast.FunctionDef) else ():
        value = getattr(node, "value", None)
        targets = node.targets if isinstance(node, ast.Assign) else []
        targets += [node.target] if isinstance(node, ast.NamedExpr) else []
        for target in targets:
            if isinstance(target, ast.Tuple) and isinstance(value, ast.Tuple):
                pairs = list(zip(target.elts, value.elts, strict=False))
            else:
                pairs = [(target, value)]
            found |= {
                one.id for one, text in pairs if isinstance(one, ast.Name) and _is_text(text, ())
            }
    return found


def _is_text(node, names):
    if isinstance(node, ast.NamedExpr):
        return _is_text(node.value, names)
    if isinstance(node, ast.Attribute):
        return node.attr in TEXTS
    return isinstance(node, ast.Name) and node.id in names


def _parsed(scope, names):
    for node in ast.walk(scope):
        if isinstance(node, ast.Subscript) and isinstance(node.ctx, ast.Load):
            looked_at = [node.value]
        elif isinstance(node, ast.Compare):
            pairs = zip(node.ops, node.comparators, strict=True)
            looked_at = [text for op, text in pairs if isinstance(op, (ast.In, ast.NotIn))]
        elif isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            looked_at = [node.func.value] if node.func.attr in PARSING else []
            looked_at += node.args if node.func.attr in MATCHING else []
        else:
            continue
        if any(_is_text(one, names) for one in looked_at):
            yield node.lineno


def test_no_code_parses_the_texts_of_errors_and_findings():
    folder = Path(flarecli.__file__).parent
    found = {
        str(path.relative_to(folder)): lines
        for path in sorted(folder.rglob("*.py"))
        if (lines := parsed_texts(path.read_text()))
    }
    assert found == {}


@pytest.mark.parametrize(
    "line",
    [
        "int(error.where[1:-1])",
        "_PLACE.fullmatch(error.where)",
        "re.search(_ROW, error.where)",
        "found.where.partition('/')",
        "error.where.rpartition(':')",
        "found.where.removesuffix(']').rpartition('[')",
        "first.message.startswith('column ')",
        "'decrypt' in error.message",
        "'decrypt' in error.message.lower()",
        "'decrypt' not in (text := error.message)",
        "error.message.split(':')[0]",
        "(text := error.message) and text.endswith('x')",
        "first.reason.removeprefix(f'{first.column} ')",
    ],
)
def test_code_that_parses_texts_is_detected(line):
    assert parsed_texts(f"def f(error, found, first):\n    return {line}\n") == [2]


@pytest.mark.parametrize(
    "line",
    [
        "np.where(a, b, c)[0]",
        "{**told, 'where': found.where, 'message': found.message}",
        "error.where == str(at)",
        "error.where in ('', str(at))",
        "f'{error.where}: {error.message}'",
        "escape(redact_text(error.message))",
        "told[error.where]",
        "str(error).startswith('Invalid: ')",
    ],
)
def test_code_that_prints_or_compares_texts_is_allowed(line):
    assert parsed_texts(f"def f(error, found):\n    return {line}\n") == []


# -- errors


def classes(base=FlareError):
    return [base, *(one for kind in base.__subclasses__() for one in classes(kind))]


ERRORS = sorted(
    {one for one in classes() if one.__module__.startswith("flarecli.")},
    key=lambda one: f"{one.__module__}.{one.__name__}",
)
FACTS = ("message", "address", "hint", "row", "column", "line", "character", "item")
TEXT = st.text(max_size=9)
NUMBER = st.none() | st.integers(0, 1 << 62)


@given(
    st.sampled_from(ERRORS),
    st.fixed_dictionaries(
        {
            **dict.fromkeys(("message", "address", "hint", "item"), TEXT),
            **dict.fromkeys(("row", "line", "character"), NUMBER),
            "column": st.none() | TEXT,
        }
    ),
)
def test_pickled_errors_keep_all_facts(kind, facts):
    error = kind("x").changed(**facts)
    again = pickle.loads(pickle.dumps(error))
    assert type(again) is type(error) is kind
    assert {name: getattr(again, name) for name in FACTS} == facts
    assert (str(again), again.args) == (str(error), error.args) == (str(error), (facts["message"],))
    assert isinstance(again, kind.__mro__[-2])


def test_an_error_from_another_process_keeps_its_facts():
    with ProcessPoolExecutor(1, get_context("spawn")) as pool:
        error = pool.submit(check_name, "../x", Place("a.mds", 3)).exception()
    assert (error.kind, error.where, error.address, error.row) == ("unsafe", "a.mds[3]", "a.mds", 3)


@pytest.mark.parametrize(
    ("place", "text"),
    [
        (Place(), ""),
        (Place("a.mds"), "a.mds"),
        (Place("a.mds", 0), "a.mds[0]"),
        (Place(row=17), "row 17"),
        (Place("p.yaml", line=3), "p.yaml:3"),
        (Place("p.yaml", line=3, character=5), "p.yaml:3:5"),
        (Place("index.json", item="shards[3].zip_data"), "index.json: shards[3].zip_data"),
    ],
)
def test_places_of_errors_and_findings_have_the_same_text(place, text):
    error = FormatError("bad", where=place)
    assert (str(place), error.where, finding_of(error).where) == (text, text, text)
    assert str(error) == (f"{text}: bad" if text else "bad")


def test_an_error_of_a_batch_gets_the_row_in_its_file():
    error = FormatError("is null", row=2, hint="Look.")
    one = error.at("a.mds", 40).of_column("n")
    assert (str(error), str(one)) == ("row 2: is null", "a.mds[42]: column 'n': is null")
    assert finding_of(one) == Finding(
        "a.mds", "format", "column 'n': is null", "Look.", row=42, column="n"
    )
    assert FormatError("cut").at("a.mds", 40).row is None
    assert type(error.at("a.mds", np.int64(40)).row) is int  # JSON cannot write numpy integers


def test_an_error_without_an_address_gets_the_address_of_its_file():
    assert finding_of(ReachError("no answer", row=3), "a.mds").where == "a.mds[3]"
    assert finding_of(ReachError("no answer", where="b.mds"), "a.mds").where == "b.mds"


def test_the_json_of_an_error_has_its_facts():
    error = CorruptIndexError("no", where=Place("index.json", item="shards[0]"))
    assert (error.where, error.pos, error.row) == ("index.json: shards[0]", 0, None)
