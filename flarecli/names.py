"""Names and addresses that come from data: checked here, once, before anything uses them; text made fit to print.

A name out of an index, a playlist, a tar or a row is one plain relative path. An address out of them never
carries its credentials into a message, a report or an output.
"""

from __future__ import annotations

import os
import re

from flarecli.errors import MissingError, UnsafeError

__all__ = [
    "DEVICE",
    "bare",
    "check_name",
    "name_fault",
    "collision_key",
    "escape",
    "is_url",
    "local_path",
    "scheme_of",
    "shell_quoted",
    "whole_path",
]

NAME_BYTES, PATH_BYTES = 255, 4096  # what Linux file systems take
DEVICE = "\0"  # stands for each name of a device in what `collision_key` gives; no name holds it

# all others are compiled when they are first used, which most commands never do: they take longer than a command may
_SCHEME = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://")
_PLAIN = re.compile(
    r"(?:[A-Za-z0-9_][A-Za-z0-9_.-]*/)*[A-Za-z0-9_][A-Za-z0-9_.-]*"
)  # a name as nearly all are
_HERE = r"(?:\./)+(?=[^/])"
_DRIVE = "[A-Za-z]:"
_PART_DRIVE = "/[A-Za-z]:"  # a program that joins part by part begins anew there
_NO_NAME = "(?:^|/)[. ]+(?:/|$)"  # Windows drops what a name ends in: `.. ` is the folder above
_CONTROL = "[\x00-\x1f\x7f-\x9f\ud800-\udc7f\udd00-\udfff]"  # and halves of characters, but for those that stand for a byte
# C0, DEL, C1, bidirectional controls, line and paragraph separators, byte order mark, lone surrogates
_UNPRINTABLE = "[\x00-\x1f\x7f-\x9f\u061c\u200e\u200f\u2028-\u202e\u2066-\u2069\ufeff\ud800-\udfff]"
# what Windows keeps for devices, whatever follows behind a dot or a colon; its code pages make digits of the three raised ones
_DEVICE_END = " *[.:]"
_RESERVED = {
    "con",
    "prn",
    "aux",
    "nul",
    "conin$",
    "conout$",
    *(port + n for port in ("com", "lpt") for n in "123456789\xb9\xb2\xb3"),
}


def check_name(name: str, where: object = "") -> str:
    """Give back a name that came from data if it is one plain relative path, such as `a/shard.00000.mds`.

    raises  UnsafeError for `..`, a root, a drive in any part, a backslash, `~`, an empty part or one of dots and spaces, a control
            character, or a length that no file system takes
    """
    reason = name_fault(name)
    if reason:
        raise UnsafeError(
            f"the name {_short(name)} {reason}",
            where=where,
            hint="Repair the file that lists it; nothing was read or written there.",
        )
    return name


def name_fault(name: str) -> str:
    """Return why a name is not one plain relative path; empty if it is."""
    if not name:
        return "is empty"
    if len(name) < NAME_BYTES // 4 and _PLAIN.fullmatch(name):
        return ""
    if name.startswith("/") or re.match(_DRIVE, name):
        return "is not relative"
    if name.startswith("~"):
        return "starts at a home folder"
    if "\\" in name:
        return "holds a backslash"
    if _SCHEME.match(name):
        return "is an address"
    if found := re.search(_CONTROL, name):
        return "holds a control character" if found[0] < "\ud800" else "holds half a character"
    parts = name.split("/")
    if ".." in parts:
        return "leaves the folder"
    if "" in parts or "." in parts:
        return "has an empty part"
    if re.search(_NO_NAME, name):
        return "has a part of dots and spaces alone"
    if re.search(_PART_DRIVE, name):
        return "names a drive on Windows"
    if len(name) < NAME_BYTES // 4:  # no character takes more than 4 bytes
        return ""
    raw = name.encode("utf-8", "surrogatepass")
    if any(len(part.encode("utf-8", "surrogatepass")) > NAME_BYTES for part in parts):
        return f"is longer than {NAME_BYTES} bytes a part"
    return f"is longer than {PATH_BYTES} bytes" if len(raw) > PATH_BYTES else ""


def _short(name: str) -> str:
    text = escape(name)
    return f"'{text}'" if len(text) <= 80 else f"'{text[:77]}…'"


def collision_key(name: str) -> str:
    """Give what two names share when some file system takes them for one: NFC, case folded, no trailing dots or spaces.

    A name that Windows reserves (`con`, `aux.txt`, `COM¹`, `nul:x`) becomes DEVICE: no file can have it there.
    A colon elsewhere is a sign like any other: `10:20` and `10:21` are two files wherever flare runs.
    """
    import unicodedata

    parts = []
    for part in unicodedata.normalize("NFC", unicodedata.normalize("NFD", name).casefold()).split(
        "/"
    ):
        part = part.rstrip(". ")
        parts.append(DEVICE if re.split(_DEVICE_END, part, maxsplit=1)[0] in _RESERVED else part)
    return "/".join(parts)


def escape(text: str) -> str:
    r"""Make text from data fit to print: control, C1 and bidi characters become `\x1b` and the like."""
    return text if text.isascii() and text.isprintable() else re.sub(_UNPRINTABLE, _escaped, text)


def shell_quoted(text: str) -> str:
    r"""Return text as one word of a shell, on one line: as `shlex.quote` does, but `$'a\nb'` where a terminal would act on a character."""
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
    """Give the scheme of an address in lower case; empty for a path."""
    match = _SCHEME.match(address)
    return match[1].lower() if match else ""


def local_path(address: str) -> str:
    """Give the path that a path or a `file://` address names; `file://localhost/` is this machine."""
    if scheme_of(address) != "file":
        return address
    from urllib.parse import unquote  # loading it takes as long as all the rest here

    path = unquote(address[7:])
    return path[9:] if path.startswith("localhost/") else path


def whole_path(path: str) -> str:
    """Give a path that the user typed from the root. Raises MissingError where it starts at a working folder that is gone."""
    try:
        return os.path.join(os.getcwd(), path)
    except OSError:
        if os.path.isabs(path):
            return path
        hint = "Change to a folder that is there, or give the path from the root."
        raise MissingError(
            "the folder that you are in was deleted or cannot be read", where=path or ".", hint=hint
        ) from None


def is_url(address: str) -> bool:
    """Say whether an address names a scheme."""
    return bool(_SCHEME.match(address))


def bare(address: str) -> str:
    """Give a relative address without the `./` before it, which says nothing."""
    return re.sub(_HERE, "", address, count=1) if address.startswith("./") else address
