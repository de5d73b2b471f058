"""The names of the package: all there, none loaded before it is used."""

import subprocess
import sys

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
    code = "import sys, flarecli; print([name for name in sys.modules if name.startswith('flarecli')])"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "['flarecli']\n"


@pytest.mark.parametrize("first", ["flarecli", "flarecli.playlists", "flarecli.read", "flarecli.verbs", "flarecli.verbs.playlist"])
def test_playlist_is_the_command_whatever_was_imported_first(first):
    code = f"import {first}, flarecli, flarecli.verbs; print(flarecli.playlist is flarecli.verbs.playlist)\n"
    code += "try: flarecli.playlist('/nowhere/x')\nexcept flarecli.errors.MissingError as error: print(error.kind)"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert (ran.stdout, ran.stderr) == ("True\nmissing\n", "")
