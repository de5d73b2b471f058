"""Single transfers on the thread that asks: the same bytes and the same words as those of the engine."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from flarecli.errors import FlareError, ReachError
from flarecli.storage import Guard, Limits, locate


def on_a_thread(call):
    """What a call gives on a thread that is not the main one: there a single transfer is made at once."""
    with ThreadPoolExecutor(1) as threads:
        return threads.submit(call).result()


def test_a_thread_makes_its_transfer_itself_over_one_connection(web):
    web.file("/d/a", b"0123456789", '"one"')
    at = locate(web.url("/d")) / "a"
    assert [on_a_thread(partial(at.read, i, i + 2)) for i in (0, 4, 8)] == [b"01", b"45", b"89"]
    assert on_a_thread(at.read) == b"0123456789"
    assert [headers.get("range") for _, headers in web.requests] == [
        "bytes=0-1",
        "bytes=4-5",
        "bytes=8-9",
        None,
    ]


def test_what_a_thread_finds_wrong_is_what_the_engine_would(web):
    web.file("/d/a", b"0123456789", '"one"')
    at = locate(web.url("/d"))
    for name, start, stop in (("none", 0, None), ("a", 5, 20)):
        texts = set()
        for run in (lambda call: call(), on_a_thread):
            with pytest.raises(FlareError) as caught:
                run(lambda name=name, start=start, stop=stop: (at / name).read(start, stop))
            texts.add((type(caught.value), str(caught.value)))
        assert len(texts) == 1
    assert web.asked["/d/none"] == 2


def test_a_thread_leaves_redirects_and_second_tries_to_the_engine(web):
    web.file("/d/a", b"0123456789", '"one"')
    whole = web.pages["/d/a"]

    web.pages["/d/moved"] = lambda handler, times: handler.answer(302, Location="/d/a")
    web.pages["/d/busy"] = lambda handler, times: (
        whole(handler, times) if times > 1 else handler.answer(503, Retry_After=0)
    )
    at = locate(web.url("/d"))
    assert on_a_thread((at / "moved").read) == b"0123456789"
    assert on_a_thread((at / "busy").read) == b"0123456789"
    assert (web.asked["/d/moved"], web.asked["/d/busy"]) == (1, 2)


def test_a_thread_does_not_wait_for_ever(web):
    def silent(handler, times):
        handler.begin(100)
        handler.wfile.flush()
        web.over.wait(5)

    web.pages["/d/a"] = silent
    at = locate(web.url("/d"), Guard(limits=Limits(retries=0, timeout_s=1.0))) / "a"
    with pytest.raises(ReachError, match=r"/d/a: less than 1 kB/s for 1 s$"):
        on_a_thread(at.read)
    at = locate(web.url("/d"), Guard(limits=Limits(retries=0, deadline_s=0.3))) / "a"
    with pytest.raises(ReachError, match=r"/d/a: incomplete after 0.3 s$"):
        on_a_thread(at.read)
