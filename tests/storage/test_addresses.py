"""Addresses: one form for what data writes in many, and no numeric address that is not public passes for one."""

import ipaddress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.errors import FlareError, FormatError, UnsafeError
from flarecli.storage.http import url as addresses
from flarecli.storage.http.ip_guard import reserved
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
def test_an_address_has_one_form(given, url, origin):
    found = parse(given)
    assert (found.url, found.origin, found.user) == (url, origin, "")
    assert parse(found.url) == found


def test_user_info_leaves_the_address():
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
def test_what_is_no_address_is_refused(address):
    with pytest.raises((FormatError, UnsafeError)):
        parse(address)


def test_a_refusal_shows_no_secret():
    with pytest.raises(FormatError) as caught:
        parse("http://me:hunter2@example.org:99999/x?sig=hunter2")
    assert "hunter2" not in str(caught.value)


def test_the_host_that_is_checked_is_the_host_that_is_asked():
    for address in (
        "http://example.org\\@127.0.0.1/",
        "http://example.org%2F@127.0.0.1/",
        "http://127.0.0.1#@example.org/",
        "http://127.0.0.1?@example.org/",
    ):
        assert parse(address).url.startswith("http://127.0.0.1/")


class _Never:
    def fullmatch(self, text):
        return None


@given(
    st.text(alphabet='htps:/@?#[]%.-a1Z !;\\"<^`{|}~\t\x7fé', max_size=30),
    st.sampled_from(("", "http://", "https://a.b", "http://a:80/")),
)
def test_the_short_way_of_usual_addresses_says_what_the_long_one_says(text, start):
    def outcome():
        try:
            return parse(start + text)
        except FlareError as error:
            return str(error)

    short = outcome()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(addresses, "_USUAL", _Never())
        assert outcome() == short


@given(st.text(max_size=60))
def test_any_text_is_an_address_or_an_error(text):
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
def test_references_are_resolved_as_rfc_3986_says(url, joined):
    assert parse(join("http://a/b/c/d;p?q", url)).url == parse(joined).url


_PRIVATE = """
0.0.0.0 10.0.0.1 100.64.0.1 127.0.0.1 127.255.255.254 169.254.169.254 172.16.0.1 172.31.255.255 192.0.0.1 192.0.2.1 192.88.99.1
192.168.1.1 198.18.0.1 198.51.100.1 203.0.113.1 224.0.0.1 239.255.255.255 240.0.0.1 255.255.255.255
:: ::1 ::7f00:1 ::127.0.0.1 ::ffff:127.0.0.1 ::ffff:7f00:1 ::ffff:10.0.0.1 ::ffff:169.254.169.254 64:ff9b::7f00:1 64:ff9b::10.0.0.1
64:ff9b:1::1 100::1 2001::1 2001:db8::1 2002:7f00:1:: 2002:a00:1:: 2002:c0a8:101::1 fc00::1 fd00:ec2::254 fe80::1 fe80::1%eth0 febf::1
fec0::1 ff02::1 ff0e::1 4000::1 3fff::1
"""
_PUBLIC = "1.1.1.1 8.8.8.8 172.15.255.255 172.32.0.1 192.0.1.1 100.128.0.1 2606:4700::1111 2a00:1450:4001::1 ::ffff:8.8.8.8"


@pytest.mark.parametrize("ip", _PRIVATE.split())
def test_addresses_that_are_not_public_are_known(ip):
    assert reserved(ip)


@pytest.mark.parametrize("ip", _PUBLIC.split())
def test_public_addresses_are_known(ip):
    assert reserved(ip) == ""


@pytest.mark.parametrize(
    "ip", ["", "localhost", "127.1", "0x7f.0.0.1", "2130706433", "/tmp/socket"]
)
def test_what_is_no_numeric_address_is_not_public(ip):
    assert reserved(ip)


@given(st.ip_addresses())
def test_nothing_that_python_calls_private_passes(ip):
    if not ip.is_global and not (
        ip.version == 6 and (ip.ipv4_mapped or ip in ipaddress.IPv6Network("2002::/16"))
    ):
        assert reserved(str(ip))


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
        ),  # bytes of no known encoding go on as they came
    ],
)
def test_a_redirect_takes_credentials_along_within_its_origin_only(location, url, user):
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
def test_a_redirect_leads_to_an_address_or_nowhere(location):
    with pytest.raises((UnsafeError, FormatError)):
        redirected(parse("http://h/a"), location)
