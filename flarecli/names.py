"""Checks for names and addresses that come from data.

A file name from an index, a playlist, a tar archive or a row must be one plain relative path.
"""

from __future__ import annotations

import os
import re
import sys

from flarecli.errors import MissingError, UnsafeError

__all__ = [
    "DEVICE",
    "FRAGMENT",
    "bare",
    "check_name",
    "name_fault",
    "collision_key",
    "escape",
    "is_document",
    "is_extension",
    "is_fragment",
    "is_url",
    "local_path",
    "scheme_of",
    "shell_quoted",
    "slashed",
    "whole_path",
    "windows_fault",
]

NAME_BYTES, PATH_BYTES = 255, 4096  # limits on Linux
FRAGMENT = "fragment."  # prefix of the names of fragment folders
DEVICE = "\0"  # replaces device names in results of `collision_key`; invalid in file names

_DOCUMENTS = ("readme", "license", "licence")
_DOCUMENT_SUFFIXES = frozenset(
    {"readme", "license", "licence", "md", "markdown", "rst", "txt", "html", "pdf"}
)
# Patterns that most commands do not use are strings, and are compiled on first use.
# A scheme has at least two characters, because `C:` is a drive on Windows.
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]+)://")
# for the fast path: this pattern matches most names
_PLAIN = re.compile(r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*")
_LEADING_DOTS = r"(?:\./)+(?=[^/])"
_DRIVE = "[A-Za-z]:"
_PART_DRIVE = "/[A-Za-z]:"  # on Windows, a drive replaces the preceding path
# Windows drops dots and spaces at the end of a name, so `.. ` is the parent folder.
_DOTS_AND_SPACES = "(?:^|/)[. ]+(?:/|$)"
_WINDOWS_RESERVED = r'[<>:"|?*\\/]'
_URL_DRIVE = "/[A-Za-z]:/"  # start of the path in `file:///C:/data`
_FRAGMENT_NAME = r"fragment\.[0-9a-f]{32}"
_EXTENSION = r"[^{}/\\\x00-\x1f\x7f-\x9f\ud800-\udfff]{1,63}"
# C0, DEL, C1, and lone surrogates except the surrogates of `surrogateescape`
_CONTROL = "[\x00-\x1f\x7f-\x9f\ud800-\udc7f\udd00-\udfff]"
# C0, DEL, C1, bidirectional controls, line and paragraph separators, byte order mark, surrogates
_UNPRINTABLE = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
# Windows reserves these device names, even with text after a dot or a colon. They include
# superscript digits, because Windows code pages map these to digits.
_DEVICE_END = " *[.:]"
_DEVICES = {
    "con",
    "prn",
    "aux",
    "nul",
    "conin$",
    "conout$",
    *(port + n for port in ("com", "lpt") for n in "123456789\xb9\xb2\xb3"),
}


def check_name(name: str, where: object = "") -> str:
    """Return a name from data if it is one plain relative path, such as `a/shard.00000.mds`.

    raises  UnsafeError for `..`, an absolute path, a URL, a drive in any part, a backslash, a
            leading `~`, a part that is empty or has only dots and spaces, a control character, a
            lone surrogate, or a name that is longer than file systems allow
    """
    reason = name_fault(name)
    if reason:
        raise UnsafeError(
            f"the name {_short(name)} {reason}",
            where=where,
            hint="Repair the file that contains the name. No file with this name was read or written.",
        )
    return name


def name_fault(name: str) -> str:
    """Return the reason why a name is not one plain relative path; empty if the name is valid."""
    if not name:
        return "is empty"
    if len(name) < NAME_BYTES // 4 and _PLAIN.fullmatch(name):
        return ""
    if name.startswith("/") or re.match(_DRIVE, name):
        return "is not relative"
    if name.startswith("~"):
        return "starts with a home folder"
    if "\\" in name:
        return "contains a backslash"
    if _SCHEME.match(name):
        return "is a URL"
    if found := re.search(_CONTROL, name):
        return "contains a " + ("control character" if found[0] < "\ud800" else "lone surrogate")
    parts = name.split("/")
    if ".." in parts:
        return "points outside the folder"
    if "" in parts or "." in parts:
        return "has an empty part"
    if re.search(_DOTS_AND_SPACES, name):
        return "has a part that contains only dots and spaces"
    if re.search(_PART_DRIVE, name):
        return "contains a Windows drive"
    if len(name) < NAME_BYTES // 4:  # UTF-8 uses at most 4 bytes per character
        return ""
    raw = name.encode("utf-8", "surrogatepass")
    if any(len(part.encode("utf-8", "surrogatepass")) > NAME_BYTES for part in parts):
        return f"has a part longer than {NAME_BYTES} bytes"
    return f"is longer than {PATH_BYTES} bytes" if len(raw) > PATH_BYTES else ""


def _short(name: str) -> str:
    text = escape(name)
    return f"'{text}'" if len(text) <= 80 else f"'{text[:77]}…'"


def is_extension(text: str) -> bool:
    """Return whether a text is valid as the extension of a file name, such as `jpg`."""
    return re.fullmatch(_EXTENSION, text) is not None


def is_fragment(name: str) -> bool:
    """Return whether a name is that of a fragment folder, with the rows that a change added."""
    return re.fullmatch(_FRAGMENT_NAME, name) is not None


def collision_key(name: str) -> str:
    """Return a key that is equal for names that a file system may treat as the same name.

    The key is in NFC, case folded, without trailing dots or spaces. A name that Windows reserves
    (`con`, `aux.txt`, `COM¹`, `nul:x`) becomes DEVICE. Other colons are ordinary characters:
    `10:20` and `10:21` are two files on the systems that flare supports.
    """
    import unicodedata

    parts = []
    for part in unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold()).split(
        "/"
    ):
        part = part.rstrip(". ")
        parts.append(DEVICE if re.split(_DEVICE_END, part, maxsplit=1)[0] in _DEVICES else part)
    return "/".join(parts)


def windows_fault(name: str) -> str:
    """Return the reason why a name is not valid on Windows; empty if the name is valid.

    For such a name, Windows would open a different file or no file.

    name  one part of a path
    """
    if collision_key(name) == DEVICE:
        return "is a device name on Windows"
    if re.search(_WINDOWS_RESERVED, name):
        return "contains a character that Windows reserves"
    if name != name.rstrip(". "):
        return "ends with a dot or a space, which Windows removes"
    return ""


def escape(text: str) -> str:
    r"""Return a text with its control, C1 and bidi characters escaped, such as `\x1b`."""
    return text if text.isascii() and text.isprintable() else re.sub(_UNPRINTABLE, _escaped, text)


def shell_quoted(text: str) -> str:
    r"""Quote text as one word of a shell command on one line.

    The result is the return value of `shlex.quote`. If the text contains characters that `escape`
    replaces, the result has the form `$'a\nb'` instead.
    """
    import shlex

    if escape(text) == text:
        return shlex.quote(text)
    plain = text.replace("\\", "\\\\").replace("'", "\\'")
    return f"$'{re.sub(_UNPRINTABLE, _bytes_of, plain)}'"


def _bytes_of(match: re.Match[str]) -> str:
    char = match[0]
    if char in "\t\n\r":
        return _escaped(match)
    errors = "surrogateescape" if "\udc80" <= char <= "\udcff" else "surrogatepass"
    return "".join(f"\\x{byte:02x}" for byte in char.encode("utf-8", errors))


def _escaped(match: re.Match[str]) -> str:
    code = ord(match[0])
    if code < 0x100:
        return {9: "\\t", 10: "\\n", 13: "\\r"}.get(code, f"\\x{code:02x}")
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"


def scheme_of(address: str) -> str:
    """Return the scheme of an address in lower case, or an empty string for a path."""
    match = _SCHEME.match(address)
    return match[1].lower() if match else ""


def local_path(address: str) -> str:
    """Return the path of a `file://` address; return a plain path unchanged.

    The host of the address may be empty or `localhost`. On Windows, backslashes in the result are
    replaced by slashes.
    """
    if scheme_of(address) != "file":
        return slashed(address)
    from urllib.parse import unquote  # slow to import

    path = slashed(unquote(address[7:]))
    path = path[9:] if path.startswith("localhost/") else path
    return path[1:] if sys.platform == "win32" and re.match(_URL_DRIVE, path) else path


def slashed(path: str) -> str:
    """On Windows, replace the backslashes of a path by slashes; otherwise, return it unchanged."""
    return path.replace("\\", "/") if sys.platform == "win32" else path


def whole_path(path: str) -> str:
    """Return a path from the user as an absolute path.

    Raises MissingError if the current folder no longer exists.
    """
    try:
        return os.path.join(os.getcwd(), path)
    except OSError:
        if os.path.isabs(path):
            return path
        hint = "Change to an existing folder, or use an absolute path."
        raise MissingError(
            "the current folder was deleted or cannot be read", where=path or ".", hint=hint
        ) from None


def is_url(address: str) -> bool:
    """Return whether an address has a scheme."""
    return bool(_SCHEME.match(address))


def bare(address: str) -> str:
    """Return a relative address without leading `./`."""
    return re.sub(_LEADING_DOTS, "", address, count=1) if address.startswith("./") else address


def is_document(name: str) -> bool:
    """Return whether a file name is the name of a README or LICENSE file, ignoring letter case."""
    name = name.lower()
    return (
        name.startswith(_DOCUMENTS)  # quickly rejects most names
        and name.partition(".")[0] in _DOCUMENTS
        and name.rpartition(".")[2] in _DOCUMENT_SUFFIXES
    )
