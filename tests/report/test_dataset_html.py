"""The page of a dataset: its size is bounded for samples of any size, and it reports omitted
rows.
"""

import io
import json
import re

import pytest
from PIL import Image

from flarecli import commands, report
from flarecli.__main__ import main
from flarecli.write import Writer


@pytest.fixture(scope="module")
def images(tmp_path_factory):
    folder = f"{tmp_path_factory.mktemp('images')}/set"
    with Writer(folder, columns={"id": "int", "image": "png"}) as writer:
        for i in range(40):
            out = io.BytesIO()
            Image.effect_noise((300, 200), 90).save(out, "PNG")
            writer.write({"id": i, "image": out.getvalue()})
    return folder


@pytest.fixture
def few(monkeypatch):
    monkeypatch.setitem(commands.inspect.__wrapped__.__globals__, "_MAX_ROWS", 5)


def test_a_huge_sample_is_limited_and_a_note_reports_it(images, few, tmp_path, capsys):
    assert main(["inspect", images, "--sample", "1000000", "--html", f"{tmp_path}/page.html"]) == 0
    assert (
        capsys.readouterr().err
        == "the sample has 5 of 40 requested rows; `flare cat` prints more rows\n"
    )
    page = (tmp_path / "page.html").read_text()
    assert main(["inspect", images, "--sample", "1000000", "--html", "-", "-q"]) == 0
    assert capsys.readouterr() == (page, "")
    assert page.count("<article") == 5
    assert "5 random rows; 35 more do not fit on the page" in page
    found = commands.inspect(images, sample=1.0)
    assert (found.asked, found.as_json()["sample_asked"], len(found.as_json()["sample"])) == (
        40,
        40,
        5,
    )
    assert main(["inspect", images, "--sample", "100%", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["sample_asked"] == 40


def test_a_sample_is_limited_in_bytes(images, monkeypatch):
    monkeypatch.setitem(commands.inspect.__wrapped__.__globals__, "_MAX_BYTES", 300_000)
    found = commands.inspect(images, sample=40)
    assert 0 < sum(batch.num_rows for batch in found.sample) < 10
    assert "sample_asked" not in commands.inspect(images, sample=1).as_json()


@pytest.mark.parametrize("most", [30_000, 100_000, 400_000])
def test_the_page_stays_below_its_maximum_size_and_reports_omitted_rows(images, most):
    page = report.dataset_page(commands.inspect(images, sample=40), most)
    assert len(page.encode()) < most
    assert page.count("<img") < 40
    assert "omitted, does not fit on the page" in page or "more did not fit on the page" in page


def test_missing_shards_are_on_the_page(tmp_path):
    with Writer(f"{tmp_path}/set", columns={"id": "int"}) as writer:
        writer.write({"id": 1})
    (tmp_path / "set" / "shard.00000.mds").unlink()
    page = report.dataset_page(commands.inspect(f"{tmp_path}/set"))
    assert '<ul class="holes"><li>shard.00000.mds: missing, row 0</li></ul>' in page
    assert "<dt>writer</dt><dd>flare</dd>" in page


def test_each_row_of_the_page_has_its_number(images):
    found = commands.inspect(images, sample=4)
    page = report.dataset_page(found)
    assert [int(number) for number in re.findall(r"<p class=\"soft\">row (\d+)</p>", page)] == list(
        found.sample_rows
    )
    assert [row["id"] for row in found.as_json()["sample"]] == found.as_json()[
        "sample_rows"
    ]  # ids are equal to row numbers
    assert [
        int(text) for text in re.findall(r"<dt>id</dt><dd data-column=\"0\">(\d+)<", page)
    ] == list(found.sample_rows)


@pytest.mark.parametrize(
    "values", [[2**60, 2**60], [1e300, 1e300], [2.0**53, 2.0**53 + 2], [-(2**62), -(2**62)]]
)
def test_numbers_without_floats_between_them_are_one_bar(tmp_path, values):
    (tmp_path / "x.jsonl").write_text("".join(json.dumps({"x": one}) + "\n" for one in values))
    commands.pack([str(tmp_path / "x.jsonl")], str(tmp_path / "out"))
    assert main(["inspect", str(tmp_path / "out"), "--html", str(tmp_path / "page.html")]) == 0
    assert (tmp_path / "page.html").read_text().count("<rect ") == 1
