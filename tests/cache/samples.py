"""Copies in a cache folder."""

import os

from flarecli.cache import directory
from flarecli.cache.entry import entry
from flarecli.cache.store import write_copy


def put(one, name, size=1000):
    """Write a copy of `size` bytes into a folder; return the name of its file."""
    made = entry(name, "v", "whole", size)
    part = one.part(made)
    assert part is not None and write_copy(part, made, [bytes(size)])
    return made.name


def copies(one):
    """Return the names of the files of all copies in a folder."""
    return {name for name in os.listdir(one.path) if directory.NAME.fullmatch(name)}
