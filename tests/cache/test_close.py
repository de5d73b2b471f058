"""A closed cache releases handles and maps, keeps its copies, and opens again."""

import os

import flarecli as flare
from flarecli.cache import Cache, kept
from flarecli.storage import Guard, locate


def handles():
    return {
        os.path.realpath(f"/proc/self/fd/{fd}")
        for fd in os.listdir("/proc/self/fd")
        if os.path.lexists(f"/proc/self/fd/{fd}")
    }


def test_a_cache_is_closed_at_the_end_of_a_with_block_and_opens_again(web, tmp_path):
    home = tmp_path / "cache"
    with Cache(str(home)) as cache:
        at = locate(web.file("/a", bytes(300_000), '"one"'), Guard(keeper=cache))
        assert at.read() == bytes(300_000)
        assert any(name.startswith(str(home)) for name in handles())
    assert not any(name.startswith(str(home)) for name in handles())
    assert [one.size for one in kept(str(home))] != []
    assert at.read(5, 10) == bytes(5)
    flare.close()
    assert not any(name.startswith(str(home)) for name in handles())
    assert at.read(7, 9) == bytes(2)
