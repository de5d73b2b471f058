"""Every parser reads its seeds, and refuses damaged ones with a FlareError and nothing else."""

import random
from pathlib import Path

import pytest

from flarecli.errors import FlareError
from tests.fuzz.targets import TARGETS

HERE = Path(__file__).parent
MUTATIONS = 150
NUMBERS = (b"\0\0\0\0", b"\xff\xff\xff\xff", b"\xff\xff\xff\x7f", b"\0\0\0\x80", b"\x01\0\0\0")


def mutate(data, chance):
    """Change one to three things: flip a bit, cut, insert a number, copy a block, remove a
    block.
    """
    out = bytearray(data)
    for _ in range(chance.randint(1, 3)):
        at = chance.randrange(len(out) + 1)
        end = min(len(out), at + chance.choice((1, 4, 16, 64)))
        match chance.randrange(6):
            case 0 if at < len(out):
                out[at] ^= 1 << chance.randrange(8)
            case 1:
                del out[at:]
            case 2:
                out[at : at + 4] = chance.choice(NUMBERS)
            case 3:
                out[at:at] = out[at:end]
            case 4:
                del out[at:end]
            case _:
                out[at:end] = chance.randbytes(end - at)
    return bytes(out)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_a_parser_reads_its_seeds(name):
    seeds = list(TARGETS[name].seeds())
    assert seeds
    for seed in seeds:
        TARGETS[name].call(seed)


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_damaged_bytes_are_read_or_refused(name):
    seeds, chance = list(TARGETS[name].seeds()), random.Random(name)
    refused = 0
    for _ in range(MUTATIONS):
        data = mutate(chance.choice(seeds), chance)
        try:
            TARGETS[name].call(data)
        except FlareError:
            refused += 1
        except Exception as error:
            raise AssertionError(f"input {data!r}") from error
    assert refused or name in NEVER_REFUSES


NEVER_REFUSES = {
    "answer",  # an answer that makes no sense is a fault, which is a value
    "json_line",  # its ValueError is caught in the target
    "webdataset_table",  # an index that cannot be used is left aside
}


@pytest.mark.parametrize(
    "path", sorted((HERE / "found").glob("*/*")), ids=lambda path: f"{path.parent.name}-{path.name}"
)
def test_inputs_that_fuzzing_found_are_read_or_refused(path):
    try:
        TARGETS[path.parent.name].call(path.read_bytes())
    except FlareError as error:
        assert str(error)
