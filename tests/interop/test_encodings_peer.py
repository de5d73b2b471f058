"""Encodings beside the libraries that define them: the same values become the same bytes, and either side reads the other's.

PEER_PYTHON names an interpreter that has mosaicml-streaming 0.13, GRANULAR_PYTHON and GRANULAR_OLD_PYTHON ones that have granular.
"""

import functools
import json
import os
import runpy
import subprocess
from pathlib import Path

import PIL
import pytest

from flarecli.encodings import decode, encode, lookup
from flarecli.errors import FlareError

SCRIPT = Path(__file__).with_name("encodings_peer.py")
theirs = runpy.run_path(str(SCRIPT))
NAMES = {"utf8": "str", "int": "varint", "i64": "int", "u64": "uint64"}
PEERS = {"PEER_PYTHON": "mds", "GRANULAR_PYTHON": "granular", "GRANULAR_OLD_PYTHON": "granular"}


def ours(kind, library):
    return lookup(NAMES.get(kind, kind) if library == "granular" else kind)


def encoded(library):
    """Our bytes of every value, None where we refuse it."""
    for kind, value in theirs["VALUES"][library]():
        try:
            yield kind, encode(ours(kind, library), value)
        except FlareError:
            yield kind, None


@functools.cache
def peer(variable):
    """Give what the original encodes each value to, what it decodes our bytes to, and the version of its Pillow."""
    python, library = os.environ.get(variable), PEERS[variable]
    if not python:
        pytest.skip(f"{variable} names no interpreter that has the original library")
    pillow = subprocess.run(
        [python, "-c", "import PIL; print(PIL.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    given = [(kind, data) for kind, data in encoded(library) if data is not None]
    lines = "".join(json.dumps([kind, data.hex()]) + "\n" for kind, data in given)
    ran = subprocess.run(
        [python, str(SCRIPT), library],
        input=lines,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    out = [json.loads(line) for line in ran.stdout.splitlines()]
    count = len(out) - len(given)
    return (
        [None if data is None else bytes.fromhex(data) for data in out[:count]],
        list(zip(given, out[count:], strict=True)),
        pillow,
    )


@pytest.mark.parametrize("variable", PEERS)
def test_values_become_the_same_bytes(variable):
    theirs_bytes, _, pillow = peer(variable)
    same = 0
    for (kind, data), wanted in zip(encoded(PEERS[variable]), theirs_bytes, strict=True):
        if wanted is None or (
            kind in ("jpeg", "png", "list[jpeg]", "list[png]") and pillow != PIL.__version__
        ):
            continue  # the original refuses it, or another Pillow compresses otherwise
        assert data == wanted, (kind, data, wanted)
        same += 1
    assert same > 250


@pytest.mark.parametrize("variable", PEERS)
def test_the_original_reads_what_flare_encodes(variable):
    _, answers, _ = peer(variable)
    library = PEERS[variable]
    for (kind, data), found in answers:
        if kind == "pkl" or data in (b"not json", b"no picture"):
            continue
        value = decode(ours(kind, library), data)
        if data == bytes(4) and kind in ("jpeg_array", "jpegarray"):
            assert "error" in found, "the original does not read its own empty arrays"
            continue
        assert found == theirs["shown"](value), (kind, data[:40])


def test_only_what_cannot_be_read_back_is_refused():
    for library in ("mds", "granular"):
        refused = [kind for kind, data in encoded(library) if data is None]
        assert refused == [], library
