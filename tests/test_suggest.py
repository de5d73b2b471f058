"""Suggestions for mistyped names."""

import pytest

from flarecli.suggest import choose, nearest

COLUMNS = ["data_id", "data_url", "score", "lang"]


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("data_ulr", "data_url"),
        ("url", "data_url"),
        ("Score", "score"),
        (" lang", "lang"),
        ("scores", "score"),
        ("caption", None),
        ("", None),
        ("i", None),
        ("data_url" * 100, None),
    ],
)
def test_the_most_similar_name_is_returned_or_none(given, meant):
    assert nearest(given, COLUMNS) == meant


def test_a_hint_has_the_most_similar_name_and_all_names():
    assert (
        choose("data_ulr", COLUMNS, "Choose from")
        == "Did you mean data_url? Choose from data_id, data_url, score, lang."
    )
    assert choose("caption", COLUMNS) == "Choose one of data_id, data_url, score, lang."
    assert choose("caption", []) == ""


def test_synonyms_are_suggested_if_the_name_exists():
    assert (
        choose("GZIP", ["br", "gz"], synonyms={"gzip": "gz"}, suffix=", or NAME:LEVEL")
        == "Did you mean gz? Choose one of br, gz, or NAME:LEVEL."
    )
    assert choose("gzip", ["br"], synonyms={"gzip": "gz"}) == "Choose one of br."


def test_a_hint_lists_only_the_first_of_thousands_of_columns():
    names = [f"column {i}" for i in range(3000)]
    hint = choose("colum 2500", names, "Choose from")
    assert hint.startswith("Did you mean 'column 2500'? Choose from 'column 0', 'column 1', ")
    assert hint.endswith(", 'column 59' and 2,940 more.")


def test_long_names_from_data_are_not_compared():
    assert nearest("a" * 99 + "b", ["a" * 1_000_000] * 10_000) is None
