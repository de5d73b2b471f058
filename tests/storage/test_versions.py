"""Pinned versions: what is compared, what is forgotten first, and what is read again."""

import pytest

from flarecli.errors import IntegrityError
from flarecli.storage import versions
from flarecli.storage.versions import ObjectPin, Pins


@pytest.fixture
def pins():
    return Pins(lambda path: f"x://{path}")


@pytest.mark.parametrize(
    ("first", "second", "differs"),
    [
        (ObjectPin("a", 5), ObjectPin("a", 5), False),
        (ObjectPin("a", 5), ObjectPin("b", 5), True),
        (ObjectPin("a", 5), ObjectPin("", 5), False),
        (ObjectPin("a", 5), ObjectPin("a", 6), True),
        (ObjectPin("a", 0), ObjectPin("a", 6), True),
        (ObjectPin("a", -1), ObjectPin("a", 6), False),
        (ObjectPin("", 5, False, "Monday"), ObjectPin("", 5, False, "Tuesday"), True),
        (ObjectPin("a", 5, True, "Monday"), ObjectPin("", 5, False, "Tuesday"), True),
    ],
)
def test_versions_are_compared_by_what_both_responses_say(first, second, differs):
    assert first.differs(second) is second.differs(first) is differs


def test_only_a_strong_token_names_copies():
    assert ObjectPin("a", 5).version == "a"
    assert ObjectPin("a", 5, False).version == ""
    assert ObjectPin("", 5, True, "Monday").version == "Monday"
    assert ObjectPin("", 5, False, "Monday").version == ""


def test_another_version_than_the_pinned_one_is_an_error(pins):
    assert pins.pin("a", ObjectPin("one", 5)) == ObjectPin("one", 5)
    with pytest.raises(IntegrityError) as caught:
        pins.pin("a", ObjectPin("two", 5))
    assert str(caught.value) == "x://a: changed while it was read"
    pins.drop("a")
    assert pins.pin("a", ObjectPin("two", 5)) == ObjectPin("two", 5)


def test_the_least_recently_used_version_is_forgotten_first(pins, monkeypatch):
    monkeypatch.setattr(versions, "MAX_PINS", 3)
    for name in "abc":
        pins.pin(name, ObjectPin(name, 1))
    assert pins.get("a") == ObjectPin("a", 1)
    pins.pin("d", ObjectPin("d", 1))
    assert [name for name in "abcd" if name in pins] == ["a", "c", "d"]


def test_what_changes_before_anything_was_returned_is_read_again_once(pins):
    asked = []

    def read(pin):
        asked.append(pin)
        return "data", pins.check("a", ObjectPin("one", 1), ObjectPin("two", 1)) if len(
            asked
        ) == 1 else ObjectPin("two", 1)

    assert pins.read("a", read) == "data" and asked == [None, None]
    asked.clear()
    with pytest.raises(IntegrityError):
        pins.read("a", read)
    assert asked == [ObjectPin("two", 1)]
