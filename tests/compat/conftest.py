"""A bucket for the tests of this folder."""

import os
import time
import urllib.request

import pytest


@pytest.fixture
def empty_bucket(moto, monkeypatch):
    """The name of a new bucket; the environment has only the credentials for it."""
    for name in list(os.environ):
        if name.startswith("AWS_"):
            monkeypatch.delenv(name)
    for name, value in {
        "AWS_ENDPOINT_URL": moto,
        "AWS_ACCESS_KEY_ID": "AKID",
        "AWS_SECRET_ACCESS_KEY": "secret",
    }.items():
        monkeypatch.setenv(name, value)
    name = f"b{time.monotonic_ns()}"
    urllib.request.urlopen(urllib.request.Request(f"{moto}/{name}", method="PUT")).close()
    return name
