"""Clients of a bucket: one for all threads."""

import threading

import pytest

from flarecli.storage.clients import Clients
from flarecli.storage.limits import Limits


@pytest.fixture
def clients(no_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    return Clients("s3://files/", Limits())


def in_threads(call):
    """Make a call in many threads at once; give what they got."""
    ready, found = threading.Barrier(16), []

    def one():
        ready.wait()
        found.append(call())

    threads = [threading.Thread(target=one) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def test_threads_that_begin_together_share_one_client(clients):
    assert len({id(client) for _, client in in_threads(clients.current)}) == 1
    assert len(clients.tried) == 1


def test_threads_that_are_refused_together_go_one_way_further(clients, monkeypatch):
    monkeypatch.setattr("flarecli.storage.credentials.Way.is_open", True)  # nobody is asked
    refused = clients.current()[1]
    assert in_threads(lambda: clients.otherwise(refused)) == [True] * 16
    assert [way.words for way in clients.tried] == ["without credentials", "with the machine's role"]
    assert clients.otherwise(refused) and not clients.otherwise(clients.current()[1])
