"""Credentials: wrong settings are reported without their values, with a server that checks
signatures.
"""

from __future__ import annotations

import re

import pytest

from flarecli.__main__ import main
from flarecli.errors import FlareError, ReachError
from flarecli.storage import Guard, Limits, locate

ONCE = Guard(limits=Limits(retries=0, timeout_s=0.5))


SETTINGS = "Check the environment variables, and the files to which they refer."


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
    assert str(refused("s3://b/x")) == "s3://b/x: connection refused at http://127.0.0.1:9"


@pytest.mark.parametrize(
    "endpoint",
    ["::", "not a url", "http://", "ftp://127.0.0.1:1", "http://127.0.0.1:99999", "127.0.0.1:9000"],
)
def test_an_invalid_endpoint_is_reported(keys, monkeypatch, endpoint):
    monkeypatch.setenv("AWS_ENDPOINT_URL", endpoint)
    error = refused("s3://b/x")
    assert (type(error), str(error)) == (
        ReachError,
        "the configured S3 endpoint is not an HTTP or HTTPS URL",
    )
    assert (
        error.hint == "Set AWS_ENDPOINT_URL to an address such as https://host:port, or unset it."
    )


def test_an_invalid_credentials_file_is_reported_without_its_content(
    no_cloud, monkeypatch, tmp_path
):
    (tmp_path / "key.json").write_text('{"private_key": "hunter2"')
    monkeypatch.setenv("GOOGLE_APPLICATION_CREDENTIALS", str(tmp_path / "key.json"))
    monkeypatch.setenv("STORAGE_EMULATOR_HOST", "127.0.0.1:9")
    error = refused("gs://b/x")
    assert (
        str(error)
        == "gs://b/: invalid settings for access with the account in GOOGLE_APPLICATION_CREDENTIALS"
    )
    assert error.hint == SETTINGS


def test_an_invalid_key_is_reported_without_its_characters(no_cloud, monkeypatch):
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_NAME", "account")
    monkeypatch.setenv("AZURE_STORAGE_ACCOUNT_KEY", "hunter2 !!")
    monkeypatch.setenv("AZURE_STORAGE_ENDPOINT", "http://127.0.0.1:9")
    error = refused("az://b/x")
    assert str(error) == "az://b/: invalid settings for access with AZURE_STORAGE_ACCOUNT_KEY"
    assert error.hint == SETTINGS


@pytest.fixture
def bucket(rclone, no_cloud, monkeypatch):
    address, folder = rclone
    monkeypatch.setenv("AWS_ENDPOINT_URL", address)
    (folder / "a").write_bytes(b"there")
    return "s3://bucket"


def let_in(monkeypatch, key, secret):
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", secret)


def test_the_right_key_reads_writes_and_lists(bucket, monkeypatch):
    let_in(monkeypatch, "AKIDEXAMPLE", "verysecret")
    at = locate(bucket)
    assert (at / "a").size() == 5 and (at / "a").read() == b"there"
    (at / "b").write([b"more"])
    assert (at / "b").read() == b"more" and [
        entry.name for entry in at.list() if entry.name in "ab"
    ] == ["a", "b"]


@pytest.mark.parametrize(
    ("key", "secret", "code"),
    [
        ("AKIDEXAMPLE", "wrongsecret", "SignatureDoesNotMatch"),
        ("AKOTHER", "verysecret", "InvalidAccessKeyId"),
    ],
)
@pytest.mark.parametrize(
    "argv",
    [
        ["inspect", "s3://bucket/d"],
        ["cat", "s3://bucket/d"],
        ["pack", "INDEX", "s3://bucket/new"],
        ["verify", "s3://bucket/d"],
    ],
)
def test_a_wrong_key_ends_every_command_at_once(
    bucket, monkeypatch, tmp_path, capfd, argv, key, secret, code
):
    index = tmp_path / "index.csv"
    index.write_text("n\n1\n")
    let_in(monkeypatch, key, secret)
    assert main([str(index) if word == "INDEX" else word for word in argv]) == 3
    said = re.sub(r"127\.0\.0\.1:\d+", "HOST", capfd.readouterr().err)
    code = (
        f" ({code})" if argv[0] == "pack" else ""
    )  # the other commands start with HEAD, whose response has no body
    assert (
        f": 403 Forbidden{code}, tried with the key in AWS_ACCESS_KEY_ID at http://HOST\n" in said
    )
    assert "hint: Check the credentials and their permissions" in said
    assert secret not in said and key not in said


def test_access_without_a_key_is_denied(bucket, capfd):
    assert main(["inspect", "s3://bucket/d"]) == 3
    assert "tried without credentials at http://127.0.0.1:" in capfd.readouterr().err


@pytest.mark.parametrize(
    ("key", "secret", "code"),
    [
        ("AKIDEXAMPLE", "wrongsecret", "SignatureDoesNotMatch"),
        ("AKOTHER", "verysecret", "InvalidAccessKeyId"),
    ],
)
@pytest.mark.parametrize(
    "argv", [["inspect", "s3://bucket/d"], ["pack", "INDEX", "s3://bucket/new"]]
)
def test_a_wrong_key_ends_a_command_through_s3fs(
    bucket, monkeypatch, tmp_path, capfd, argv, key, secret, code
):
    pytest.importorskip("s3fs")
    index = tmp_path / "index.csv"
    index.write_text("n\n1\n")
    monkeypatch.setenv("FLARE_S3", "s3fs")
    let_in(monkeypatch, key, secret)
    assert main([str(index) if word == "INDEX" else word for word in argv]) == 3
    said = re.sub(r"127\.0\.0\.1:\d+", "HOST", capfd.readouterr().err)
    assert (
        f": 403 Forbidden ({code}), tried with the key in AWS_ACCESS_KEY_ID at http://HOST\nhint: Check the credentials"
        in said
    )
    assert secret not in said and key not in said
