"""Arguments of the wrong type are refused before anything runs; the complete message is
compared.
"""

from __future__ import annotations

import io
import os
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import flarecli as flare
from flarecli.arguments import checked, name_list, shown
from flarecli.errors import UsageError
from flarecli.model import Settings

RANK = "Use rank=R, ranks=N for rank R of N."
PAIR = "Use rank=(R, N) for rank R of N."
ROWS = "Use a form such as '5', '10:20', '-5:', '::100' or '3,1,4'."
MIX = "Use {dataset: weight}, such as {a: 0.7, b: 0.3}."
WEIGHTS = "Pass a dict, as in flare.mix({a: 0.7, b: 0.3})."
OPEN = "Pass a dataset that flare.open or flare.mix returned."
COLUMNS = 'Use a mapping such as {"image": "jpeg", "label": "int"}.'
DICT = 'Use a dict, such as {"OLD": "NEW"}.'
POSITIONS = "Pass a flat list of integers, as in data[[7, 3]]."
SLICE = "Pass a slice such as data[10:20] or data[::100]."


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = str(tmp_path_factory.mktemp("wrong") / "d")
    with flare.Writer(
        path, columns={"n": "int", "t": "str"}, settings=Settings(shard_rows=7)
    ) as writer:
        for n in range(50):
            writer.write({"n": n, "t": "x"})
    return flare.open(path)


@pytest.fixture
def here(data, tmp_path, in_tmp_path):
    """Change to a folder where `d` is the dataset, so written files would be seen."""
    os.symlink(os.path.dirname(str(data.playlists[0].at)), "d")
    return tmp_path


def check_error(call, message, hint=""):
    with pytest.raises(UsageError) as caught:
        call()
    assert (str(caught.value), caught.value.hint) == (message, hint)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"rows": 3}, "rows: expected text, got 3", ROWS),
        ({"rows": [1, 2]}, "rows: expected text, got [1, 2]", ROWS),
        ({"columns": 3}, "columns: expected a list of names, got 3", ""),
        ({"columns": [b"n"]}, "columns: expected a list of names, got [b'n']", ""),
        (
            {"columns": {"n": 1}},
            "expected a list of names, got dict",
            'Write a pair as "COLUMN:NAME".',
        ),
        ({"streams": None}, "streams: expected a list of names, got None", ""),
        ({"format": 1}, "format: expected text, got 1", ""),
        ({"where": True}, "where: expected text, got True", ""),
        ({"limit": 1.5}, "limit: expected a whole number, got 1.5", ""),
        ({"limit": "3"}, "limit: expected a whole number, got '3'", ""),
        ({"limit": True}, "limit: expected a whole number, got True", ""),
        ({"head": float("inf")}, "head: expected a whole number, got inf", ""),
        ({"tail": np.bool_(True)}, f"tail: expected a whole number, got {np.bool_(True)!r}", ""),
        ({"sample": "all"}, "sample: expected a number, got 'all'", ""),
        ({"sample": True}, "sample: expected a number, got True", ""),
        ({"seed": None}, "seed: expected a whole number, got None", ""),
        ({"shuffle": [1]}, "shuffle: expected a whole number, got [1]", ""),
        ({"rank": 3}, "rank: expected two whole numbers, got 3", PAIR),
        ({"rank": "0/8"}, "rank: expected two whole numbers, got '0/8'", PAIR),
        ({"rank": (0, 8, 1)}, "rank: expected two whole numbers, got (0, 8, 1)", PAIR),
        ({"rank": (0.0, 8)}, "rank: expected two whole numbers, got (0.0, 8)", PAIR),
        ({"exact": "no"}, "exact: expected True or False, got 'no'", ""),
        ({"retries": "2"}, "retries: expected a whole number, got '2'", ""),
        (
            {"timeout": "2 weeks"},
            "--timeout: invalid duration '2 weeks'",
            "Use a form such as 30s, 10m or 2h.",
        ),
        ({"stdin": 0}, "stdin: expected an open file, got 0", ""),
    ],
)
def test_cat_reports_arguments_of_the_wrong_type(here, options, message, hint):
    check_error(lambda: flare.cat("d", **options), message, hint)


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"batch": 1.5}, "batch: expected a whole number, got 1.5", ""),
        ({"batch": 2.0}, "batch: expected a whole number, got 2.0", ""),
        ({"batch": True}, "batch: expected a whole number, got True", ""),
        ({"seed": "1"}, "seed: expected a whole number, got '1'", ""),
        ({"workers": None}, "workers: expected a whole number, got None", ""),
        ({"workers": 1 << 20}, "workers: expected fewer than 65,536, got 1048576", ""),
        ({"order": 1}, "order: expected text, got 1", ""),
        ({"window": "4"}, "window: expected a whole number, got '4'", ""),
        ({"rank": "0/8"}, "rank: expected a whole number, got '0/8'", RANK),
        ({"rank": (0, 8)}, "rank: expected a whole number, got (0, 8)", RANK),
        ({"rank": 0.5, "ranks": 2}, "rank: expected a whole number, got 0.5", RANK),
        ({"ranks": None}, "ranks: expected a whole number, got None", RANK),
        ({"rank": -1, "ranks": 2}, "rank -1 of 2: expected a rank below the number of ranks", ""),
        (
            {"rank": np.int64(2), "ranks": np.uint8(2)},
            "rank 2 of 2: expected a rank below the number of ranks",
            "",
        ),
        ({"decode": ["n"]}, "decode: expected a dict, got ['n']", ""),
        (
            {"decode": {"n": 3}},
            "decoder for column 'n': expected a function, True or False, got 3",
            "",
        ),
        ({"transform": 3}, "transform: expected a function or a list of functions, got 3", ""),
        (
            {"transform": [len, 3]},
            "transform: expected a function or a list of functions, got [<built-in function len>, 3]",
            "",
        ),
        ({"collate": "stack"}, "collate: expected a function, got 'stack'", ""),
        ({"processes": "spawn"}, "processes: expected True or False, got 'spawn'", ""),
        ({"start": 1}, "start: expected text, got 1", ""),
        ({"ahead": float("nan")}, "ahead: expected a whole number, got nan", ""),
        ({"drop_last": None}, "drop_last: expected True or False, got None", ""),
    ],
)
def test_a_loader_reports_arguments_of_the_wrong_type(data, options, message, hint):
    check_error(lambda: flare.Loader(data, **options), message, hint)


def test_a_loader_refuses_other_objects_than_datasets(data):
    for wrong, name in (
        (None, "None"),
        (flare.Dataset, "<class 'flarecli.read.dataset.Dataset'>"),
        (iter([]), None),
    ):
        check_error(
            lambda wrong=wrong: flare.Loader(wrong),
            f"expected a dataset, got {name or shown(wrong)}",
            OPEN,
        )


@pytest.mark.parametrize(
    ("change", "is_one"),
    [
        ({"step": np.int64(4)}, True),
        ({"seed": True}, False),
        ({"step": 4.0}, False),
        ({"epoch": None}, False),
    ],
)
def test_the_position_of_a_loader_must_be_whole_numbers(data, change, is_one):
    loader = flare.Loader(data, 4)
    state = {**loader.save(), **change}
    if is_one:
        loader.load(state)
        assert loader.save() == {**state, "step": 4}
        assert type(loader.save()["step"]) is int
    else:
        check_error(
            lambda: loader.load(state),
            "expected a state that a Loader saved",
            "Pass the result of save().",
        )


@pytest.mark.parametrize("state", [None, 3, "place", [], {1}, {}, np.arange(3)])
def test_the_state_of_a_loader_must_be_a_dict(data, state):
    check_error(
        lambda: flare.Loader(data).load(state),
        "expected a state that a Loader saved",
        "Pass the result of save().",
    )


def test_invalid_arguments_of_batches_are_refused_at_the_call(data):
    check_error(lambda: data.batches(1.5), "size: expected a whole number, got 1.5")
    check_error(lambda: data.batches(True), "size: expected a whole number, got True")
    check_error(lambda: data.batches(0), "size: expected at least 1, got 0")
    check_error(lambda: data.scan(size=-1), "size: expected at least 1, got -1")
    check_error(
        lambda: data.scan(start=-1),
        "start: expected at least 0, got -1",
    )
    check_error(
        lambda: data.scan(stop="end"),
        "stop: expected a whole number, got 'end'",
    )
    check_error(
        lambda: data.scan(start=True, size=1.5),
        "start: expected a whole number, got True",
    )
    check_error(lambda: data.batches(columns=3), "columns: expected a list of names, got 3")
    check_error(lambda: data.scan(["m"]), "no column 'm'", "Choose from n, t.")


def test_invalid_row_numbers_are_refused(data):
    check_error(
        lambda: data[1.5:], "expected a slice of integers, got slice(1.5, None, None)", SLICE
    )
    check_error(lambda: data[::0], "expected a slice of integers, got slice(None, None, 0)", SLICE)
    check_error(lambda: data.collated(3), "expected a list of row numbers, got int", POSITIONS)
    check_error(
        lambda: data.collated(None), "expected a list of row numbers, got NoneType", POSITIONS
    )
    check_error(lambda: data.collate(3), "expected a list of samples, got 3")
    check_error(
        lambda: data.read(0, {"n": 3}),
        "ranges: expected a dict of ranges, got {'n': 3}",
        'Pass a dict such as {"frames": range(32, 42)}.',
    )
    check_error(
        lambda: data.read(0, ["n"]),
        "ranges: expected a dict of ranges, got ['n']",
        'Pass a dict such as {"frames": range(32, 42)}.',
    )
    check_error(lambda: data.select(3), "expected a list of names, got 3")
    check_error(lambda: data.rows([0], [3]), "expected a list of names, got [3]")
    check_error(lambda: data.where(3), "condition: expected text, got 3")
    check_error(lambda: data.decoded(["n"]), "how: expected a dict, got ['n']")
    check_error(
        lambda: data.decoded({"n": "int"}),
        "decoder for column 'n': expected a function, True or False, got 'int'",
    )
    check_error(lambda: data.order("1", 0, "shuffle"), "seed: expected a whole number, got '1'")


def test_invalid_arguments_of_mix_are_refused(data):
    listed = f"[{data!r}, {data!r}]"
    check_error(
        lambda: flare.mix([data, data]), f"weights: expected a dict, got {listed[:59]}…", MIX
    )
    check_error(lambda: flare.mix({"d": 1}), "expected a dataset, got 'd'", OPEN)
    for wrong in ("1", True, None, float("inf"), 0, -1, 1 << 2000):
        check_error(
            lambda wrong=wrong: flare.mix({data: wrong}),
            "expected datasets, each with a weight above 0",
            WEIGHTS,
        )
    check_error(lambda: flare.mix({data: 1}, rows=1.5), "rows: expected a whole number, got 1.5")
    check_error(lambda: flare.mix({data: 1}, rows=0), "rows: expected at least 1, got 0")
    check_error(
        lambda: flare.Mix([data], []), "expected datasets, each with a weight above 0", WEIGHTS
    )
    check_error(
        lambda: flare.Mix(data, 1), "expected datasets, each with a weight above 0", WEIGHTS
    )
    check_error(lambda: flare.Mix(3, 1), "expected a dataset, got 3", OPEN)
    epoch = 1 << 60
    check_error(
        lambda: flare.mix({data: 1}).run(epoch=epoch),
        f"epoch: expected less than {2**62 // 50}, got {epoch}",
    )
    assert flare.mix({data: np.float32(0.5)}).quotas.tolist() == [10_000]


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"limit": 1.5}, "limit: expected a whole number, got 1.5", ""),
        ({"limit": -1}, "--limit: expected at least 0, got -1", ""),
        ({"shuffle": -1}, "--shuffle: expected at least 0, got -1", ""),
        ({"shard_size": 1.5}, "shard_size: expected a whole number or text, got 1.5", ""),
        ({"shard_size": -1}, "--shard-size: expected at least 0, got -1", ""),
        ({"shard_rows": "9"}, "shard_rows: expected a whole number, got '9'", ""),
        ({"overwrite": "no"}, "overwrite: expected True or False, got 'no'", ""),
        ({"resume": None}, "resume: expected True or False, got None", ""),
        ({"encode": ["n"]}, "encode: expected a dict of strings, got ['n']", ""),
        (
            {"encode": {"n": int}},
            "encode: expected a dict of strings, got {'n': <class 'int'>}",
            "",
        ),
        ({"fetch": 3}, "fetch: expected a list of names, got 3", ""),
        ({"key": 0}, "key: expected text, got 0", ""),
        ({"resize": "512"}, "resize: expected a whole number or two whole numbers, got '512'", ""),
        ({"max_aspect": "2"}, "max_aspect: expected a number, got '2'", ""),
        ({"progress": print}, "progress: expected a Progress, got <built-in function print>", ""),
    ],
)
def test_pack_reports_arguments_of_the_wrong_type_and_writes_nothing(here, options, message, hint):
    check_error(lambda: flare.pack("d", "out", **options), message, hint)
    assert not os.path.lexists("out")


@pytest.mark.parametrize(
    ("options", "message", "hint"),
    [
        ({"columns": ["n"]}, "columns: expected names with encodings", COLUMNS),
        ({"columns": 3}, "columns: expected names with encodings", COLUMNS),
        ({"columns": {"n": int}}, "columns: expected names with encodings", COLUMNS),
        ({"format": None}, "format: expected text, got None", ""),
        (
            {"settings": {"shard_rows": 3}},
            "settings: expected a Settings, got {'shard_rows': 3}",
            "",
        ),
        (
            {"settings": Settings(shard_rows=1.5)},
            "shard_rows: expected a whole number, got 1.5",
            "",
        ),
        ({"settings": Settings(shard_bytes=-1)}, "shard_bytes: expected at least 0, got -1", ""),
        ({"settings": Settings(shard_rows=0)}, "shard_rows: expected at least 1, got 0", ""),
        ({"settings": Settings(compression=3)}, "compression: expected text, got 3", ""),
        ({"settings": Settings(newline=None)}, "newline: expected text, got None", ""),
        ({"jobs": 0}, "jobs: expected at least 1, got 0", ""),
        ({"jobs": 1.5}, "jobs: expected a whole number, got 1.5", ""),
        ({"overwrite": "no"}, "overwrite: expected True or False, got 'no'", ""),
        ({"head": 3}, "head: expected a dict, got 3", ""),
    ],
)
def test_a_writer_reports_arguments_of_the_wrong_type_and_writes_nothing(
    here, options, message, hint
):
    check_error(lambda: flare.Writer("out", **options), message, hint)
    assert not os.path.lexists("out")


def test_the_other_functions_report_arguments_of_the_wrong_type(here, data):
    check_error(lambda: flare.open("d", decode=[1]), "decode: expected a dict, got [1]")
    check_error(lambda: flare.open("d", maps="no"), "maps: expected True or False, got 'no'")
    check_error(
        lambda: flare.open("d", cache="c", cache_limit=-1),
        "--cache-limit: expected at least 0, got -1",
    )
    check_error(
        lambda: flare.open("d", cache_limit=1.5),
        "cache_limit: expected a whole number or text, got 1.5",
    )
    check_error(
        lambda: flare.open(np.array(3)),
        "expected an address, got ndarray",
        "Use a str or a pathlib path.",
    )
    check_error(lambda: flare.inspect("d", sample="3"), "sample: expected a number, got '3'")
    check_error(lambda: flare.inspect("d", stats="yes"), "stats: expected True or False, got 'yes'")
    check_error(
        lambda: flare.playlist("d", rebase=["a"]),
        "rebase: expected pairs of strings, got ['a']",
        DICT,
    )
    check_error(
        lambda: flare.playlist("d", header={"a": 1}),
        "header: expected pairs of strings, got {'a': 1}",
        DICT,
    )
    check_error(
        lambda: flare.playlist("d", header=3), "header: expected pairs of strings, got 3", DICT
    )
    check_error(lambda: flare.playlist("d", base=3), "base: expected text, got 3")
    check_error(
        lambda: flare.reindex("d", replace="no"), "replace: expected True or False, got 'no'"
    )
    check_error(
        lambda: flare.merge_index(".", 3),
        "expected an address, got int",
        "Use a str or a pathlib path.",
    )
    check_error(
        lambda: flare.presets.image("512"),
        "size: expected a whole number or two whole numbers, got '512'",
    )
    check_error(
        lambda: flare.presets.image((1, 2, 3)),
        "size: expected a whole number or two whole numbers, got (1, 2, 3)",
    )
    check_error(lambda: flare.presets.image(mode=3), "mode: expected text, got 3")
    check_error(lambda: flare.presets.text(1.5), "size: expected a whole number, got 1.5")
    check_error(lambda: flare.presets.video(True), "frames: expected a whole number, got True")
    check_error(lambda: flare.presets.audio(rate=1.5), "rate: expected a whole number, got 1.5")
    assert sorted(os.listdir()) == ["d"]


def test_verify_and_unpack_report_arguments_of_the_wrong_type(here):
    part = "Use part=(k, n) for the k-th of n parts, counted from 0."
    check_error(lambda: flare.verify("d", part=3), "part: expected two whole numbers, got 3", part)
    check_error(
        lambda: flare.verify("d", part="1/8"), "part: expected two whole numbers, got '1/8'", part
    )
    check_error(lambda: flare.verify("d", sample="all"), "sample: expected a number, got 'all'")
    check_error(lambda: flare.verify("d", quick="no"), "quick: expected True or False, got 'no'")
    check_error(lambda: flare.verify("d", jobs=0), "--jobs: expected at least 1, got 0")
    check_error(
        lambda: flare.verify("d", max_findings=0), "--max-findings: expected at least 1, got 0"
    )
    check_error(
        lambda: flare.verify("d", against=3),
        "expected an address, got int",
        "Use a str or a pathlib path.",
    )
    check_error(
        lambda: flare.verify("d", state=b"s"),
        "expected an address, got bytes",
        "Use a str or a pathlib path.",
    )
    check_error(lambda: flare.unpack("d", "out", rows=3), "rows: expected text, got 3", ROWS)
    check_error(
        lambda: flare.unpack("d", "out", limit=1.5), "limit: expected a whole number, got 1.5"
    )
    check_error(
        lambda: flare.unpack("d", "out", overwrite="no"),
        "overwrite: expected True or False, got 'no'",
    )
    check_error(
        lambda: flare.unpack("d", "out", columns=3), "columns: expected a list of names, got 3"
    )
    check_error(lambda: flare.unpack("d", "out", stream=3), "stream: expected an open file, got 3")
    check_error(lambda: flare.encoding(3, bytes, bytes), "name: expected text, got 3")
    check_error(
        lambda: flare.encoding("own", "utf-8", bytes), "encode: expected a function, got 'utf-8'"
    )
    assert sorted(os.listdir()) == ["d"]
    assert (
        list(
            flare.verify(
                "d",
                against=here / "d",
                state=here / "s",
                jobs=np.int64(2),
                max_findings=np.uint8(3),
            )
        )
        == []
    )
    assert flare.unpack("d", "out", limit=np.int64(2), rows="3:9").rows == 2


@pytest.mark.parametrize("kind", [np.int8, np.uint8, np.int32, np.uint64, np.int64, np.array])
def test_numpy_integers_are_accepted_everywhere(here, data, kind):
    three = kind(3)
    for option in ("limit", "head", "tail", "sample", "shuffle"):
        found = [batch.to_pydict() for batch in flare.cat("d", **{option: three})]
        assert found == [batch.to_pydict() for batch in flare.cat("d", **{option: 3})]
    ranked = [
        batch.to_pydict()
        for batch in flare.cat("d", shuffle=three, epoch=three, rank=(kind(1), three))
    ]
    assert ranked == [
        batch.to_pydict() for batch in flare.cat("d", shuffle=3, epoch=3, rank=(1, 3))
    ]
    assert [len(batch) for batch in data.batches(three, start=three, stop=kind(10))] == [3, 3, 1]
    assert [one["n"] for one in data.run(three, three, "windows", kind(1), three, None, three)] == [
        one["n"] for one in data.run(3, 3, "windows", 1, 3, None, 3)
    ]
    assert (
        data.order(three, three, "shuffle").at(np.arange(5)).tolist()
        == data.order(3, 3, "shuffle").at(np.arange(5)).tolist()
    )
    assert flare.mix({data: three}, rows=three).rows == 3
    assert flare.pack("d", "out", limit=three, shard_rows=kind(2), shuffle=three).shards == 2
    image = io.BytesIO()
    Image.new("RGB", (4, 4)).save(image, "PNG")
    assert flare.presets.image(three)(image.getvalue()).shape == (3, 3, 3)
    with flare.Writer(
        "written", columns={"n": "int"}, settings=Settings(shard_rows=three), jobs=three
    ) as writer:
        for n in range(7):
            writer.write({"n": n})
    assert writer.shards == 3


def test_a_bool_may_be_a_numpy_bool_or_0_or_1(data):
    for yes in (True, np.bool_(True), 1, np.int64(1)):
        assert flare.Loader(data, 20, drop_last=yes).drop_last is True
    assert flare.Loader(data, 20, drop_last=np.bool_(False)).drop_last is False


# -- the type check


class Thing:
    """A class in an annotation."""


def test_only_annotated_types_are_checked():
    @checked
    def taken(
        number: int,
        share: float | None = None,
        thing: Thing | str = "",
        other: list[int] | Path = (),
        *,
        names: Sequence[str] = (),
    ) -> object:
        """Return the argument."""
        return number, share, thing, other, names

    assert (taken.__name__, taken.__doc__) == ("taken", "Return the argument.")
    one = Thing()
    assert taken(np.int8(-3), np.float32(0.5), one, {}, names=iter("ab")) == (
        -3,
        0.5,
        one,
        {},
        ["a", "b"],
    )
    assert taken(3, thing="x", names="text")[-1] == ["text"]
    check_error(lambda: taken(3, "x"), "share: expected a number, got 'x'")
    check_error(lambda: taken(3, thing=4), "thing: expected a Thing or text, got 4")
    with pytest.raises(TypeError, match="missing 1 required positional argument: 'number'"):
        taken()
    with pytest.raises(TypeError, match="unexpected keyword argument 'nothing'"):
        taken(1, nothing=2)


def test_a_value_is_shown_in_one_short_line():
    assert shown(np.zeros((2, 2))) == "array([[0., 0.], [0., 0.]])"
    assert shown("x" * 100) == f"'{'x' * 58}…"
    assert shown("y" * 58) == f"'{'y' * 58}'"


def test_names_are_texts():
    assert name_list("one") == ["one"]
    assert name_list(iter(["one", "two"])) == ["one", "two"]
    check_error(lambda: name_list(None), "expected a list of names, got None")
    check_error(lambda: name_list(b"one"), "expected a list of names, got b'one'")
    check_error(
        lambda: name_list({"one": 1}),
        "expected a list of names, got dict",
        'Write a pair as "COLUMN:NAME".',
    )
