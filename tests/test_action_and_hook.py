"""Continuous integration: the steps of the Action as scripts, and the hook in a new repository."""

import os
import re
import shutil
import subprocess
import sys
import sysconfig
import xml.etree.ElementTree as ElementTree
from pathlib import Path

import pytest
import yaml

from flarecli.write import Writer

CUT = "The file was cut short; fetch it again, or pack it again with `flare pack … --overwrite`."
ROOT = Path(__file__).parents[1]
BASH = shutil.which("bash")
PATH = f"{sysconfig.get_path('scripts')}:{Path(sys.executable).parent}:{os.environ.get('PATH', '')}"


def packed(folder):
    with Writer(str(folder), columns={"id": "int"}) as writer:
        for i in range(9):
            writer.write({"id": i})
    return folder


def step(name, folder, **inputs):
    """Run a step of the Action like GitHub: variables from the inputs, and its script with `bash -e
    -o pipefail`.

    The environment that the first steps create is a folder with links to the commands of this
    environment.
    """
    action = yaml.safe_load((ROOT / "action.yml").read_text())
    (found,) = [one for one in action["runs"]["steps"] if one["name"] == name]
    values = {
        f"inputs.{key}": inputs.get(key, value.get("default", ""))
        for key, value in action["inputs"].items()
    }
    commands = folder / "runner" / "flare" / "bin"
    if not commands.exists():
        commands.parent.mkdir(parents=True)
        commands.symlink_to(sysconfig.get_path("scripts"))
    values["runner.temp"] = str(folder / "runner")
    env = {
        key: re.sub(r"\$\{\{ ([\w.]+) \}\}", lambda match: values[match[1]], text)
        for key, text in found["env"].items()
    }
    argv = [BASH, "--noprofile", "--norc", "-e", "-o", "pipefail", "-c", found["run"]]
    kept = {key: value for key, value in os.environ.items() if not key.startswith("FLARE_")}
    return subprocess.run(
        argv, cwd=folder, env={**kept, **env, "PATH": PATH}, capture_output=True, text=True
    )


@pytest.mark.skipif(BASH is None, reason="bash is not installed")
def test_the_action_accepts_a_whole_dataset_and_annotates_a_damaged_one(tmp_path):
    out = packed(tmp_path / "a set; touch ran")
    ran = step(
        "Verify",
        tmp_path,
        sources=f"{out.name}\n",
        options="--decode\n--jobs=1",
        report="found report.xml",
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ElementTree.parse(tmp_path / "found report.xml").getroot().get("failures") == "0"
    (out / "shard.00000.mds").write_bytes(b"short")
    ran = step("Verify", tmp_path, sources=f"\n{out.name}", report="found report.xml")
    size = (
        (tmp_path / out.name / "playlist.yaml")
        .read_text()
        .partition("bytes: [")[2]
        .partition("]")[0]
    )
    said = f"shard.00000.mds: file is 5 bytes, {out.name}/playlist.yaml lists {size} (bytes 5-{int(size) - 1}) ({CUT})"
    first = f"::error file={out.name}/shard.00000.mds,title=flare verify%2C size::{said}\n"
    assert (ran.returncode, ran.stderr) == (1, first)
    assert ElementTree.parse(tmp_path / "found report.xml").getroot().get("failures") == "1"
    assert not (tmp_path / "ran").exists()


def test_the_action_does_not_insert_inputs_into_scripts():
    steps = yaml.safe_load((ROOT / "action.yml").read_text())["runs"]["steps"]
    assert [one["name"] for one in steps if "run" in one] == ["Install flare", "Verify"]
    for one in steps:
        if "run" in one:
            assert "${{" not in one["run"]
            assert one["shell"] == "bash"


def check_commits(folder, repos, **environment):
    """Commit a whole, a damaged and a repaired dataset with pre-commit in a new repository, and
    check each exit code and output.

    repos  the value of `repos` in .pre-commit-config.yaml, which contains the hook
    """
    repository = folder / "repository"
    repository.mkdir()
    (repository / ".pre-commit-config.yaml").write_text(yaml.safe_dump({"repos": repos}))
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("GIT_", "FLARE_"))}
    env = {**kept, "HOME": str(folder), "PRE_COMMIT_HOME": str(folder / "kept"), **environment}

    def run(*argv):
        return subprocess.run(argv, cwd=repository, env=env, capture_output=True, text=True)

    def commit():
        run("git", "add", ".")
        author = ["-c", "user.name=a", "-c", "user.email=a@example.org"]
        done = run("git", *author, "commit", "--allow-empty", "-m", "change")
        return done.returncode, done.stdout + done.stderr

    assert run("git", "init", "-q", ".").returncode == 0
    assert run(sys.executable, "-m", "pre_commit", "install").returncode == 0
    packed(repository / "out")
    (repository / "notes.txt").write_text("no dataset")
    code, text = commit()
    assert code == 0, text
    assert re.search(r"^flare verify\.+Passed$", text, re.MULTILINE)
    path = repository / "out" / "shard.00000.mds"
    data = path.read_bytes()
    for change, found in (
        (b"short", "out/shard.00000.mds: "),
        (data[:-1] + bytes([data[-1] ^ 1]), "checksum mismatch "),
    ):
        path.write_bytes(change)
        code, text = commit()
        assert code == 1
        assert found in text
        assert "1 finding" in text
    path.write_bytes(data)
    assert commit()[0] == 0


def test_the_hook_rejects_a_commit_of_a_damaged_dataset(tmp_path):
    """Use the entry and the pattern of the hook with the installed flare.

    tests/interop/test_hook_peer.py installs the hook.
    """
    pytest.importorskip("pre_commit")
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    kept = {key: value for key, value in hook.items() if key != "description"}
    local = {"repo": "local", "hooks": [{**kept, "language": "system"}]}
    check_commits(tmp_path, [local], PATH=PATH)


def test_the_hook_is_valid_by_the_schema_of_pre_commit():
    pytest.importorskip("pre_commit")
    argv = [sys.executable, "-m", "pre_commit", "validate-manifest", ".pre-commit-hooks.yaml"]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


@pytest.mark.parametrize(
    ("name", "is_checked"),
    [
        ("out/playlist.yaml", True),
        ("index.json", True),
        ("out/spec.json", True),
        ("out/shardindex.json", True),
        ("out/shard.00000.mds", True),
        ("out/shard.00000.mds.zstd", True),
        ("out/shard.00000.csv", True),
        ("out/shard.00000.csv.meta", True),
        ("out/shard.00000.json.gz", True),
        ("out/00000.tar", True),
        ("out/00000.tgz", True),
        ("out/shards/000000/text.bag", True),
        ("out/shards/000000/text.idx", True),
        ("out/train.ffr", True),
        ("package.json", False),
        ("data.csv", False),
        ("my-index.json", False),
        ("mds.py", False),
        ("notes.mds.txt", False),
    ],
)
def test_the_hook_matches_all_files_of_datasets(name, is_checked):
    (hook,) = yaml.safe_load((ROOT / ".pre-commit-hooks.yaml").read_text())
    assert bool(re.search(hook["files"], name)) == is_checked
