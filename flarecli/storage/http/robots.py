"""The X-Robots-Tag header: directives with which a server disallows the use of a response.

A header is a list of directives, separated by commas. A name with a colon before a directive limits this directive and
all following directives of the header to the client with this name: `X-Robots-Tag: img2dataset: noai, noimageai`.
`noindex`, `noimageindex` and `none` are directives of search engines (source: Google Search Central, "Robots meta tag,
data-nosnippet, and X-Robots-Tag specifications"); `noai` and `noimageai` are conventions for the training of models.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

__all__ = ["HEADER", "client_names", "disallowed"]

HEADER = "x-robots-tag"
_DISALLOWING = frozenset({"noai", "noimageai", "noindex", "noimageindex", "none"})
# Directives that have a value after a colon; the text before the colon is not the name of a client.
_WITH_VALUE = frozenset(
    {"unavailable_after", "max-snippet", "max-image-preview", "max-video-preview"}
)
_NAMES = frozenset({"*", "flare", "img2dataset"})  # names that apply to every request of flare
_NAME = re.compile(r"[!#$%&'*+.^_`|~0-9a-z-]{1,100}")


def client_names(user_agent: str) -> frozenset[str]:
    """Return the lower-case client names whose directives apply: those of flare, and the words of a User-Agent."""
    words = re.split(r"[\s();,]+", user_agent.lower())
    return _NAMES | {word.partition("/")[0] for word in words} - {""}


def disallowed(values: Iterable[str], names: frozenset[str]) -> str:
    """Return the first directive that disallows the use, with its client name, if any; empty without such a directive.

    values  values of the X-Robots-Tag headers of a response
    names   return value of `client_names`
    """
    for value in values:
        name = ""
        for part in value.lower().split(","):
            before, colon, directive = part.partition(":")
            before = before.strip()
            if not colon:
                directive = before
            elif before in _WITH_VALUE:
                continue
            elif _NAME.fullmatch(before):
                name, directive = before, directive.strip()
            if directive in _DISALLOWING and (not name or name in names):
                return f"{name}: {directive}" if name else directive
    return ""
