"""Encodings compared with the libraries that define them: the same bytes for the same values, and
each decodes the bytes of the other.

PEER_PYTHON names an interpreter that has mosaicml-streaming 0.13; GRANULAR_PYTHON and
GRANULAR_OLD_PYTHON have granular.
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
shared = runpy.run_path(str(SCRIPT))
NAMES = {"utf8": "str", "int": "varint", "i64": "int", "u64": "uint64"}
PEERS = {"PEER_PYTHON": "mds", "GRANULAR_PYTHON": "granular", "GRANULAR_OLD_PYTHON": "granular"}


def encoding(kind, library):
    """Return flare's encoding for a type of the library."""
    return lookup(NAMES.get(kind, kind) if library == "granular" else kind)


def encoded(library):
    """Yield type and bytes of every value as flare encodes it; None if flare rejects it."""
    for kind, value in shared["VALUES"][library]():
        try:
            yield kind, encode(encoding(kind, library), value)
        except FlareError:
            yield kind, None


@functools.cache
def peer(variable):
    """Return the bytes and the values that the original returns, and the version of its Pillow.

    The values are decoded from the bytes that flare writes.
    """
    python, library = os.environ.get(variable), PEERS[variable]
    if not python:
        pytest.skip(f"{variable} names no interpreter that has the original library")
    pillow = subprocess.run(
        [python, "-c", "import PIL; print(PIL.__version__)"],
        capture_output=True,
        text=True,
        check=True,
    ).stdout.strip()
    sent = [(kind, data) for kind, data in encoded(library) if data is not None]
    lines = "".join(json.dumps([kind, data.hex()]) + "\n" for kind, data in sent)
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
    count = len(out) - len(sent)
    return (
        [None if data is None else bytes.fromhex(data) for data in out[:count]],
        list(zip(sent, out[count:], strict=True)),
        pillow,
    )


@pytest.mark.parametrize("variable", PEERS)
def test_flare_and_the_original_encode_values_as_the_same_bytes(variable):
    theirs_bytes, _, pillow = peer(variable)
    same = 0
    for (kind, data), expected in zip(encoded(PEERS[variable]), theirs_bytes, strict=True):
        if expected is None or (
            kind in ("jpeg", "png", "list[jpeg]", "list[png]") and pillow != PIL.__version__
        ):
            continue  # the original rejects it, or its Pillow compresses in another way
        assert data == expected, (kind, data, expected)
        same += 1
    assert same > 250


@pytest.mark.parametrize("variable", PEERS)
def test_the_original_reads_what_flare_encodes(variable):
    _, values, _ = peer(variable)
    library = PEERS[variable]
    for (kind, data), value in values:
        if kind == "pkl" or data in (b"not json", b"no picture"):
            continue
        if data == bytes(4) and kind in ("jpeg_array", "jpegarray"):
            assert "error" in value, "the original does not read its own empty arrays"
            continue
        expected = shared["described"](decode(encoding(kind, library), data))
        assert value == expected, (kind, data[:40])


def test_no_value_of_the_original_is_rejected():
    for library in ("mds", "granular"):
        rejected = [kind for kind, data in encoded(library) if data is None]
        assert rejected == [], library
