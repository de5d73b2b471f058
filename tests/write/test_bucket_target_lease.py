"""The lock of a pack in a bucket, with a store in memory; tests/storage uses real servers."""

import pytest

from flarecli.errors import BusyError
from flarecli.storage import locate
from flarecli.write.bucket_target import Lease


def test_a_store_that_refuses_conditional_puts_is_an_error_after_a_few_attempts(
    tmp_path, monkeypatch
):
    requests, slept = [], []

    def refused(at, data, old=None):
        requests.append(data)
        raise BusyError("another process has written there", where=at)

    monkeypatch.setattr("flarecli.write.bucket_target.swap", refused)
    monkeypatch.setattr("flarecli.write.bucket_target.time.sleep", slept.append)
    with pytest.raises(BusyError) as caught:
        Lease(locate(str(tmp_path)) / "lock", "s3://b/out", waits=False)
    assert (
        str(caught.value)
        == "s3://b/out: cannot create the lock: other processes created it first, or the store rejects conditional writes"
    )
    assert caught.value.hint == "Try again in a minute."
    assert len(requests) == 9
    assert 4 < sum(slept) < 6
