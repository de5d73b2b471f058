"""docs/json.md and docs/schemas are correct about `--json`: each key, in its order, with a value of
its type.
"""

import json
import re
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from jsonschema import Draft202012Validator

from flarecli import errors
from flarecli.__main__ import main

DOCS = Path(__file__).parents[1] / "docs"
PAGE = (DOCS / "json.md").read_text()
SCHEMAS = {
    path.stem: json.loads(path.read_text()) for path in sorted((DOCS / "schemas").glob("*.json"))
}
TYPES = {"text": str, "number": (int, float), "object": dict, "list": list, "true or false": bool}


def tables():
    """Return heading -> table of keys: (key, type, whether it is always present)."""
    found = {}
    for part in re.split(r"^## ", PAGE, flags=re.MULTILINE)[1:]:
        title = part.split("\n", 1)[0].split(",")[0]
        for i, rows in enumerate(
            re.findall(r"\| key \| type \| \|\n\|[-|]+\|\n((?:\|.*\n)+)", part)
        ):
            keys = []
            for row in rows.splitlines():
                names, kinds, text = (cell.strip() for cell in row.strip("|").split("|", 2))
                kinds = kinds.split(", ")
                for name, kind in zip(
                    re.findall(r"`(\w+)`", names),
                    kinds * (1 if len(kinds) > 1 else 9),
                    strict=False,
                ):
                    keys.append((name, kind, "*Only with*" not in text))
            found[title, i] = keys
    return found


TABLES = tables()


def check_object(value, table, without=()):
    """Compare an object with a table of the page."""
    wanted = [
        (name, kind)
        for name, kind, always in TABLES[table]
        if (always or name in value) and name not in without
    ]
    assert list(value) == [name for name, _ in wanted]
    for name, kind in wanted:
        if value[name] is None:
            assert kind.endswith("?"), name
        else:
            assert isinstance(value[name], TYPES[kind.rstrip("?")]), name


def schema_of(words, value):
    """Return the name of the schema for an object that a command line prints."""
    command = words[0]
    if command == "verify":
        return "verify-summary" if "findings" in value else "verify-finding"
    for option in ("--html", "--cache", "--check", "--diff", "--reindex"):
        if option in words and command in ("inspect", "playlist"):
            return command + option[1:]
    return command


def check_schema(name, value):
    """Validate an object, including that the schema lists all of its keys."""
    Draft202012Validator(SCHEMAS[name]).validate(value)
    if "properties" in SCHEMAS[name]:
        assert value.keys() <= SCHEMAS[name]["properties"].keys()


@pytest.mark.parametrize("name", SCHEMAS)
def test_each_schema_is_valid(name):
    Draft202012Validator.check_schema(SCHEMAS[name])
    assert f"schemas/{name}.json" in PAGE


@pytest.mark.parametrize(
    ("table", "name"),
    [
        (("pack", 0), "pack"),
        (("unpack", 0), "unpack"),
        (("inspect", 0), "inspect"),
        (("verify", 0), "verify-finding"),
        (("verify", 1), "verify-summary"),
        (("failed.jsonl", 0), "failed"),
    ],
)
def test_a_schema_and_its_table_list_the_same_keys(table, name):
    schema = SCHEMAS[name]
    assert list(schema["properties"]) == [key for key, _, _ in TABLES[table]]
    assert schema["required"] == [key for key, _, always in TABLES[table] if always]
    stream = SCHEMAS["inspect"]["properties"]["streams"]["items"]
    assert list(stream["properties"]) == [key for key, _, _ in TABLES["inspect", 1]]
    error = SCHEMAS["error"]["properties"]["error"]
    assert list(error["properties"]) == [key for key, _, _ in TABLES["Errors", 0]]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    folder = tmp_path_factory.mktemp("json")
    (folder / "a.bin").write_bytes(b"\xff\xfe")
    pq.write_table(
        pa.table(
            {
                "id": ["a", "b"],
                "url": ["a.bin", "gone.bin"],
                "n": [float("nan"), float("inf")],
                "text": ["x", "y"],
            }
        ),
        folder / "t.parquet",
    )
    return folder


@pytest.fixture
def run(place, monkeypatch, capfd):
    """Run a command line with --json; return its exit code and the objects on stdout and stderr."""
    monkeypatch.chdir(place)

    def ran(line, **replaced):
        code = main([*line.split(), "--json"])
        out, err = capfd.readouterr()
        for text in (*out.splitlines(), *err.splitlines()):
            json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is no JSON"))
        found = [json.loads(text) for text in out.splitlines()]
        failed = [json.loads(text) for text in err.splitlines()]
        for value in found if "--field" not in line else ():
            check_schema(schema_of(line.split(), value), value)
        for value in failed:
            check_schema("error", value)
        return code, found, failed

    return ran


@pytest.fixture
def packed(run, place, tmp_path):
    def pack(more=""):
        code, (told,), _ = run(f"pack t.parquet {tmp_path}/out -c id,n,text {more}")
        assert code == 0
        return told, tmp_path / "out"

    return pack


def test_pack_and_its_list_of_failed_rows_have_the_documented_keys(run, tmp_path, capfd):
    assert (
        main(
            [
                "pack",
                "t.parquet",
                f"{tmp_path}/some",
                "--fetch",
                "url",
                "--on-error",
                "skip",
                "-q",
                "--key",
                "id",
            ]
        )
        == 1
    )
    capfd.readouterr()
    (failed,) = [
        json.loads(line) for line in (tmp_path / "some" / "failed.jsonl").read_text().splitlines()
    ]
    check_object(failed, ("failed.jsonl", 0))
    check_schema("failed", failed)
    code, (told,), _ = run(f"pack t.parquet {tmp_path}/dry --dry-run")
    assert (code, told["dry_run"]) == (0, True)
    check_object(told, ("pack", 0))


def test_a_resumed_pack_and_unpack_have_the_documented_keys(run, packed, tmp_path):
    told, out = packed()
    check_object(told, ("pack", 0))
    again, _ = packed("--resume")
    assert list(again) == list(told)
    code, (told,), _ = run(f"unpack {out} {tmp_path}/files -c id,text --key id")
    assert code == 0
    check_object(told, ("unpack", 0))


def test_inspect_has_the_documented_keys(run, packed, tmp_path):
    _, out = packed("--shard-rows 1")
    for options in ("", "--shards", "--stats", "--sample 1", "--shards --stats --sample 2 --urls"):
        code, (told,), _ = run(f"inspect {out} {options}")
        assert code == 0
        check_object(told, ("inspect", 0), {"missing", "sample_asked"})
        check_object(told["streams"][0], ("inspect", 1))
    assert list(told["streams"][0]["shard_list"][0]) == ["url", "rows", "bytes", "first"]
    assert {"sample", "stats", "shard_list", "urls"} <= {*told, *told["streams"][0]}
    (out / "shard.00000.mds").unlink()
    code, (told,), _ = run(f"inspect {out} --stats")
    assert (code, [Path(one).name for one in told["missing"]]) == (3, ["shard.00000.mds"])
    check_object(told, ("inspect", 0))
    assert list(run(f"inspect {out} --html {tmp_path}/p.html")[1][0]) == ["html", "bytes"]
    assert list(run(f"inspect --cache {tmp_path}/kept")[1][0]) == ["cache", "bytes", "copies"]
    for name, _, always in TABLES["inspect", 0]:
        if always:
            assert run(f"inspect {out} --field {name}")[0] == 0


def test_verify_and_its_report_have_the_documented_keys(run, packed, tmp_path):
    _, out = packed()
    code, (told,), _ = run(f"verify {out}")
    assert code == 0
    check_object(told, ("verify", 1))
    shard = out / "shard.00000.mds"
    shard.write_bytes(shard.read_bytes()[:-1] + b"x")
    code, (finding, told), _ = run(f"verify {out} --report {tmp_path}/r.json")
    assert code == 1
    check_object(finding, ("verify", 0))
    check_object(told, ("verify", 1))
    report = json.loads((tmp_path / "r.json").read_text())
    check_schema("verify-report", report)
    names = [name for name, _, _ in TABLES["verify", 1]]
    assert list(report) == ["sources", "whole", *names[:5], "found", "unprotected", "extra"]
    assert set(report["found"][0]) == {*finding, "file", "row", "line"}


def test_playlist_has_the_documented_keys(run, packed, tmp_path, place, monkeypatch):
    _, out = packed()
    monkeypatch.chdir(tmp_path)
    assert list(run(f"playlist {out} -o {tmp_path}/p.yaml")[1][0]) == ["playlist"]
    code, (told,), _ = run("playlist out")
    assert (code, list(told), told["playlist"]) == (0, ["playlist", "text"], None)
    assert list(run(f"playlist {out} --diff {tmp_path}/p.yaml")[1][0]) == [
        "added",
        "removed",
        "changed",
    ]
    code, (finding,), _ = run(f"playlist --check {place}/t.parquet")
    assert (code, list(finding)) == (1, ["where", "kind", "message", "hint"])
    (out / "index.json").unlink()
    assert run(f"playlist {out} --reindex")[1] == [{"index": f"{out}/index.json"}]


def test_cat_and_errors_have_the_documented_keys(run, packed):
    _, out = packed()
    assert run(f"cat {out}")[:2] == (
        0,
        [{"id": "a", "n": None, "text": "x"}, {"id": "b", "n": None, "text": "y"}],
    )
    code, told, (error,) = run(f"cat {out} -r 7")
    assert (code, told, list(error)) == (2, [], ["error"])
    check_object(error["error"], ("Errors", 0))


def test_drop_compact_log_and_prune_have_the_documented_keys(run, packed):
    _, out = packed("--shard-rows 1")
    assert run(f"pack t.parquet {out} -c id,n,text --append")[0] == 0
    for line in ("drop OUT --where id='a' -n", "drop OUT --rows 0", "compact OUT", "log OUT"):
        code, (value,), _ = run(line.replace("OUT", str(out)))
        assert (code, bool(value)) == (0, True)
    assert [one["verb"] for one in value["versions"]] == ["pack", "append", "drop", "compact"]
    code, (value,), _ = run(f"prune {out} --keep 1")
    assert (code, value["versions"]) == (0, [1, 2, 3])


def test_every_kind_of_error_is_listed_with_its_exit_code():
    kinds = {
        (one.kind, one.exit_code)
        for one in vars(errors).values()
        if isinstance(one, type) and issubclass(one, errors.FlareError)
    }
    shown = re.search(r"\| exit \| kinds \|\n\|[-|]+\|\n((?:\|.*\n)+)", PAGE)[1]
    told = {
        (kind, int(row.split("|")[1].split(",")[0]))
        for row in shown.splitlines()
        for kind in re.findall(r"`(\w+)`", row)
    }
    assert told == kinds | {("bug", 1), ("interrupted", 130)}


def test_flare_json_changes_only_errors_if_a_form_is_requested(packed):
    _, out = packed()
    command = [sys.executable, "-m", "flarecli", "cat", str(out), "--to", "csv", "-c", "id"]
    ran = subprocess.run(
        command,
        env={"FLARE_JSON": "1", "PATH": ""},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert (ran.returncode, ran.stdout, ran.stderr) == (0, "id\na\nb\n", "")
