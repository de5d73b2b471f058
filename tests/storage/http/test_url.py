"""Addresses are parsed strictly: equivalent spellings have one form, and invalid ones are
errors.
"""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.errors import FlareError, FormatError, UnsafeError
from flarecli.storage.http.url import join, parse, redirected


@pytest.mark.parametrize(
    ("given", "url", "origin"),
    [
        ("http://example.org", "http://example.org/", "http://example.org:80"),
        ("HTTP://EXAMPLE.org:80/A", "http://example.org/A", "http://example.org:80"),
        (
            "https://example.org:443/a?b=c&d#frag",
            "https://example.org/a?b=c&d",
            "https://example.org:443",
        ),
        ("https://example.org:8443?q", "https://example.org:8443/?q", "https://example.org:8443"),
        (
            "http://example.org/a b/ü.jpg",
            "http://example.org/a%20b/%C3%BC.jpg",
            "http://example.org:80",
        ),
        ("http://example.org/a%20b%2Fc", "http://example.org/a%20b%2Fc", "http://example.org:80"),
        ("http://[::1]:8080/x", "http://[::1]:8080/x", "http://[::1]:8080"),
        ("http://[0:0:0:0:0:0:0:1]/x", "http://[::1]/x", "http://[::1]:80"),
        (
            "http://bücher.example/",
            "http://xn--bcher-kva.example/",
            "http://xn--bcher-kva.example:80",
        ),
        (" http://example.org/x ", "http://example.org/x", "http://example.org:80"),
    ],
)
def test_equivalent_spellings_have_one_form(given, url, origin):
    found = parse(given)
    assert (found.url, found.origin, found.user) == (url, origin, "")
    assert parse(found.url) == found


def test_user_info_is_separated_from_the_url():
    found = parse("http://me:p%40ss@example.org/x")
    assert "me" not in found.url and "ss" not in found.url
    assert found.url == "http://example.org/x"
    assert found.user


@pytest.mark.parametrize(
    "address",
    [
        "file:///etc/passwd",
        "ftp://example.org/x",
        "pipe:cat /etc/passwd",
        "data:text/plain,x",
        "jar:http://example.org/x!/y",
        "gopher://example.org/",
        "s3://bucket/key",
        "simplecache::http://example.org/x",
        "javascript:alert(1)",
    ],
)
def test_other_schemes_are_refused(address):
    with pytest.raises((UnsafeError, FormatError)):
        parse(address)


@pytest.mark.parametrize(
    "address",
    [
        "",
        "http://",
        "http:///x",
        "http://@/x",
        "http://:80/x",
        "http://example.org:99999/",
        "http://example.org:0/",
        "http://example.org:8o/",
        "http://exa mple.org/",
        "http://example.org\\.evil.example/",
        "http://127.0.0.1#@example.org\r\nX: y/",
        "http://example.org/\x00",
        "http://example.org/a\nb",
        "http://[::1%25lo]/",
        "http://[::1%lo]/",
        "http://[::1/",
        "http://[127.0.0.1]/",
        "http://a@b@c/",
    ],
)
def test_invalid_addresses_are_refused(address):
    with pytest.raises((FormatError, UnsafeError)):
        parse(address)


def test_an_error_shows_no_secrets():
    with pytest.raises(FormatError) as caught:
        parse("http://me:hunter2@example.org:99999/x?sig=hunter2")
    assert "hunter2" not in str(caught.value)


def test_the_checked_host_is_the_host_that_libcurl_connects_to():
    for address in (
        "http://example.org\\@127.0.0.1/",
        "http://example.org%2F@127.0.0.1/",
        "http://127.0.0.1#@example.org/",
        "http://127.0.0.1?@example.org/",
    ):
        assert parse(address).url.startswith("http://127.0.0.1/")


@given(st.text(max_size=60))
def test_any_text_is_parsed_or_raises_an_error(text):
    for address in (
        text,
        f"http://{text}",
        f"http://example.org/{text}",
        f"http://{text}@example.org:80/",
    ):
        try:
            found = parse(address)
        except FlareError:
            continue
        assert found.url.isascii() and found.url.isprintable() and " " not in found.url
        assert found.url.startswith(found.origin.rpartition(":")[0])
        assert parse(found.url)._replace(user=found.user) == found


@pytest.mark.parametrize(  # RFC 3986, section 5.4
    ("url", "joined"),
    [
        ("g", "http://a/b/c/g"),
        ("./g", "http://a/b/c/g"),
        ("g/", "http://a/b/c/g/"),
        ("/g", "http://a/g"),
        ("//g", "http://g"),
        ("?y", "http://a/b/c/d;p?y"),
        ("g?y", "http://a/b/c/g?y"),
        ("../g", "http://a/b/g"),
        ("../../g", "http://a/g"),
        ("../../../g", "http://a/g"),
        ("/./g", "http://a/g"),
        ("g;x=1/../y", "http://a/b/c/y"),
        ("http://x/y", "http://x/y"),
        ("a%2F..%2Fb", "http://a/b/c/a%2F..%2Fb"),
        ("a b", "http://a/b/c/a%20b"),
    ],
)
def test_references_are_resolved_by_rfc_3986(url, joined):
    assert parse(join("http://a/b/c/d;p?q", url)).url == parse(joined).url


@pytest.mark.parametrize(
    ("location", "url", "user"),
    [
        ("/b", "http://h/b", "me:secret"),
        ("b?c=d#e", "http://h/x/b?c=d", "me:secret"),
        ("http://h:80/b", "http://h/b", "me:secret"),
        ("http://you:other@h/b", "http://h/b", "you:other"),
        ("https://h/b", "https://h/b", ""),
        ("http://h:81/b", "http://h:81/b", ""),
        ("//g/b", "http://g/b", ""),
        ("http://you:other@g/b", "http://g/b", "you:other"),
        (
            "/\xc3\xbc \xff",
            "http://h/%C3%BC%20%FF",
            "me:secret",
        ),  # bytes of an unknown encoding are kept
    ],
)
def test_a_redirect_keeps_credentials_only_within_its_origin(location, url, user):
    found = redirected(parse("http://me:secret@h/x/a?q"), location)
    assert (found.url, found.user) == (url, user)


@pytest.mark.parametrize(
    "location",
    [
        "file:///etc/passwd",
        "ftp://h/x",
        "javascript:1",
        "http://",
        "http:///x",
        "/a\nb",
        "//\xc3\xbc/x",
    ],
)
def test_a_redirect_to_an_invalid_address_is_an_error(location):
    with pytest.raises((UnsafeError, FormatError)):
        redirected(parse("http://h/a"), location)
