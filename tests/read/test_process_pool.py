"""Worker processes of a loader: the same batches, errors with their fields, and dead workers."""

import operator
import os

import pytest

import flarecli as flare
from flarecli.errors import FlareError, TransformError, UsageError
from flarecli.model import Settings

ROWS = 103


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    path = tmp_path_factory.mktemp("processes") / "d"
    columns = {"n": "int", "text": "str"}
    with flare.Writer(str(path), columns=columns, settings=Settings(shard_rows=10)) as writer:
        for n in range(ROWS):
            writer.write({"n": n, "text": "x" * n})
    return flare.open(str(path))


def test_spawned_processes_yield_the_same_batches(data):
    loader = flare.Loader(
        data,
        50,
        seed=5,
        transform=operator.itemgetter("text"),
        collate=len,
        workers=1,
        processes=True,
        start="spawn",
    )
    assert list(loader) == [50, 50, 3]


def _exit_at_row_30(sample):
    if sample["n"] == 30:
        os._exit(7)
    return sample


def test_an_exited_worker_process_is_reported(data):
    loader = flare.Loader(
        data,
        12,
        order="sequential",
        transform=_exit_at_row_30,
        workers=1,
        processes=True,
        start="fork",
    )
    with pytest.raises(TransformError) as caught:
        list(loader)
    assert str(caught.value) == (
        "a worker process ended (exit code 7) during the batch of rows "
        "24, 25, 26, 27, 28, 29, 30, 31, …"
    )
    with pytest.raises(UsageError, match="^cannot send the function to another process: "):
        list(flare.Loader(data, transform=lambda sample: sample, processes=True, start="spawn"))


def test_errors_of_worker_processes_keep_their_fields(data):
    (path,) = {str(data.playlists[0].at)}
    loader = flare.Loader(
        flare.open(path), 10, decode={"text": int}, workers=1, processes=True, start="fork"
    )
    with pytest.raises(FlareError) as caught:
        list(loader)
    assert caught.value.message.startswith("column 'text': ValueError: invalid literal for int()")


def test_an_unknown_start_method_is_refused(data):
    with pytest.raises(UsageError) as caught:
        next(iter(flare.Loader(data, processes=True, start="thread")))
    assert str(caught.value) == "unknown start method 'thread'"
    assert caught.value.hint.startswith("Choose one of fork, ")


def unsendable(sample):
    return lambda: sample


def test_values_that_cannot_be_pickled_are_named(data):
    with pytest.raises(TransformError) as caught:
        next(
            iter(
                flare.Loader(
                    data,
                    4,
                    workers=1,
                    processes=True,
                    start="fork",
                    transform=unsendable,
                    collate=list,
                )
            )
        )
    message = str(caught.value).partition("cannot send the batch to another process: ")[2]
    assert message.startswith(
        ("Can't pickle ", "Can't get local object ")
    )  # Python's wording up to 3.12, and since
