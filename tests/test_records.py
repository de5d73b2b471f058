"""Records are dataclasses in all that one can tell, but made quickly."""

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys

import pytest

from flarecli import records


def made(room, frozen, slots):
    """A class of each kind of field, by the library or here."""

    @room.dataclass(frozen=frozen, slots=slots)
    class One:
        """What it is."""

        a: int
        b: str = "x"
        c: "list[int]" = room.field(default_factory=list)
        d: dict = room.field(default_factory=dict, repr=False, compare=False)

        @property
        def double(self) -> int:
            return 2 * self.a

        def __len__(self) -> int:
            return self.a

    return One


KINDS = [(frozen, slots) for frozen in (False, True) for slots in (False, True)]


@pytest.mark.parametrize(("frozen", "slots"), KINDS)
def test_they_are_made_changed_and_shown_alike(frozen, slots):
    for call in (
        lambda one: repr(one(1)),
        lambda one: repr(one(1, "y", [2], {3: 4})),
        lambda one: repr(one(c=[1], a=2)),
        lambda one: (
            one(1) == one(1),
            one(1) == one(2),
            one(1) != one(1, d={1: 2}),
            one(1) == (1,),
        ),
        lambda one: one(1).c is one(1).c,
        lambda one: (
            one(3).double,
            len(one(3)),
            one.__doc__,
            one.__match_args__,
            one.__name__,
            one.__qualname__,
            one.__module__,
        ),
        lambda one: dataclasses.asdict(one(1, "y", [2], {3: 4})),
        lambda one: repr(dataclasses.replace(one(1, "y"), a=2)),
        lambda one: repr(records.replace(one(1, "y"), a=2)),
        lambda one: [
            (field.name, field.type, field.repr, field.compare) for field in dataclasses.fields(one)
        ],
        lambda one: dataclasses.is_dataclass(one) and dataclasses.is_dataclass(one(1)),
        lambda one: [
            (name, field.kind) for name, field in inspect.signature(one).parameters.items()
        ],
        lambda one: hasattr(one(1), "__dict__"),
        lambda one: repr(copy.deepcopy(one(1, c=[2]))) + repr(copy.copy(one(1, c=[2]))),
    ):
        assert call(made(records, frozen, slots)) == call(made(dataclasses, frozen, slots))


@pytest.mark.parametrize(("frozen", "slots"), KINDS)
def test_they_refuse_alike(frozen, slots):
    def outcome(one, call):
        try:
            return repr(call(one))
        except Exception as error:
            return type(error), str(error).replace("test_they_refuse_alike.<locals>.", "")

    for call in (
        lambda one: one(),
        lambda one: one(1, e=2),
        lambda one: one(1, a=2),
        lambda one: one(1, 2, 3, 4, 5),
        lambda one: setattr(one(1), "a", 2),
        lambda one: delattr(one(1), "a"),
        lambda one: hash(one(1, c=(2,))) == hash(one(1, c=(2,))),
        lambda one: records.replace(one(1), e=2),
    ):
        mine, theirs = (outcome(made(room, frozen, slots), call) for room in (records, dataclasses))
        assert mine == theirs
    with pytest.raises((AttributeError, TypeError) if frozen or slots else ZeroDivisionError):
        made(records, frozen, slots)(1).other = 1 / (frozen or slots)


@records.dataclass(frozen=True, slots=True)
class Travels:
    a: int
    b: "Travels | None" = None


@records.dataclass
class AlsoTravels:
    a: int
    b: int = 0

    def __post_init__(self):
        self.b = self.a + 1


def test_they_travel():
    for one in (Travels(1, Travels(2)), AlsoTravels(4)):
        for protocol in range(2, pickle.HIGHEST_PROTOCOL + 1):
            assert pickle.loads(pickle.dumps(one, protocol)) == one
    assert AlsoTravels(4).b == 5 and {Travels(1): 2}[Travels(1)] == 2


def test_the_library_s_own_are_replaced_too():
    @dataclasses.dataclass
    class Own:
        a: int

    assert records.replace(Own(1), a=2) == Own(2)


def test_they_take_no_part_of_the_library():
    code = (
        "import sys, flarecli.model; print('dataclasses' in sys.modules, 'inspect' in sys.modules)"
    )
    assert subprocess.run(
        [sys.executable, "-S", "-c", code], capture_output=True, text=True, cwd=".", timeout=60
    ).stdout in ("False False\n", "")
