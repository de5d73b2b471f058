"""The files around the package: workflows, forms, citation, container, recipe and metadata are
valid and contain only existing names.
"""

import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import trove_classifiers
import yaml
from packaging.requirements import Requirement

import flarecli

ROOT = Path(__file__).parents[1]
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"[\w-]+/[\w-]+@(v\d+|release/v\d+)")
CONDA_NAMES = {
    "msgpack": "msgpack-python",
    "xxhash": "python-xxhash",
    "isal": "python-isal",
    "duckdb": "python-duckdb",
}


def load(name):
    """Import a program of the folder `packaging`."""
    spec = importlib.util.spec_from_file_location(name, ROOT / "packaging" / f"{name}.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("schema", "files"),
    [
        ("github-workflows", WORKFLOWS),
        ("github-actions", [ROOT / "action.yml"]),
        ("github-issue-config", [ROOT / ".github/ISSUE_TEMPLATE/config.yml"]),
        (
            "github-issue-forms",
            [ROOT / f".github/ISSUE_TEMPLATE/{name}.yml" for name in ("bug", "feature")],
        ),
        ("citation-file-format", [ROOT / "CITATION.cff"]),
    ],
)
def test_each_file_is_valid_by_the_schema_of_its_service(schema, files):
    argv = [sys.executable, "-m", "check_jsonschema", "--builtin-schema", f"vendor.{schema}"]
    done = subprocess.run([*argv, *map(str, files)], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "ok -- validation done\n"), done.stdout


def test_workflows_run_targets_and_files_that_exist():
    targets = set(re.findall(r"^([a-z]+):", (ROOT / "Makefile").read_text(), flags=re.MULTILINE))
    markers = (ROOT / "pyproject.toml").read_text()
    for path in WORKFLOWS:
        for job in yaml.safe_load(path.read_text())["jobs"].values():
            for step in job["steps"]:
                if "uses" in step:
                    assert PINNED.fullmatch(step["uses"]), step["uses"]
                    continue
                words = step["run"].split()
                if words[0] == "make":
                    named = {word for word in words[1:] if "=" not in word}
                    assert named <= targets, step["run"]
                elif words[0] == "bash":
                    assert (ROOT / words[1]).is_file()
                elif words[:3] == ["python", "-m", "pytest"]:
                    assert f'"{words[-1]}:' in markers
                else:
                    assert words[:4] == ["python", "-m", "pip", "install"]


def test_all_versions_and_licences_agree():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text())
    recipe = yaml.safe_load((ROOT / "packaging" / "recipe.yaml").read_text())
    assert PROJECT["version"] == flarecli.__version__
    assert citation["version"] == recipe["context"]["version"] == PROJECT["version"]
    assert citation["license"] == recipe["about"]["license"] == PROJECT["license"]
    assert recipe["context"]["python_min"] == PROJECT["requires-python"].removeprefix(">=")


def test_the_recipe_has_the_dependencies_and_the_command_of_the_project():
    recipe = yaml.safe_load((ROOT / "packaging" / "recipe.yaml").read_text())
    wanted = [Requirement(one) for one in PROJECT["dependencies"]]
    expected = [
        f"{CONDA_NAMES.get(one.name, one.name)} {','.join(sorted(map(str, one.specifier), reverse=True))}"
        for one in wanted
    ]
    assert recipe["requirements"]["run"][1:] == expected
    scripts = [f"{name} = {at}" for name, at in PROJECT["scripts"].items()]
    assert recipe["build"]["python"]["entry_points"] == scripts
    (build,) = tomllib.loads((ROOT / "pyproject.toml").read_text())["build-system"]["requires"]
    assert build.replace(">", " >") in recipe["requirements"]["host"]
    for name in recipe["tests"][0]["python"]["imports"]:
        assert importlib.util.find_spec(name), name


def test_the_steps_of_the_dockerfile_install_a_working_command(tmp_path):
    lines = (ROOT / "Dockerfile").read_text().splitlines()
    steps = [line.removeprefix("RUN ") for line in lines if line.startswith("RUN ")]
    assert [line for line in lines if line.startswith("COPY")] == ["COPY . /source"]
    environment = tmp_path / "environment"
    made = [sys.executable, "-m", "venv", "--without-pip", str(environment)]
    subprocess.run(made, check=True, capture_output=True)
    # the other packages are those of this environment, so that nothing is downloaded
    (site,) = environment.glob("lib/python*/site-packages")
    (site / "parent.pth").write_text(str(Path(pytest.__file__).parents[1]))
    ignored = (ROOT / ".dockerignore").read_text().replace("**/", "").split()
    shutil.copytree(ROOT, tmp_path / "source", ignore=shutil.ignore_patterns(*ignored, ".*_cache"))
    script = "\n".join(steps).replace("/source", str(tmp_path / "source"))
    env = {**os.environ, "PATH": f"{environment / 'bin'}:{os.environ['PATH']}"}
    env |= {"PIP_NO_INDEX": "1", "PIP_NO_BUILD_ISOLATION": "0", "PIP_NO_DEPS": "1"}
    done = subprocess.run(
        ["sh", "-e", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == f"flare {flarecli.__version__}"


def test_a_build_for_a_repository_has_absolute_links_only():
    dist, url = load("dist"), "https://example.org/team/flare"
    readme = (ROOT / "README.md").read_text()
    changed = dist.with_absolute_links(readme, url)
    links = re.findall(r"\]\(([^)\s]+)\)", changed)
    assert all(link.startswith(("https://", "#")) for link in links)
    inside = [link.removeprefix(f"{url}/blob/main/") for link in links if link.startswith(url)]
    assert len(inside) > 5
    for link in inside:
        assert (ROOT / link.removeprefix(f"{url}/raw/main/").partition("#")[0]).exists(), link
    project = tomllib.loads(dist.with_links((ROOT / "pyproject.toml").read_text(), url))["project"]
    assert set(project["urls"]) == {"Repository", "Issues", "Changelog", "Documentation"}
    assert all(one.startswith(url) for one in project["urls"].values())
    assert project["scripts"] == PROJECT["scripts"]


def test_the_lowest_versions_are_those_of_the_project():
    pins = load("installs").floors()
    assert len(pins) == len(PROJECT["dependencies"])
    for pin, wanted in zip(pins, PROJECT["dependencies"], strict=True):
        one = Requirement(pin)
        ((operator, version),) = [(each.operator, each.version) for each in one.specifier]
        assert operator == "=="
        assert Requirement(wanted).specifier.contains(version)


def test_metadata_have_authors_keywords_and_known_classifiers():
    classifiers = PROJECT["classifiers"]
    assert set(classifiers) <= trove_classifiers.classifiers
    assert PROJECT["authors"] == [{"name": "The flare authors"}]
    assert PROJECT["keywords"]
    assert "urls" not in PROJECT  # a release sets them
    tested = yaml.safe_load((ROOT / ".github/workflows/ci.yml").read_text())["jobs"]["linux"]
    versions = tested["strategy"]["matrix"]["python"]
    assert [one.rpartition(" ")[2] for one in classifiers if ":: 3." in one] == versions
