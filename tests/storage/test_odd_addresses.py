"""Addresses that no parser of URLs takes: in redirects, in indexes, in what the user typed. An error each, and nothing else stops."""

from __future__ import annotations

import pickle

import pytest

from flarecli.cache import Cache
from flarecli.errors import FlareError, FormatError, UsageError
from flarecli.storage import Guard, locate
from flarecli.storage.http import url as addresses

DATA = bytes(range(256)) * 40


@pytest.mark.parametrize("reference", ["//[", "//[::1", "//]", "//a]/x", "//[1"])
def test_a_redirect_to_what_is_no_address_fails_alone(web, reference):
    web.pages["/a"] = lambda handler, times: handler.answer(302, b"", Location=reference)
    other = web.file("/b", DATA)
    with pytest.raises(FormatError) as caught:
        locate(web.url("/a")).read()
    assert caught.value.message == f"redirects to {reference}: the address has no host"
    assert locate(other).read() == DATA  # whoever fetches redirects fetches on


@pytest.mark.parametrize("reference", ["//[", "//[::1", "//]", "//\u2100/x", "//a\u2100b/"])
def test_a_reference_to_no_host_is_refused(reference):
    with pytest.raises(FormatError) as caught:
        addresses.join("http://h/a/", reference)
    assert str(caught.value) == f"{reference}: the address has no host"


@pytest.mark.parametrize(
    "address", ["http://[", "http://[x", "https://\u2100/", "http://a\u2100b/"]
)
def test_an_index_on_the_disk_may_name_what_is_no_address(tmp_path, address):
    with pytest.raises(FlareError) as caught:
        locate(f"{tmp_path}/").join(address)
    assert caught.value.message == "the address has no host"


def test_file_addresses_of_this_machine_are_paths(tmp_path):
    (tmp_path / "a b").write_bytes(DATA)
    top = locate(f"{tmp_path}/", Guard(allow_local=True))
    for address in (f"file://{tmp_path}/a%20b", f"file://localhost{tmp_path}/a%20b"):
        assert top.join(address).read() == locate(address).read() == DATA


@pytest.mark.parametrize("address", ["a\0b", "file:///a%00b"])
def test_no_path_holds_a_nul_whatever_is_allowed(tmp_path, address):
    with pytest.raises(FormatError) as caught:
        locate(f"{tmp_path}/", Guard(allow_local=True)).join(address)
    assert str(caught.value) == f"{tmp_path}: the address holds a control character"
    with pytest.raises((UsageError, FormatError)):
        locate(address)


def test_signs_of_addresses_in_a_password_are_only_signs(web, tmp_path):
    web.file("/a", DATA, '"one"')
    at = locate(web.url("/a", user="me:p[w"), Guard(keeper=Cache(str(tmp_path / "cache"))))
    assert at.read() == DATA
    assert web.requests[-1][1]["authorization"] == "Basic bWU6cFt3"


def test_a_location_is_shown_to_programmers_without_its_secrets():
    at = locate("http://me:hunter2@127.0.0.1:1/x?X-Amz-Signature=abc")
    assert repr(at) == "Location('http://127.0.0.1:1/x')"
    assert pickle.loads(pickle.dumps(at)) == at
