"""The names of the package: all there, none loaded before it is used."""

import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

import flarecli


@pytest.mark.parametrize("name", flarecli.__all__)
def test_every_public_name_is_there(name):
    assert getattr(flarecli, name) is getattr(flarecli, name)
    assert name in dir(flarecli)


def test_a_name_that_is_not_there_is_an_attribute_error():
    with pytest.raises(AttributeError) as caught:
        flarecli.nothing  # noqa: B018
    assert str(caught.value) == "module 'flarecli' has no attribute 'nothing'"


def test_importing_the_package_imports_none_of_its_modules():
    code = (
        "import sys, flarecli; print([name for name in sys.modules if name.startswith('flarecli')])"
    )
    assert (
        subprocess.run(
            [sys.executable, "-c", code], capture_output=True, text=True, check=True
        ).stdout
        == "['flarecli']\n"
    )


@pytest.mark.parametrize(
    "first",
    [
        "flarecli",
        "flarecli.playlists",
        "flarecli.read",
        "flarecli.verbs",
        "flarecli.verbs.playlist",
    ],
)
def test_playlist_is_the_command_whatever_was_imported_first(first):
    code = f"import {first}, flarecli, flarecli.verbs; print(flarecli.playlist is flarecli.verbs.playlist)\n"
    code += "try: flarecli.playlist('/nowhere/x')\nexcept flarecli.errors.MissingError as error: print(error.kind)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("True\nmissing\n", "")


def test_a_source_package_holds_all_that_its_own_tests_need_and_a_wheel_the_package_alone(tmp_path):
    pytest.importorskip("setuptools")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "demo")
    root, checkout = Path(__file__).parents[1], tmp_path / "checkout"
    shutil.copytree(root, checkout, ignore=ignored)
    shutil.copy(root / ".pre-commit-hooks.yaml", checkout)
    there = {str(path.relative_to(checkout)) for path in checkout.glob("*/**/*") if path.is_file()}
    there |= {
        "README.md",
        "CHANGELOG.md",
        "CONTRIBUTING.md",
        "LICENSE",
        "Makefile",
        "pyproject.toml",
        "action.yml",
        ".pre-commit-hooks.yaml",
    }
    code = "from setuptools import build_meta as b; print(b.build_sdist('out')); print(b.build_wheel('out'))"
    ran = subprocess.run([sys.executable, "-c", code], cwd=checkout, capture_output=True, text=True)
    assert ran.returncode == 0, ran.stderr
    (source,), (wheel,) = (list((checkout / "out").glob(f"*.{kind}")) for kind in ("tar.gz", "whl"))
    with tarfile.open(source) as tar:
        held = {name.partition("/")[2] for name in tar.getnames()}
    assert there - held == set()
    inside = set(zipfile.ZipFile(wheel).namelist())
    assert {name for name in inside if ".dist-info/" not in name} == {
        name for name in there if name.startswith("flarecli/")
    }
    assert {
        "flarecli/py.typed",
        f"flarecli-{flarecli.__version__}.dist-info/licenses/LICENSE",
    } <= inside
