"""Clients of a bucket: one for all threads, and for all stores that would open the same."""

import threading

import pytest

from flarecli.storage.cloud import client_pool as opened
from flarecli.storage.cloud.client_pool import Clients
from flarecli.storage.limits import Limits


@pytest.fixture
def clients(no_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setattr(opened, "_shared", {})
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
    monkeypatch.setattr("flarecli.storage.cloud.credentials.Way.is_open", True)  # nobody is asked
    refused = clients.current()[1]
    assert in_threads(lambda: clients.otherwise(refused)) == [True] * 16
    assert [way.words for way in clients.tried] == [
        "without credentials",
        "with the machine's role",
    ]
    assert clients.otherwise(refused) and not clients.otherwise(clients.current()[1])


def test_stores_that_would_open_the_same_client_share_it(clients, monkeypatch):
    client = clients.current()[1]
    assert Clients("s3://files/", Limits()).current()[1] is client
    assert Clients("s3://others/", Limits()).current()[1] is not client
    assert Clients("s3://files/", Limits(jobs=3)).current()[1] is not client
    monkeypatch.setenv("AWS_SESSION_TOKEN", "other")  # the library may read it by itself
    assert Clients("s3://files/", Limits()).current()[1] is not client


def test_a_client_that_was_refused_is_shared_no_more(clients, monkeypatch):
    monkeypatch.setattr("flarecli.storage.cloud.credentials.Way.is_open", False)
    refused = clients.current()[1]
    assert not clients.otherwise(refused)
    assert Clients("s3://files/", Limits()).current()[1] is not refused


def test_clients_that_nobody_asks_for_again_are_not_kept_for_ever(clients, monkeypatch):
    monkeypatch.setattr(opened, "MAX_CLIENTS", 3)
    first = clients.current()[1]
    for name in "abc":
        Clients(f"s3://{name}/", Limits()).current()
    assert len(opened._shared) == 3
    assert Clients("s3://files/", Limits()).current()[1] is not first
