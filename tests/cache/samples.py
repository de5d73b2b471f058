"""Copies in a cache folder."""

import os

from flarecli.cache import directory
from flarecli.cache.entry import entry
from flarecli.cache.store import write_copy


def put(one, name, size=1000):
    """Write a copy of `size` bytes into a folder; return the name of its file."""
    return put_data(one, name, bytes(size)).name


def copies(one):
    """Return the names of the files of all copies in a folder."""
    return {name for name in os.listdir(one.path) if directory.NAME.fullmatch(name)}


def put_data(folder, name, data=b"x" * 100):
    """Write a copy of `data` into a folder; return its entry."""
    made = entry(name, "v", "whole", len(data))
    part = folder.part(made)
    assert part is not None and write_copy(part, made, [data])
    return made


def lie(folder, name, data=b""):
    """Write a file into a folder directly, not through the cache; return its path."""
    path = os.path.join(folder.path, name)
    with open(path, "wb") as file:
        file.write(data)
    return path
