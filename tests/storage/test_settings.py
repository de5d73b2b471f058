"""What is set wrongly is said in one line, and nothing of what was set is shown; keys are names, whatever words are in them."""

from __future__ import annotations

import errno
import importlib.util
import tempfile

import fsspec
import pytest

from flarecli.errors import FlareError, MissingError, ReachError
from flarecli.storage import Guard, Limits, locate
from flarecli.storage import fsspec_store as anything
from flarecli.storage.cloud import fork_safety as native
from flarecli.storage.cloud.errors import translate

ONCE = Guard(limits=Limits(retries=0, timeout_s=0.5))
SETTINGS = "Check the environment variables and the files that they name."


@pytest.fixture
def keys(no_cloud, monkeypatch):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "AKIDEXAMPLE")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "verysecret")


def refused(address, guard=ONCE):
    with pytest.raises(FlareError) as caught:
        locate(address, guard).read()
    return caught.value


def test_a_password_in_an_endpoint_is_not_shown(keys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", "http://me:hunter2@127.0.0.1:9")
    assert str(refused("s3://b/x")) == "s3://b/x: the connection is refused at http://127.0.0.1:9"


@pytest.mark.parametrize(
    "endpoint",
    ["::", "not a url", "http://", "ftp://127.0.0.1:1", "http://127.0.0.1:99999", "127.0.0.1:9000"],
)
def test_an_endpoint_that_is_no_address_is_said(keys, monkeypatch, endpoint):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    error = refused("s3://b/x")
    assert (type(error), str(error)) == (
        ReachError,
        "the configured S3 endpoint is not an http address",
    )
    assert (
        error.hint == "Set AWS_ENDPOINT_URL to an address such as https://host:port, or unset it."
    )


def test_a_file_of_credentials_that_is_none_is_said_without_what_is_in_it(
    no_cloud, monkeypatch, tmp_path
):
    (tmp_path / "key.json").write_text('{"private_key": "hunter2"')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    error = refused("gs://b/x")
    assert (
        str(error)
        == "gs://b/: what is set cannot be used, tried with the account in GOOGLE_APPLICATION_CREDENTIALS"
    )
    assert error.hint == SETTINGS


def test_a_key_that_is_none_is_said_without_its_signs(no_cloud, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "hunter2 !!")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:9")
    error = refused("az://b/x")
    assert (
        str(error)
        == "az://b/: what is set cannot be used, tried with what AZURE_STORAGE_ACCOUNT_KEY says"
    )
    assert error.hint == SETTINGS


@pytest.mark.parametrize(
    "key",
    ["status 403", "a status: 401.mds", "<Code>ExpiredToken</Code>", 'x" status 416', "status 412"],
)
def test_words_in_a_key_are_no_answer(s3, key):
    with pytest.raises(MissingError) as caught:
        (locate(s3) / key).read()
    assert str(caught.value) == f"{s3}/{key}: nothing is there"


def test_words_in_an_address_are_no_cause(web, keys, monkeypatch):
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://127.0.0.1:{web.port}")
    web.pages["/b/certificates/token"] = lambda handler, times: web.over.wait(2)
    assert (
        str(refused("s3://b/certificates/token"))
        == f"s3://b/certificates/token: no answer in time at http://127.0.0.1:{web.port}"
    )


def test_what_a_library_says_is_read_behind_the_name_it_repeats():
    text = "Object at location Error performing status 403 not found: Error performing GET http://h/status%20403 in 1ms - status code: 404"
    assert (
        type(
            translate(
                Exception(
                    f'{text}\n\nDebug source:\nNotFound {{\n    path: "a \\" status 403",\n}}'
                ),
                "s3://b/x",
                "",
                "",
            )
        )
        is MissingError
    )


def test_a_library_that_cannot_be_loaded_after_a_fork_says_why(monkeypatch):
    native.compiled()

    def not_there(spec):
        raise ImportError("failed to map segment from shared object")

    monkeypatch.setattr(native, "_pid", 1)
    monkeypatch.setattr(importlib.util, "module_from_spec", not_there)
    with pytest.raises(ReachError) as caught:
        native.compiled()
    assert (
        str(caught.value)
        == f"{tempfile.gettempdir()}: obstore cannot be loaded again after a fork: nothing may be run from there"
    )
    assert (
        caught.value.hint
        == "Let TMPDIR name a folder from which programs may be run, or start processes by spawn."
    )


class Full:
    """A temporary file on a full disk."""

    def __enter__(self):
        return self

    def __exit__(self, *error):
        pass

    def write(self, data):
        raise OSError(errno.ENOSPC, "No space left on device")


def test_a_file_that_cannot_be_collected_here_is_said(monkeypatch):
    monkeypatch.setattr(anything.tempfile, "NamedTemporaryFile", lambda prefix: Full())
    with pytest.raises(ReachError) as caught:
        locate("memory://full/a").write([b"x"])
    assert (
        str(caught.value)
        == f"{tempfile.gettempdir()}: cannot collect a file here: no space left on device"
    )


def test_half_of_a_file_is_not_left_with_its_server(monkeypatch):
    memory = fsspec.filesystem("memory")

    def half(self, source, target, **more):
        memory.pipe_file(target, b"half")
        raise OSError("connection lost")

    monkeypatch.setattr(anything, "_WHOLE", ())
    monkeypatch.setattr(type(memory), "put_file", half)
    with pytest.raises(ReachError):
        locate("memory://halves/a").write([b"whole"])
    assert not memory.find("/halves")
