"""The house keeps its floors: what imports what is read from the source, nothing is run."""

import ast
import subprocess
import sys
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parents[1]
PACKAGE = ROOT / "flarecli"
FLOORS = [
    {"errors", "arrow", "records", "cpus", "lifetimes"},
    {"names"},
    {"guesses", "expansion"},
    {
        "counts",
        "later",
        "units",
        "given",
        "wildcards",
        "hashes",
        "compress",
        "progress",
        "prefetch",
    },
    {"storage", "media"},
    {"model"},
    {"cache", "encodings", "where"},
    {"formats"},
    {"playlists", "ingest"},
    {"read"},
    {"write"},
    {"verbs", "torch"},
    {"ray", "report"},
    {"cli", "compat"},
    {"__main__"},
]
FLOOR = {room: number for number, rooms in enumerate(FLOORS) for room in rooms}
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
DOORS = {  # `locate` opens the store that an address asks for, and data may lead from one store into another: the one ring there is
    ("flarecli.storage.base", "flarecli.storage.local"),
    ("flarecli.storage.base", "flarecli.storage.http.store"),
    ("flarecli.storage.base", "flarecli.storage.cloud.store"),
    ("flarecli.storage.base", "flarecli.storage.fsspec_store"),
}
PARTS = {  # what higher floors may take from inside a room; anything else goes by the room's own file
    # writing a journal needs the local disk, a check a file in memory or in passing, links the engine below the store
    "storage": {
        "cloud",
        "flock",
        "http",
        "local",
        "memory",
        "single_pass",
        "threads",
        "workers",
    },
    "formats": {
        "ffrecord",
        "ffrecord_table",
        "files",
        "granular_append",
        "granular_columns",
        "granular_folder",
        "mds_config",
        "mds_index",
        "mds_merge",
        "mds_reindex",
        "packed_folder",
        "spans",
        "webdataset_shards",
        "webdataset_stream",
    },
    "media": {"ffprobe", "probe", "resize", "sniff", "thumbnail"},  # functions of the same name
    "read": {"resolve", "windows"},
    "verbs": {"source"},
    "write": {"bucket", "columns", "engines", "failures", "links", "parts", "target"},
}


class Import(NamedTuple):
    """One import: the module that has it, the module it names, the line, and whether it runs when the module is loaded."""

    by: str
    of: str
    line: int
    at_load: bool
    for_types: bool


def modules(package=PACKAGE):
    """Name -> path of every module of the package; a room's `__init__` has the room's name."""
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
    """Give every import in a module, also those inside functions and under TYPE_CHECKING."""
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

    walk(ast.parse(source), True, False)
    return found


@cache
def imports():
    known = modules()
    return [
        one for name, path in known.items() for one in imports_of(name, path.read_text(), known)
    ]


def room_of(module):
    parts = module.split(".")
    return parts[1] if len(parts) > 1 else "__init__"


def inside():
    """Imports of the package by itself, but for its own first file, which lies on no floor: it names everything and loads nothing."""
    return [
        one for one in imports() if one.of.split(".")[0] == PACKAGE.name and one.by != PACKAGE.name
    ]


def misplaced(imported):
    """Give the imports that go up or sideways; the package itself holds nothing but the version, which all may have."""
    return [
        f"{one.by}: line {one.line}: {room_of(one.of)} is on floor {FLOOR[room_of(one.of)]}, {room_of(one.by)} on floor {FLOOR[room_of(one.by)]}"
        for one in imported
        if one.of != PACKAGE.name
        and room_of(one.of) != room_of(one.by)
        and FLOOR[room_of(one.of)] >= FLOOR[room_of(one.by)]
    ]


def circles(imported):
    """Give the rings of modules that import one another, each as the modules on it in order."""
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


def test_every_room_has_a_floor():
    assert {room_of(name) for name in modules()} - {"__init__"} == set(FLOOR)


def test_imports_go_down_only():
    assert misplaced(inside()) == []


def test_rooms_are_entered_by_the_door():
    inner = {
        (one.by, one.of)
        for one in inside()
        if one.of.count(".") > 1 and room_of(one.by) != room_of(one.of)
    }
    assert [
        f"{by}: {of}"
        for by, of in sorted(inner)
        if of.split(".")[2] not in PARTS.get(room_of(of), ())
    ] == []


def test_no_module_imports_itself_by_a_detour():
    through_doors = [one for one in inside() if (one.by, one.of) in DOORS]
    assert not any(one.at_load for one in through_doors)
    assert circles(one for one in inside() if not one.for_types and one not in through_doors) == []


def test_an_import_upward_sideways_or_around_would_be_seen():
    known = {
        "flarecli": "",
        "flarecli.read": "",
        "flarecli.formats": "",
        "flarecli.formats.mds": "",
        "flarecli.encodings": "",
        "flarecli.where": "",
    }
    up = imports_of("flarecli.formats.mds", "def late():\n    from flarecli import read", known)
    beside = imports_of("flarecli.where", "import flarecli.encodings.names", known)
    around = imports_of("flarecli.formats", "from flarecli.formats import mds", known) + imports_of(
        "flarecli.formats.mds", "if True:\n    from flarecli.formats import find", known
    )
    assert misplaced(up + beside + around) == [
        "flarecli.formats.mds: line 2: read is on floor 9, formats on floor 7",
        "flarecli.where: line 1: encodings is on floor 6, where on floor 6",
    ]
    assert circles(around) == [["flarecli.formats", "flarecli.formats.mds"]]


def test_what_the_command_line_loads_first_is_light():
    """From `__main__` and every command, along the imports that run when a module is loaded."""
    at_load = [one for one in imports() if one.at_load]
    reached, todo = (
        set(),
        {
            name
            for name in modules()
            if room_of(name) in ("__main__", "cli", "errors", "units", "names", "progress", "model")
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


def test_only_the_command_line_knows_typer():
    assert {room_of(one.by) for one in imports() if one.of.split(".")[0] in ("typer", "click")} == {
        "cli"
    }


@pytest.mark.parametrize("argv", [["--version"], ["--help"], ["pack", "--help"]])
def test_what_answers_at_once_loads_nothing_heavy(argv):
    """The same as the process sees it: also what a library loads by itself."""
    program = (
        "import sys\nfrom flarecli.__main__ import main\ncode = main(sys.argv[1:])\n"
        f"print(sorted(set(sys.modules) & {HEAVY | {'pydantic'}!r}), code, file=sys.stderr)"
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
def test_a_check_of_sums_and_structure_loads_no_arrow(folder):
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
def test_a_look_at_what_is_there_loads_no_arrow(folder):
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


def test_data_is_not_checked_by_assert():
    asserts = [
        (name, node.lineno)
        for name, path in modules().items()
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.Assert)
    ]
    assert asserts == []
