"""Options are declared once: the functions, the command line and the docs agree with the
declarations.
"""

import inspect
from pathlib import Path

import pytest

import flarecli as flare
from flarecli.access import CacheOptions
from flarecli.arguments import declared
from flarecli.commands import options as commands
from flarecli.storage import Limits

DOCS = Path(__file__).parents[1] / "docs"
OPTIONS = {
    "pack": commands.PackOptions,
    "unpack": commands.UnpackOptions,
    "verify": commands.VerifyOptions,
    "cat": commands.CatOptions,
    "inspect": commands.InspectOptions,
    "playlist": commands.PlaylistOptions,
}


@pytest.mark.parametrize("name", OPTIONS)
def test_the_signature_of_a_function_has_every_option_with_its_default(name):
    parameters = inspect.signature(getattr(flare, name)).parameters
    shown = {one.name: parameters[one.name].default for one in declared(OPTIONS[name])}
    assert shown == {one.name: one.default for one in declared(OPTIONS[name])}
    assert all(
        f"\n{one.name}: {one.help}" in getattr(flare, name).__doc__
        for one in declared(OPTIONS[name])
    )


def test_the_signature_of_open_has_the_defaults_of_the_commands():
    parameters = inspect.signature(flare.open).parameters
    known = {one.name: one.default for one in declared(CacheOptions)}
    shown = {name: parameters[name].default for name in known if name in parameters}
    assert shown == {name: known[name] for name in shown}
    assert set(known) - set(shown) == {"jobs"}


def test_the_defaults_of_transfers_are_those_of_the_storage_layer():
    assert commands.PackOptions("a", "b").limits() == Limits()


@pytest.mark.parametrize(
    ("given", "wanted"),
    [
        ({"timeout": "2m"}, Limits(timeout_s=120.0)),
        ({"deadline": 5, "jobs": 3}, Limits(deadline_s=5, jobs=3)),
        ({"max_object": "1MiB", "retries": 0}, Limits(max_bytes=1 << 20, retries=0)),
    ],
)
def test_sizes_and_times_may_be_text_in_python(given, wanted):
    assert commands.PackOptions("a", "b", **given).limits() == wanted
