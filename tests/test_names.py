"""Names and addresses from data, and escaped text."""

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flarecli.errors import UnsafeError
from flarecli.names import bare, check_name, collision_key, escape
from flarecli.redact import redact, redact_text


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("", "'' is empty"),
        ("/etc/passwd", "'/etc/passwd' is not relative"),
        ("C:/x", "'C:/x' is not relative"),
        ("~/x", "'~/x' starts with a home folder"),
        ("a\\b", "'a\\b' contains a backslash"),
        ("file://x", "'file://x' is a URL"),
        ("a\x00b", "'a\\x00b' contains a control character"),
        ("a\x1b[2J", "'a\\x1b[2J' contains a control character"),
        ("../x", "'../x' points outside the folder"),
        ("a/../../x", "'a/../../x' points outside the folder"),
        ("a//b", "'a//b' has an empty part"),
        ("./a", "'./a' has an empty part"),
        ("a/", "'a/' has an empty part"),
        ("...", "'...' has a part that contains only dots and spaces"),
        (".. /x", "'.. /x' has a part that contains only dots and spaces"),
        ("a/ ", "'a/ ' has a part that contains only dots and spaces"),
        ("a/C:x", "'a/C:x' contains a Windows drive"),
        ("x" * 256, f"'{'x' * 77}…' has a part longer than 255 bytes"),
        ("é" * 128, f"'{'é' * 77}…' has a part longer than 255 bytes"),
        (f"{'a/' * 2048}b", f"'{'a/' * 38}a…' is longer than 4096 bytes"),
    ],
)
def test_a_name_that_is_not_a_plain_relative_path_is_refused(name, reason):
    with pytest.raises(UnsafeError) as caught:
        check_name(name, where="index.json")
    assert str(caught.value) == f"index.json: the name {reason}"
    assert caught.value.exit_code == 5


@given(
    st.lists(
        st.text(string.ascii_letters + string.digits + "._- é漢", min_size=1, max_size=20),
        min_size=1,
        max_size=4,
    )
)
def test_a_plain_name_is_returned_unchanged(parts):
    name = "/".join(parts)
    plain = all(part.strip(". ") for part in parts)
    if plain:
        assert check_name(name) == name
    else:
        with pytest.raises(UnsafeError):
            check_name(name)


@pytest.mark.parametrize(
    ("one", "two"),
    [
        ("A.jpg", "a.JPG"),
        ("e\u0301", "\u00e9"),
        ("a.", "a"),
        ("a ", "a"),
        ("con", "NUL.txt"),
        ("x/aux.txt", "x/PRN"),
        ("Straße", "STRASSE"),
        ("COM\u00b9", "lpt\u00b3.txt"),
        ("con .txt", "nul:x"),
        ("CONIN$", "conout$"),
        ("\u1e9b\u0323", "\u1e69"),
    ],
)
def test_names_that_some_file_system_treats_as_equal_collide(one, two):
    assert collision_key(one) == collision_key(two)


def test_different_names_do_not_collide():
    names = ["a", "b", "a/b", "ab", "con2", "console.txt", "com\u2074", "10:20", "10:21"]
    assert len({collision_key(name) for name in names}) == len(names)


@given(st.text())
def test_escaped_text_has_no_control_or_bidi_characters(text):
    shown = escape(text)
    assert not any(
        ord(c) < 32
        or 127 <= ord(c) < 160
        or c in "\u061c\u200e\u200f\u2028\u2029\ufeff"
        or 0x202A <= ord(c) <= 0x202E
        for c in shown
    )
    shown.encode()  # no lone surrogates


def test_escaped_characters_show_their_code():
    assert (
        escape("a\x1b]0;t\x07\r\n\x9b\u202e\ud800🙂")
        == "a\\x1b]0;t\\x07\\r\\n\\x9b\\u202e\\ud800🙂"
    )


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("http://user:pass@host/a?b=1", "http://host/a"),
        ("https://h/a?X-Amz-Signature=abc&x=1", "https://h/a"),
        ("https://h/a?sig=abc", "https://h/a"),
        ("https://h/a?x=1&access_token=abc#frag", "https://h/a"),
        ("https://h/a?sv=2020&se=2021&sp=r", "https://h/a"),
        ("https://h/a?x=1;Api-Key=abc", "https://h/a"),
        ("https://h/a?%73ig=abc", "https://h/a"),
        ("https://h/a?page=3&size=10", "https://h/a"),
        ("https://h/a?q=sig&sig&stop=1", "https://h/a"),
        ("https://h/a;v=1/b;jwt=abc/c", "https://h/a/b/c"),
        ("https://h/hdnea=exp~hmac=abc/c.jpg", "https://h/…/c.jpg"),
        ("https://h/date=2024-01-01/c.jpg", "https://h/date=2024-01-01/c.jpg"),
        ("s3://b/a?b;c#d", "s3://b/a?b;c"),
        ("s3://b/a?sig=abc", "s3://b/a?redacted"),
        ("plain/path?sig=1", "plain/path?sig=1"),
        ("http://[bad/x?sig=1", "http://…"),
        ("https://bob:s3/cret@host/", "https://…"),
        ("http:/bob:s3cret@h/x?token=abc", "http://…"),
    ],
)
def test_addresses_are_shown_without_secrets(address, shown):
    assert redact(address) == shown


def test_secrets_inside_a_message_are_removed():
    assert redact_text("cannot get 'http://u:p@h/x?token=1': no") == "cannot get 'http://h/x': no"


# would take hours if each letter started a search to the end
def test_long_addresses_and_texts_are_scanned_once():
    address = "http://h/x?" + "sig" * 300_000
    assert redact(address) == "http://h/x"
    assert redact_text("a" * 1_000_000) == "a" * 1_000_000


@pytest.mark.parametrize("name", ["\ud800", "a/\udfff.mds", "\udd00x"])
def test_a_lone_surrogate_is_refused_in_names(name):
    with pytest.raises(UnsafeError, match="contains a lone surrogate(?m:$)"):
        check_name(name)


def test_names_may_contain_bytes_that_are_not_utf8():
    assert check_name("a\udcff.mds") == "a\udcff.mds"


@pytest.mark.parametrize(
    ("address", "plain"),
    [
        ("./a", "a"),
        ("././a/./b", "a/./b"),
        ("a", "a"),
        (".a", ".a"),
        ("./", "./"),
        (".//a", ".//a"),
        ("././/a", ".//a"),
        ("./../a", "../a"),
        ("", ""),
    ],
)
def test_a_leading_dot_of_a_relative_address_is_removed_and_never_makes_it_absolute(address, plain):
    assert bare(address) == plain
