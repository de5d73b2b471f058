"""Tables of other packages keep their values and types in every format; see `ordinary_sources`."""

import pytest

ordinary_sources = pytest.importorskip("tests.interop.ordinary_sources")

# Sources that need an option that the message names: a text encoding, a decimal sign, or nulls.
NAMED = {
    "decimal_comma_csv",
    "latin1_csv",
    "missing_values_csv",
    "nulls_parquet",
    "no_value_parquet",
    "missing_members_jsonl",
}
LARGE = ("vega_airports.csv", "vega_la-riots.csv", "vega_us-employment.csv", "vega_iowa")
NAMES = [
    name
    for name in ordinary_sources.MAKERS
    if not name.startswith((*LARGE, "vega_sf", "vega_seattle"))
]
NULLS = {"vega_cars.json", "vega_wheat.json"}


@pytest.mark.parametrize("form", ordinary_sources.FORMATS)
def test_ordinary_sources_are_read_back_equal(form, tmp_path):
    lines = list(ordinary_sources.outcomes(NAMES, [form], tmp_path))
    assert {line.name: line.reasons for line in lines if line.reasons} == {}
    named = {line.name for line in lines if line.marks == ["o"]}
    assert named <= NAMED | NULLS
    assert len(lines) >= 40
    if form == "mds":
        assert named == NAMED | NULLS
        assert {line.name for line in lines if line.marks == ["-"]} == set()
