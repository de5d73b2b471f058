"""Layers of the package: directions and cycles of imports, and modules that are imported at
start-up.
"""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flarecli"
# packages and modules; each imports from the layers above it in this list, and from itself
LAYERS = [
    {"errors", "lazy", "lifetimes"},
    {"names"},
    {"suggest", "expansion", "redact", "progress", "units"},
    {
        "arguments",
        "braces",
        "hashes",
        "compress",
        "prefetch",
    },
    {"storage", "media"},
    {"model"},
    {"bisect"},
    {"cache", "encodings", "sql"},
    {"access", "formats"},
    {"playlists", "ingest"},
    {"read"},
    {"write"},
    {"commands", "torch"},
    {"ray", "testing", "report"},
    {"cli", "compat"},
    {"__main__"},
]
LAYER = {package: number for number, packages in enumerate(LAYERS) for package in packages}
HEAVY = {
    "PIL",
    "duckdb",
    "fsspec",
    "isal",
    "numpy",
    "obstore",
    "pyarrow",
    "pycurl",
    "rich",
    "tqdm",
    "xxhash",
    "yaml",
    "zstandard",
}
# modules that other packages import directly; everything else is imported from the package itself
INNER = {
    "storage": {
        "append_log",
        "cloud",
        "descriptors",
        "http",
        "local",
        "memory",
        "single_pass",
        "versions",
    },
    "formats": {"byte_ranges", "ffrecord", "files", "granular", "mds", "tables", "webdataset"},
    "playlists": {"fill"},
    "read": {"epoch_order", "resolve", "version_lists"},
    "commands": {"options", "packing"},
    "write": {
        "columns",
        "engines",
        "erased",
        "failures",
        "journal",
        "fetch_links",
        "parts",
        "removal",
        "versions",
    },
}


parsed = cache(ast.parse)  # several tests read the whole package


class Import(NamedTuple):
    """An import of module `of` in module `by`; `at_load` if it runs when `by` is loaded."""

    by: str
    of: str
    line: int
    at_load: bool
    for_types: bool


def modules(package=PACKAGE):
    """Return name -> path of every module; the `__init__` of a package has the package's name."""
    found = {}
    for path in sorted(package.rglob("*.py")):
        parts = (package.name, *path.relative_to(package).with_suffix("").parts)
        found[".".join(parts[:-1] if parts[-1] == "__init__" else parts)] = path
    return found


def is_for_types(node):
    return (
        isinstance(node, ast.If)
        and isinstance(node.test, ast.Name)
        and node.test.id == "TYPE_CHECKING"
    )


def imports_of(name, source, known):
    """Return every import in a module, also those inside functions and under TYPE_CHECKING."""
    found = []

    def walk(node, at_load, for_types):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                found.extend(
                    Import(name, alias.name, child.lineno, at_load, for_types)
                    for alias in child.names
                )
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, f"{name}: line {child.lineno}: imports are absolute"
                for alias in child.names:
                    whole = f"{child.module}.{alias.name}"
                    found.append(
                        Import(
                            name,
                            whole if whole in known else child.module,
                            child.lineno,
                            at_load,
                            for_types,
                        )
                    )
            elif isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
                walk(child, False, for_types)
            elif is_for_types(child):
                walk(child, False, True)
            else:
                walk(child, at_load, for_types)

    walk(parsed(source), True, False)
    return found


@cache
def imports():
    known = modules()
    return [
        one for name, path in known.items() for one in imports_of(name, path.read_text(), known)
    ]


def package_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def inner_imports():
    """Return the imports within flarecli, except those of its `__init__`, which names everything
    and loads nothing.
    """
    return [
        one for one in imports() if one.of.split(".")[0] == PACKAGE.name and one.by != PACKAGE.name
    ]


def misplaced(imported):
    """Return the imports of the same or a higher layer; `flarecli` itself, which has the version,
    is allowed.
    """
    return [
        f"{one.by}: line {one.line}: {package_of(one.of)} is in layer {LAYER[package_of(one.of)]}, {package_of(one.by)} in layer {LAYER[package_of(one.by)]}"
        for one in imported
        if one.of != PACKAGE.name
        and package_of(one.of) != package_of(one.by)
        and LAYER[package_of(one.of)] >= LAYER[package_of(one.by)]
    ]


def cycles(imported):
    """Return the cycles of imports, each as its modules in order."""
    graph = {}
    for one in imported:
        if one.of != one.by:
            graph.setdefault(one.by, set()).add(one.of)
    found, done = [], set()

    def visit(name, path):
        if name in path:
            found.append(path[path.index(name) :])
        elif name not in done:
            for other in sorted(graph.get(name, ())):
                visit(other, [*path, name])
            done.add(name)

    for name in sorted(graph):
        visit(name, [])
    return found


def test_every_module_has_a_layer():
    assert {package_of(name) for name in modules()} - {"__init__"} == set(LAYER)


def test_modules_import_lower_layers_only():
    assert misplaced(inner_imports()) == []


def test_packages_are_imported_through_their_init_except_for_listed_modules():
    inner = {
        (one.by, one.of)
        for one in inner_imports()
        if one.of.count(".") > 1 and package_of(one.by) != package_of(one.of)
    }
    assert [
        f"{by}: {of}"
        for by, of in sorted(inner)
        if of.split(".")[2] not in INNER.get(package_of(of), ())
    ] == []


def test_there_are_no_import_cycles():
    assert cycles(one for one in inner_imports() if not one.for_types) == []


def test_imports_of_higher_and_equal_layers_and_cycles_are_found():
    known = {
        "flarecli": "",
        "flarecli.read": "",
        "flarecli.formats": "",
        "flarecli.formats.files": "",
        "flarecli.encodings": "",
        "flarecli.sql": "",
    }
    up = imports_of("flarecli.formats.files", "def late():\n    from flarecli import read", known)
    beside = imports_of("flarecli.sql", "import flarecli.encodings.names", known)
    around = imports_of(
        "flarecli.formats", "from flarecli.formats import files", known
    ) + imports_of(
        "flarecli.formats.files", "if True:\n    from flarecli.formats import find", known
    )
    assert misplaced(up + beside + around) == [
        "flarecli.formats.files: line 2: read is in layer 10, formats in layer 8",
        "flarecli.sql: line 1: encodings is in layer 7, sql in layer 7",
    ]
    assert cycles(around) == [["flarecli.formats", "flarecli.formats.files"]]


def test_the_command_line_loads_no_heavy_library_first():
    """Follows imports that run when a module is loaded, from `__main__` and every command."""
    at_load = [one for one in imports() if one.at_load]
    reached, todo = (
        set(),
        {
            name
            for name in modules()
            if package_of(name)
            in ("__main__", "cli", "errors", "units", "names", "progress", "model")
        },
    )
    while todo:
        reached |= todo
        todo = {
            one.of for one in at_load if one.by in todo and one.of.split(".")[0] == PACKAGE.name
        } - reached
    assert [
        f"{one.by}: line {one.line}: {one.of}"
        for one in at_load
        if one.by in reached and one.of.split(".")[0] in HEAVY
    ] == []


def test_only_the_command_line_imports_typer():
    assert {
        package_of(one.by) for one in imports() if one.of.split(".")[0] in ("typer", "click")
    } == {"cli"}


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["pack", "--help"]])
def test_version_and_help_load_no_heavy_library(argv):
    """Runs a process, which also shows modules that libraries load."""
    unwanted = HEAVY | {"flarecli.storage", "logging", "pydantic"}
    program = (
        "import sys\nfrom flarecli.__main__ import main\ncode = main(sys.argv[1:])\n"
        f"print(sorted(set(sys.modules) & {unwanted!r}), code, file=sys.stderr)"
    )
    ran = subprocess.run(
        [sys.executable, "-c", program, *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stderr == "[] 0\n"


@pytest.mark.parametrize(
    "folder", ["mds/mds_all_hashes/data", "mds/csv_plain/data", "ffrecord/allempty"]
)
def test_verify_of_checksums_and_structure_loads_no_arrow(folder):
    program = "import sys\nfrom flarecli.__main__ import main\ncode = main(sys.argv[1:])\nprint('pyarrow' in sys.modules, code, file=sys.stderr)"
    argv = ["verify", "-q", str(ROOT / "fixtures" / folder)]
    ran = subprocess.run(
        [sys.executable, "-c", program, *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stderr == "False 0\n"


@pytest.mark.parametrize(
    "folder", ["mds/mds_all_hashes/data", "mds/csv_plain/data", "mds/json_newline_lf/data"]
)
def test_inspect_loads_no_arrow(folder):
    program = "import sys\nfrom flarecli.__main__ import main\ncode = main(sys.argv[1:])\nprint('pyarrow' in sys.modules, code, file=sys.stderr)"
    argv = ["inspect", "--shards", str(ROOT / "fixtures" / folder)]
    ran = subprocess.run(
        [sys.executable, "-c", program, *argv],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert ran.stderr == "False 0\n"


def test_the_package_contains_no_assert():
    asserts = [
        (name, node.lineno)
        for name, path in modules().items()
        for node in ast.walk(parsed(path.read_text()))
        if isinstance(node, ast.Assert)
        and name != "flarecli.testing"  # this module is a test suite
    ]
    assert asserts == []


def probes(source):
    """Return the lines of `getattr` and `hasattr` calls whose first argument is a store or a
    location's store.
    """

    def is_store(node):
        name = node.attr if isinstance(node, ast.Attribute) else getattr(node, "id", "")
        return name.strip("_") == "store" or name.endswith("_store")

    return [
        node.lineno
        for node in ast.walk(parsed(source))
        if isinstance(node, ast.Call)
        and isinstance(node.func, ast.Name)
        and node.func.id in ("getattr", "hasattr")
        and node.args
        and (
            is_store(node.args[0])
            or (isinstance(node.args[0], ast.Subscript) and "stores" in ast.dump(node.args[0]))
        )
    ]


def test_stores_declare_capabilities_and_are_not_probed():
    assert {
        name: found for name, path in modules().items() if (found := probes(path.read_text()))
    } == {}


def test_probes_of_stores_are_found():
    source = 'getattr(at.store, "keep", None)\nhasattr(self._store, "x")\ngetattr(stores[0], "y")\n'
    assert probes(source + 'getattr(other, "z")\n') == [1, 2, 3]
