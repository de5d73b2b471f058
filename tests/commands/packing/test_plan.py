"""pack: every pair of options, compared with a model of their effect on rows; and interrupted packs
with each option.
"""

import itertools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli import commands, read
from flarecli.commands.provenance import Places
from flarecli.errors import FlareError, FormatError, UsageError
from flarecli.write import Failure
from flarecli.write.journal import Journal
from tests.outputs import files_of

COUNT = 14
FILES = [
    f"files/{name}"
    for name in (
        "a",
        "a b",
        "a#b",
        "a%20b",
        "ü",
        "it's",
        'a"b',
        "a&b",
        "a+b",
        "[a]",
        "{a}",
        "a;b",
        "a=b",
        "~a",
    )
]
TEXTS = [f"text {i}" for i in range(COUNT)]
TEXTS[3:6] = ["é\u2028 \U0001f600", "it's 100% <b>", " "]
ROWS = [
    {
        "id": f"k{i}",
        "twice": f"d{i % 10}",
        "n": i,
        "x": i / 7,
        "t": TEXTS[i],
        "u": FILES[i],
        "v": "files/gone" if i == 6 else "files/a",
        'odd "name" #': str(i),
    }
    for i in range(COUNT)
]
FORMATS = ("json", "xsv", "granular", "granular-refs", "webdataset", "csv", "ffrecord")
OPTIONS: dict[str, dict[str, Any]] = {
    **{name: {"format": name, **({"separator": "|"} if name == "xsv" else {})} for name in FORMATS},
    "key": {"key": "id"},
    "first": {"key": "twice", "on_duplicate": "first"},
    "twice": {"key": "twice"},
    "columns": {"columns": ["t", "n"]},
    "encode": {"encode": {"n": "float64"}},
    "where": {"where": "n % 3 <> 1"},
    "select": {"where": "SELECT t, n + 100 AS n, id, u, v, twice FROM dataframe WHERE n > 2"},
    "limit": {"limit": 5},
    "shuffle": {"shuffle": 7},
    "bytes": {"shard_size": 600},
    "rows": {"shard_rows": 3},
    "zstd": {"compress": "zstd"},
    "hash": {"hash": ("sha256",)},
    "fetch": {"fetch": ["u:got"]},
    "skip": {"fetch": ["v:got"], "on_error": "skip"},
    "parts": {"part_rows": 4},
    "jobs": {"jobs": 1},
}
PAIRS = [
    pair
    for pair in itertools.combinations(OPTIONS, 2)
    if all(OPTIONS[pair[0]].get(name, value) == value for name, value in OPTIONS[pair[1]].items())
    and not set(pair) <= {"bytes", "rows", "zstd", "hash", "jobs"}
]


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("index")
    (folder / "files").mkdir()
    for i, name in enumerate(FILES):
        (folder / name).write_bytes(bytes([200 + i]) * (i + 1))
    pq.write_table(
        pa.Table.from_pylist(ROWS), folder / "i.parquet", row_group_size=5, write_page_checksum=True
    )
    return str(folder / "i.parquet")


def expected(options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the rows that the options select."""
    rows = [dict(row) for row in ROWS]
    if "SELECT" in options.get("where", ""):
        rows = [
            {**{name: row[name] for name in ("t", "id", "u", "v", "twice")}, "n": row["n"] + 100}
            for row in rows
            if row["n"] > 2
        ]
    elif "where" in options:
        rows = [row for row in rows if row["n"] % 3 != 1]
    rows = rows[: options.get("limit")]
    for link in (
        options.get("fetch", ()) if "got" in options.get("columns", ["got"]) else ()
    ):  # unselected columns are not fetched
        for row in rows:
            name = row.pop(link[0])
            row["got"] = (
                None
                if name == "files/gone"
                else bytes([200 + FILES.index(name)]) * (FILES.index(name) + 1)
            )
        rows = [row for row in rows if row["got"] is not None]
    return [{name: row[name] for name in options.get("columns", row)} for row in rows]


def packed_rows(out: Path, options: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the packed rows, without the key column of the format."""
    key = options.get("key") if options.get("format") == "webdataset" else None
    return [
        {
            key if name == "__key__" else name: value
            for name, value in row.items()
            if name != "__key__" or key
        }
        for row in read.open(str(out))
    ]


def as_text(rows: list[dict[str, Any]], columns: set[str]) -> list[str]:
    """Return rows as text, so that equal numbers of different types are equal."""
    plain = [
        {
            name: float(value)
            if name in ("n", "x")
            else bytes(value)
            if name == "got"
            else str(value)
            for name, value in row.items()
        }
        for row in rows
    ]
    return [
        repr(sorted((name, value) for name, value in row.items() if name in columns))
        for row in plain
    ]


@pytest.mark.parametrize("first", OPTIONS)
def test_every_pair_of_options_works_or_is_refused(index: str, tmp_path: Path, first: str) -> None:
    for second in (pair[1] for pair in PAIRS if pair[0] == first):
        options, out = {**OPTIONS[first], **OPTIONS[second]}, tmp_path / second
        if "got" in str(options):
            options["encode"] = {**options.get("encode", {}), "got": "bytes"}
        if options.get("format") == "ffrecord":
            options["columns"] = ["t"]
        try:
            packed = commands.pack(index, str(out), **options)
        except FlareError as error:
            assert "\n" not in f"{error}{error.hint}" and error.hint, (first, second)
            assert (first, second) in REFUSED or {first, second} & ALWAYS, (
                first,
                second,
                str(error),
            )
            assert not out.exists() or "twice" not in (first, second)
            continue
        rows, want = packed_rows(out, options), expected(options)
        columns = set(want[0]) - (
            {options["key"]} if "columns" in options and "key" in options else set()
        )
        if "first" in (first, second):
            assert packed.rows + packed.duplicates + packed.failed == len(
                expected({**options, "fetch": (), "columns": ["t"]})
            )
            assert set(as_text(rows, columns)) <= set(as_text(want, columns)), (first, second)
        elif "shuffle" in (first, second):
            assert sorted(as_text(rows, columns)) == sorted(as_text(want, columns)), (first, second)
        else:
            assert as_text(rows, columns) == as_text(want, columns), (first, second)
        assert packed.rows == len(rows)


ALWAYS = {
    "csv",
    "twice",
}  # csv stores no column with a quote in its name; a duplicate key is an error
REFUSED = {
    *(("json", name) for name in ("fetch", "skip")),
    *(("xsv", name) for name in ("fetch", "skip")),
    *(("granular", "zstd"), ("granular-refs", "zstd"), ("ffrecord", "zstd")),
    *(("ffrecord", name) for name in ("fetch", "skip", "encode", "columns")),
    ("first", "parts"),
    ("shuffle", "parts"),
}


def _interrupting(note: Callable[..., None], shards: int = 2) -> Callable[..., None]:
    def interrupting(self: Journal, *args: Any) -> None:
        note(self, *args)
        if len(self.shards) == shards:
            raise KeyboardInterrupt

    return interrupting


@pytest.mark.parametrize("name", [name for name in OPTIONS if name not in ALWAYS])
def test_an_interrupted_pack_with_any_option_is_resumed_to_the_same_bytes(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    options = {"shard_rows": 2, **OPTIONS[name]}
    if name == "ffrecord":
        options["columns"] = ["t"]
    commands.pack(index, str(tmp_path / "whole"), **options)
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "record_shard", _interrupting(Journal.record_shard))
        commands.pack(index, str(tmp_path / "out"), **options)
    commands.pack(index, str(tmp_path / "out"), resume=True, **{**options, "jobs": 3})
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_a_resume_with_any_other_option_is_refused_and_changes_nothing(
    index: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    started = {"shard_rows": 2, "key": "id"}
    with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
        patch.setattr(Journal, "record_shard", _interrupting(Journal.record_shard))
        commands.pack(index, str(tmp_path / "out"), **started)
    before = {
        name: data for name, data in files_of(tmp_path / "out").items() if name != ".flare/lock"
    }
    others = {
        name: options
        for name, options in OPTIONS.items()
        if name not in ("csv", "ffrecord", "key", "jobs", "parts")
    }
    others |= {
        "on_duplicate": {"on_duplicate": "keep"},
        "on_error": {"on_error": "skip"},
        "empty": {"allow_empty": True},
        "missing": {"allow_missing": True},
        "resize": {"fetch": ["u"], "resize": 8},
        "info": {"fetch": ["u"], "media_info": True},
        "strict": {"strict": True},
    }
    for name, options in others.items():
        with pytest.raises(UsageError) as caught:
            commands.pack(index, str(tmp_path / "out"), resume=True, **{**started, **options})
        assert caught.value.message.startswith("the unfinished pack was started with "), name
        assert {
            name: data for name, data in files_of(tmp_path / "out").items() if name != ".flare/lock"
        } == before, name
    with pytest.raises(UsageError):
        commands.pack(index, str(tmp_path / "out"), resume=True, part_rows=4, **started)
    assert {
        name: data for name, data in files_of(tmp_path / "out").items() if name != ".flare/lock"
    } == before
    commands.pack(index, str(tmp_path / "out"), resume=True, **started)
    commands.pack(index, str(tmp_path / "whole"), **started)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_rows_of_several_files_are_counted_over_all_of_them(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = [str(tmp_path / f"{i}.parquet") for i in range(4)]
    for i, name in enumerate(names):
        pq.write_table(
            pa.table({"k": [f"{i}-{j}" for j in range(3)], "n": [3 * i + j for j in range(3)]}),
            name,
        )
    for stop in (3, 6):
        with monkeypatch.context() as patch, pytest.raises(KeyboardInterrupt):
            patch.setattr(Journal, "record_shard", _interrupting(Journal.record_shard, stop // 2))
            commands.pack(names, str(tmp_path / f"out{stop}"), shard_rows=2, key="k")
        commands.pack(names, str(tmp_path / f"out{stop}"), shard_rows=2, key="k", resume=True)
        assert [row["n"] for row in read.open(str(tmp_path / f"out{stop}"))] == list(range(12))
    pq.write_table(pa.table({"k": ["4-0", "2-1"], "n": [12, 13]}), tmp_path / "4.parquet")
    with pytest.raises(FormatError) as caught:
        commands.pack([*names, str(tmp_path / "4.parquet")], str(tmp_path / "twice"), key="k")
    assert (
        str(caught.value)
        == f"{tmp_path}/4.parquet[1]: key '2-1' was used in {tmp_path}/2.parquet[1]"
    )


@pytest.mark.parametrize(
    "format", ["mds", "json", "csv", "xsv", "ffrecord", "granular", "granular-refs", "webdataset"]
)
def test_if_all_rows_fail_the_dataset_is_empty_and_all_are_listed(
    index: str, tmp_path: Path, format: str
) -> None:
    options = {
        "format": format,
        "columns": ["t"],
        "encode": {"t": "json"},
        "on_error": "skip",
        "separator": ";" if format == "xsv" else None,
    }
    packed = commands.pack(index, str(tmp_path / "out"), **options)
    assert (packed.rows, packed.shards, packed.failed, packed.reasons) == (
        0,
        0,
        COUNT,
        {"value": COUNT},
    )
    assert len((tmp_path / "out" / "failed.jsonl").read_text().splitlines()) == COUNT
    assert list(commands.verify(str(tmp_path / "out"))) == []
    assert commands.pack(index, str(tmp_path / "out"), resume=True, **options).failed == COUNT


def test_row_numbers_are_kept_until_their_rows_can_no_longer_fail() -> None:
    places = Places(lambda row: ("i", row), "at")
    batches = (
        pa.record_batch({"n": [0, 0, 0], "at": [10 * i, 10 * i + 2, 10 * i + 5]}) for i in range(4)
    )
    for number, _ in enumerate(places.passed(batches, 0)):
        assert (
            places.placed(Failure(3 * number + 2, "", "", "", "")).where == f"i[{10 * number + 5}]"
        )
        places.forget(3 * number + 2)
        assert places.placed(Failure(3 * number + 2, "", "", "", "")).file == "i"
        places.forget(3 * number + 3)
        assert places.placed(Failure(3 * number + 2, "", "", "", "")).file is None
