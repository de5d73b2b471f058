"""Clients of a bucket are shared by threads, and by stores with the same configuration."""

import threading
import time

import pytest

from flarecli.storage.base import Limits
from flarecli.storage.cloud import client_pool as opened
from flarecli.storage.cloud.client_pool import Clients, Outage
from flarecli.write import bucket_target


@pytest.fixture
def clients(no_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:9")
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.delenv("AWS_EC2_METADATA_DISABLED")
    monkeypatch.setattr(opened, "_shared", {})
    return Clients("s3://files/", Limits())


def in_threads(call):
    """Call a function in many threads at the same time; return the results."""
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


def test_concurrent_threads_share_one_client(clients):
    assert len({id(client) for _, client in in_threads(clients.current)}) == 1
    assert len(clients.tried) == 1


def test_concurrent_threads_that_are_denied_switch_sources_once(clients, web, monkeypatch):
    monkeypatch.setenv("AWS_EC2_METADATA_SERVICE_ENDPOINT", web.url(""))
    clients = Clients("s3://files/", Limits())
    denied = clients.current()[1]
    assert in_threads(lambda: clients.use_next_source(denied)) == [True] * 16
    assert [source.name for source in clients.tried] == [
        "without credentials",
        "with the machine's role",
    ]
    assert clients.use_next_source(denied) and not clients.use_next_source(clients.current()[1])


def test_stores_with_the_same_configuration_share_a_client(clients, monkeypatch):
    client = clients.current()[1]
    assert Clients("s3://files/", Limits()).current()[1] is client
    assert Clients("s3://others/", Limits()).current()[1] is not client
    assert Clients("s3://files/", Limits(jobs=3)).current()[1] is not client
    monkeypatch.setenv("AWS_SESSION_TOKEN", "other")  # the library reads the environment, too
    assert Clients("s3://files/", Limits()).current()[1] is not client


def test_a_denied_client_is_not_shared(clients):
    denied = clients.current()[1]
    assert not clients.use_next_source(denied)
    assert Clients("s3://files/", Limits()).current()[1] is not denied


def test_the_number_of_shared_clients_is_bounded(clients, monkeypatch):
    monkeypatch.setattr(opened, "MAX_CLIENTS", 3)
    first = clients.current()[1]
    for name in "abc":
        Clients(f"s3://{name}/", Limits()).current()
    assert len(opened._shared) == 3
    assert Clients("s3://files/", Limits()).current()[1] is not first


def test_a_lock_expires_later_than_the_last_request_of_its_owner():
    """A call starts at most 1.5 intervals after a renewal; its requests may connect for 10 s."""
    last_request = opened.OUTAGE_S + opened.FIRST_CONTACT_S + 2 + 10
    assert last_request <= opened.MAX_REPEAT_S
    assert 1.5 * bucket_target.BEAT_S + opened.MAX_REPEAT_S < bucket_target.DEAD_S


def test_a_call_is_not_repeated_for_longer_than_an_outage_if_other_calls_succeed(monkeypatch):
    monkeypatch.setattr(opened, "OUTAGE_S", 1.0)
    outage, began = Outage(8, 600.0), time.monotonic()
    outage.responded()
    while outage.wait(began, is_overload=False) and time.monotonic() < began + 5:
        outage.responded()  # another thread has reached the service
    assert 0.5 < time.monotonic() - began <= 1.5


def test_a_call_is_not_repeated_after_a_pause_of_its_process(monkeypatch):
    monkeypatch.setattr(opened, "OUTAGE_S", 0.5)
    outage = Outage(8, 600.0)
    outage.responded()
    monkeypatch.setattr(opened.time, "sleep", lambda _: threading.Event().wait(0.7))
    assert not outage.wait(time.monotonic(), is_overload=False)
