"""X-Robots-Tag: directives that disallow a download, and the clients to which they apply."""

import pytest

from flarecli.storage.http.response import header_values, robots_directive, robots_names


@pytest.mark.parametrize(
    ("values", "directive"),
    [
        (["noai"], "noai"),
        ([" NoImageAI "], "noimageai"),
        (["noindex"], "noindex"),
        (["noimageindex"], "noimageindex"),
        (["none"], "none"),
        (["nofollow, noarchive"], ""),
        (["nofollow , noai"], "noai"),
        (["nofollow", "noai"], "noai"),
        (["img2dataset: noai"], "img2dataset: noai"),
        (["Flare:NOAI"], "flare: noai"),
        (["*: noai"], "*: noai"),
        (["otherbot: noai"], ""),
        (["otherbot: nofollow, noai"], ""),
        (["otherbot: noai, img2dataset: nofollow, noindex"], "img2dataset: noindex"),
        (["otherbot: noai", "noindex"], "noindex"),
        (["unavailable_after: 25 Jun 2010 15:00:00 PST, noai"], "noai"),
        (["unavailable_after: Fri, 25 Jun 2010 15:00:00 GMT, noai"], "noai"),
        (["max-snippet: 20, max-image-preview: large"], ""),
        (["img2dataset: max-snippet: 20, noai"], "img2dataset: noai"),
        (["noaibot, notnoai"], ""),
        (["a b: noai"], ""),
        ([": noai", ",,", ":", ""], ""),
        ([], ""),
    ],
)
def test_directives_that_disallow_the_use_are_found(values, directive):
    assert robots_directive(values, robots_names("flare/1.2")) == directive


def test_the_words_of_a_user_agent_are_client_names():
    names = robots_names("Mozilla/5.0 (compatible; MyBot/1.0; +https://example.com/bot)")
    assert robots_directive(["mybot: noai"], names) == "mybot: noai"
    assert robots_directive(["yourbot: noai"], names) == ""
    assert robots_directive(["mybot: noai"], robots_names("flare/1.2")) == ""
    assert robots_names("") == {"*", "flare", "img2dataset"}


def test_repeated_headers_are_all_read_and_an_interim_response_is_not():
    lines = [
        b"HTTP/1.1 103 Early Hints\r\n",
        b"X-Robots-Tag: noai\r\n",
        b"\r\n",
        b"HTTP/1.1 200 OK\r\n",
        b"X-ROBOTS-TAG: otherbot: noai\r\n",
        b"Content-Length: 5\r\n",
        b"x-robots-tag:  noindex \r\n",
        b"\r\n",
    ]
    assert header_values(lines, "x-robots-tag") == ["otherbot: noai", "noindex"]
