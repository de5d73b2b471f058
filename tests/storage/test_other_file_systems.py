"""What fsspec tells of files: which of it tells one version from another, and how a listing comes."""

from __future__ import annotations

import time
from datetime import UTC, datetime, timedelta, timezone

import pytest

from flarecli.cache import Cache
from flarecli.storage import Guard, locate

fsspec = pytest.importorskip("fsspec")
NOW = datetime.fromtimestamp(1_800_000_000, UTC)
LONG_AGO = NOW - timedelta(seconds=60)
JUST_NOW = NOW - timedelta(seconds=59)


@pytest.mark.parametrize(
    ("told", "sign"),
    [
        ({"ETag": '"one"', "LastModified": JUST_NOW}, '"one"'),
        ({"md5": "c4ca", "mtime": JUST_NOW}, "c4ca"),
        ({"LastModified": LONG_AGO}, str(LONG_AGO)),
        ({"LastModified": JUST_NOW}, ""),
        ({"LastModified": NOW + timedelta(hours=1)}, ""),
        ({"mtime": LONG_AGO.timestamp()}, str(LONG_AGO.timestamp())),
        ({"mtime": JUST_NOW.timestamp()}, ""),
        ({"mtime": LONG_AGO.astimezone(timezone(timedelta(hours=-7)))}, str(LONG_AGO.astimezone(timezone(timedelta(hours=-7))))),
        ({"mtime": LONG_AGO.replace(tzinfo=None)}, ""),
        ({"mtime": LONG_AGO.replace(tzinfo=None) - timedelta(days=1)}, str(LONG_AGO.replace(tzinfo=None) - timedelta(days=1))),
        ({"modify": LONG_AGO.strftime("%Y%m%d%H%M%S")}, LONG_AGO.strftime("%Y%m%d%H%M%S")),
        ({"modify": JUST_NOW.strftime("%Y%m%d%H%M%S")}, ""),
        ({"modify": LONG_AGO.strftime("%Y%m%d%H%M%S.000")}, LONG_AGO.strftime("%Y%m%d%H%M%S.000")),
        ({"modified": LONG_AGO.isoformat()}, LONG_AGO.isoformat()),
        ({"modify": "Jan 15 08:00"}, ""),
        ({"modify": "99999999999999"}, ""),
        ({"mtime": 1e300}, ""),
        ({}, ""),
    ],
)
def test_a_time_tells_versions_apart_once_it_lies_behind(told, sign, monkeypatch):
    at = locate("memory://told/a")
    monkeypatch.setattr(time, "time", NOW.timestamp)
    monkeypatch.setattr(at.store, "_do", lambda path, call: {"name": path, "type": "file", "size": 7, **told})
    assert at.store.version(at.path) == (sign, 7)
    assert at.size() == 7


@pytest.mark.parametrize(("age", "is_kept"), [(0, False), (30, False), (61, True)])
def test_a_copy_is_kept_under_a_time_that_lies_behind_alone(age, is_kept, tmp_path):
    files = fsspec.filesystem("memory")
    when = datetime.fromtimestamp(int(time.time()) - age, UTC)

    def read(data):
        files.pipe("/times/a", data)
        files.store["/times/a"].created = when  # it was written twice within one second
        return locate("memory://times/a", Guard(keeper=Cache(str(tmp_path)))).read()

    assert read(b"a" * 5_000_000) == b"a" * 5_000_000
    assert (read(b"b" * 5_000_000) == b"a" * 5_000_000) is is_kept
    files.rm("/times/a")
