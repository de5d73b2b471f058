"""Arguments of public functions: pathlib paths, single names instead of lists; and the repr of
objects.
"""

from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import flarecli
from flarecli.errors import UsageError


@pytest.fixture
def place(tmp_path):
    pq.write_table(
        pa.table({"id": [1, 2, 3], "text": ["a", "b", "c"], "link": ["x", "x", "x"]}),
        tmp_path / "t.parquet",
    )
    (tmp_path / "x").write_bytes(b"x")
    return tmp_path


def test_pathlib_paths_are_accepted_as_addresses(place):
    packed = flarecli.pack(place / "t.parquet", place / "out", columns="text", shard_size="1KB")
    assert (packed.rows, packed.playlist) == (3, f"{place}/out/playlist.yaml")
    assert len(flarecli.open(place / "out", cache=place / "kept")) == 3
    assert len(flarecli.open([place / "out", str(place / "out")])) == 6
    assert flarecli.inspect(place / "out").rows == 3
    assert list(flarecli.verify(place / "out")) == []
    assert next(flarecli.cat(place / "out", columns="text")).schema.names == ["text"]
    assert flarecli.unpack(place / "out", place / "files", columns="text").files == 3
    flarecli.playlist(place / "out", out=place / "all.yaml")
    assert flarecli.open(Path(place / "all.yaml"), streams="data")[0] == {"text": "a"}
    with flarecli.Writer(place / "new", columns={"a": "int"}) as writer:
        writer.write({"a": 1})
    assert flarecli.open(place / "new")[0] == {"a": 1}


def test_a_single_name_is_not_a_list_of_letters(place):
    assert (
        flarecli.pack(
            place / "t.parquet",
            place / "out",
            fetch="link:file",
            columns=("id", "file"),
            hash="sha1",
        ).rows
        == 3
    )
    data = flarecli.open(place / "out")
    assert (data.select("id")[0], data.select("file")[2]) == ({"id": 1}, {"file": b"x"})
    assert data.rows([0], "file") == [{"file": b"x"}]


@pytest.mark.parametrize(
    ("given", "kind"),
    [(3, "int"), (None, "NoneType"), (b"out", "bytes"), ([b"out"], "bytes"), ([["out"]], "list")],
)
def test_arguments_that_are_not_addresses_are_refused(given, kind):
    for verb in (
        flarecli.open,
        flarecli.inspect,
        flarecli.verify,
        flarecli.playlist,
        lambda one: flarecli.unpack(one, "out"),
    ):
        with pytest.raises(UsageError) as caught:
            verb(given)
        assert str(caught.value) == f"expected an address, got {'int' if given == b'out' else kind}"
        assert caught.value.hint == "Use a str or a pathlib path."


def test_a_writer_reports_invalid_columns_and_samples(place):
    with pytest.raises(UsageError) as caught:
        flarecli.Writer(place / "out", columns=["a"])
    assert (str(caught.value), caught.value.hint) == (
        "columns: expected names with encodings",
        'Use a mapping such as {"image": "jpeg", "label": "int"}.',
    )
    wrong = pytest.raises(UsageError, match="^sample: expected a mapping, got list$")
    with wrong, flarecli.Writer(place / "out", columns={"a": "int"}) as writer:
        writer.write([1])


def test_a_condition_on_an_unknown_column_lists_the_columns(place):
    flarecli.pack(place / "t.parquet", place / "out")
    with pytest.raises(UsageError) as caught:
        flarecli.open(place / "out").where("txt = 'a'")
    assert (str(caught.value), caught.value.hint) == (
        "--where: no column 'txt'",
        "Did you mean text? Choose from id, text, link.",
    )


def test_the_repr_of_objects_describes_them(place):
    flarecli.pack(place / "t.parquet", place / "out", columns=["id", "text"])
    data = flarecli.open(place / "out")
    assert repr(data) == "<Dataset: 3 rows of 'id' int, 'text' str>"
    run = data.run(seed=1)
    next(run)
    assert repr(run) == "<Run: 2 samples left, seed 1, epoch 0, step 1 of 3, shuffle>"
    assert (
        repr(flarecli.Loader(data, 2))
        == "<Loader: 2 batches of 2 left, seed 0, epoch 0, step 0 of 3, shuffle>"
    )
    assert repr(flarecli.mix({data: 1.0})) == "<Mix: 1 datasets, 3 rows of 'id', 'text'>"
    found = flarecli.verify(place / "out")
    assert list(found) == []
    assert (
        repr(found)
        == "<Verification: 3 files, 1 shards, 3 rows, 0 findings; iterate over it to receive the findings>"
    )


def test_dir_of_the_package_lists_the_public_names():
    names = [name for name in dir(flarecli) if not name.startswith("__")]
    assert names == sorted(name for name in flarecli.__all__ if not name.startswith("__"))
