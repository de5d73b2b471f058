"""Reading many whole files by one call: bounded, in order, and ended when the iterator is
closed.
"""

import time

import pytest

from flarecli.errors import MissingError
from flarecli.storage import Guard, Limits, locate, read_each

SIZE, COUNT, JOBS, AHEAD = 10_000, 400, 4, 200_000


@pytest.fixture(params=["http", "s3"])
def folder(request, web, no_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", web.url(""))
    for i in range(COUNT):
        web.file(f"/b/{i:03}", b"%03d" % i * (SIZE // 3), f'"{i}"')
    return locate(
        "s3://b" if request.param == "s3" else web.url("/b"),
        Guard(limits=Limits(jobs=JOBS, ahead_bytes=AHEAD)),
    )


def test_the_number_of_prefetched_files_is_bounded(folder, web):
    taken = 0
    for data in read_each([folder / f"{i:03}" for i in range(COUNT)]):
        assert bytes(data[:3]) == b"%03d" % taken
        taken += 1
        if taken in (1, 100, 300):
            time.sleep(0.3)
            assert len(web.requests) - taken <= AHEAD // SIZE + 2 * JOBS
    assert taken == len(web.requests) == COUNT


def test_closing_the_iterator_ends_the_requests(folder, web):
    found = read_each([folder / f"{i:03}" for i in range(COUNT)])
    next(found)
    found.close()
    time.sleep(0.1)
    asked = len(web.requests)
    time.sleep(0.2)
    assert len(web.requests) == asked <= AHEAD // SIZE + 3 * JOBS


def test_a_missing_file_is_reported_before_earlier_files_are_read(folder, web):
    with pytest.raises(MissingError) as found:
        list(read_each([folder / (f"{i:03}" if i != 200 else "nothing") for i in range(COUNT)]))
    assert str(found.value.where) == str(folder / "nothing")
