"""The user's credentials are used for buckets that the user typed or local data names, never for
those of remote data.
"""

from __future__ import annotations

import pytest

import flarecli
from flarecli.__main__ import main
from flarecli.storage import Guard, locate
from flarecli.storage.locator import locate_named

HINT = (
    "hint: Links from network data to other buckets are read without credentials; "
    "if you trust the data, save it locally."
)


@pytest.fixture
def cloud(web, no_cloud, monkeypatch):
    """A web server in place of S3, and a key in the environment."""
    for name, value in {
        "AWS_ENDPOINT_URL": web.url(""),
        "AWS_ACCESS_KEY_ID": "AKIDEXAMPLE",
        "AWS_SECRET_ACCESS_KEY": "verysecret",
    }.items():
        monkeypatch.setenv(name, value)
    return web


def put(cloud, path, data):
    """Serve an object like S3."""
    cloud.file(path, data, '"one"')
    serve = cloud.pages[path]

    def page(handler, times):
        answer = handler.answer
        handler.answer = lambda status, body=b"", **more: answer(
            status, body, **{"Last_Modified": "Wed, 21 Oct 2015 07:28:00 GMT", **more}
        )
        serve(handler, times)

    cloud.pages[path] = page


def signed(cloud, path):
    """Return whether each request for a path was signed."""
    return {"authorization" in headers for asked, headers in cloud.requests if asked == path}


def pack(*args):
    return main(["pack", *args, "--fetch", "url:data", "--key", "key"])


def test_a_local_index_reads_buckets_with_credentials_and_a_note_lists_them(cloud, tmp_path, capfd):
    put(cloud, "/mine/a", b"one")
    put(cloud, "/yours/b", b"two")
    (tmp_path / "index.csv").write_text("key,url\n1,s3://mine/a\n2,s3://yours/b\n3,s3://mine/a\n")
    assert pack(str(tmp_path / "index.csv"), str(tmp_path / "out")) == 0
    err = capfd.readouterr().err
    assert "the table refers to s3://mine, s3://yours: read with your credentials, if you" in err
    assert signed(cloud, "/mine/a") == signed(cloud, "/yours/b") == {True}


def test_a_local_playlist_reads_buckets_with_credentials_and_a_note_lists_them(
    cloud, tmp_path, capfd
):
    with flarecli.Writer(str(tmp_path / "data"), columns={"n": "int"}) as writer:
        writer.write({"n": 7})
    for one in (tmp_path / "data").iterdir():
        put(cloud, f"/mine/{one.name}", one.read_bytes())
    path = tmp_path / "set.yaml"
    flarecli.playlist(str(tmp_path / "data"), out=str(path), rebase=[("data/", "s3://mine/")])
    for command in ("cat", "inspect", "verify"):
        assert main([command, str(path)]) == 0
        err = capfd.readouterr().err
        assert f"{path} refers to s3://mine: read with your credentials, if you have any" in err
    assert signed(cloud, "/mine/shard.00000.mds") == {True}


def test_an_index_from_the_web_reads_buckets_without_credentials(cloud, tmp_path, capfd):
    put(cloud, "/open/a", b"public")
    cloud.pages["/closed/b"] = lambda handler, times: handler.answer(
        403, b"<Error><Code>AccessDenied</Code></Error>"
    )
    cloud.file("/d/index.csv", b"key,url\n1,s3://open/a\n")
    assert pack(cloud.url("/d/index.csv"), str(tmp_path / "one")) == 0
    assert flarecli.open(str(tmp_path / "one"))[0]["data"] == b"public"
    assert "credentials" not in capfd.readouterr().err
    cloud.file("/d/closed.csv", b"key,url\n1,s3://closed/b\n")
    assert pack(cloud.url("/d/closed.csv"), str(tmp_path / "two")) == 3
    assert "403 Forbidden" in capfd.readouterr().err
    assert signed(cloud, "/open/a") == signed(cloud, "/closed/b") == {False}


def test_an_index_in_a_bucket_reads_other_buckets_without_credentials(cloud, tmp_path, capfd):
    put(cloud, "/mine/a", b"own")
    put(cloud, "/open/a", b"other")
    put(cloud, "/mine/index.csv", b"key,url\n1,s3://mine/a\n2,s3://open/a\n")
    out = str(tmp_path / "out")
    assert pack("s3://mine/index.csv", out) == 0, capfd.readouterr().err
    assert [row["data"] for row in flarecli.open(out)] == [b"own", b"other"]
    assert signed(cloud, "/mine/a") == {True}
    assert signed(cloud, "/open/a") == {False}


def test_denied_access_to_another_bucket_is_explained(cloud, tmp_path, capfd):
    cloud.pages["/closed/shard.00000.mds"] = lambda handler, times: handler.answer(
        403, b"<Error><Code>AccessDenied</Code></Error>"
    )
    with flarecli.Writer(str(tmp_path / "data"), columns={"n": "int"}) as writer:
        writer.write({"n": 7})
    text = flarecli.playlist(str(tmp_path / "data"), rebase=[(str(tmp_path), "s3://closed")])
    cloud.pages["/closed/data/shard.00000.mds"] = cloud.pages.pop("/closed/shard.00000.mds")
    cloud.file("/d/playlist.yaml", text.encode())
    assert main(["cat", cloud.url("/d/playlist.yaml")]) == 3
    err = capfd.readouterr().err
    assert "403 Forbidden" in err and "tried without credentials" in err
    assert HINT in err


def test_an_anonymous_store_differs_from_the_users_store(cloud):
    guard = Guard()
    anonymous, own = (
        locate_named("s3://mine/a", guard, is_remote=True),
        locate("s3://mine/a", guard),
    )
    assert anonymous.store != own.store
    assert anonymous.store.settings["skip_signature"]
    assert "skip_signature" not in own.store.settings
