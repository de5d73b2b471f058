"""What a process that is alone at a cache's folder believes of a listing, and for how long."""

import os

import pytest

from flarecli.cache import directory as places
from flarecli.cache.directory import Folder, Places
from flarecli.cache.entry import entry, place_of
from flarecli.cache.locks import Turns

ADDRESS = "s3://bucket/shard.00000.mds"


@pytest.fixture
def alone(tmp_path):
    one = Folder(str(tmp_path), 10**6)
    assert one.fd >= 0
    assert one.is_alone()
    return one


def kept(folder, address):
    one = entry(address, "v", "whole", 3)
    part = folder.part(one)
    assert part.write(b"a" * one.file_bytes)
    assert part.publish(one)


def test_a_copy_that_this_process_adds_is_seen_at_once(alone):
    assert not alone.may_hold(place_of(ADDRESS))
    kept(alone, ADDRESS)
    assert alone.may_hold(place_of(ADDRESS))
    assert not alone.may_hold(place_of(ADDRESS + "x"))


def test_copies_that_this_process_adds_take_no_listing_each(alone, monkeypatch):
    monkeypatch.setattr(places, "_BELIEVED_S", 1000.0)
    listed, listdir = [], os.listdir
    monkeypatch.setattr(os, "listdir", lambda fd: listed.append(fd) or listdir(fd))
    for i in range(20):
        assert not alone.may_hold(place_of(f"{ADDRESS}{i}"))
        kept(alone, f"{ADDRESS}{i}")
    assert all(alone.may_hold(place_of(f"{ADDRESS}{i}")) for i in range(20))
    assert len(listed) == 1


def test_a_copy_that_another_adds_is_seen_after_a_moment(alone, monkeypatch):
    monkeypatch.setattr(places, "_BELIEVED_S", 1000.0)
    assert not alone.may_hold(place_of(ADDRESS))
    kept(Folder(alone._given, 10**6), ADDRESS)
    assert not alone.may_hold(place_of(ADDRESS))
    monkeypatch.setattr(places, "_BELIEVED_S", 0.0)
    assert alone.may_hold(place_of(ADDRESS))


def test_who_is_not_alone_believes_no_listing(alone, monkeypatch):
    monkeypatch.setattr(places, "_BELIEVED_S", 1000.0)
    monkeypatch.setattr(alone, "is_alone", lambda: False)
    assert not alone.may_hold(place_of(ADDRESS))
    kept(Folder(alone._given, 10**6), ADDRESS)
    assert alone.may_hold(place_of(ADDRESS))


def test_a_listing_under_way_while_a_copy_is_added_is_not_believed(alone, monkeypatch):
    known, listdir = Places(), os.listdir

    def slow(fd):
        found = listdir(fd)
        known.added(place_of(ADDRESS))
        return found

    monkeypatch.setattr(places, "_BELIEVED_S", 1000.0)
    monkeypatch.setattr(os, "listdir", slow)
    assert not known.may_hold(alone.fd, place_of(ADDRESS), True)
    monkeypatch.undo()
    kept(alone, ADDRESS)
    assert known.may_hold(alone.fd, place_of(ADDRESS), True)


def test_a_folder_that_cannot_be_listed_may_hold_anything():
    assert Places().may_hold(-1, place_of(ADDRESS), True)


def test_a_turn_without_a_folder_is_among_threads_alone(tmp_path):
    done = []
    turns = Turns()
    with (
        turns.turn(-1, "ab", "w", 5, lambda: done.append("asked")),
        turns.turn(-1, "ab", "w", 0.01, lambda: done.append("asked")),
    ):
        done.append("inside")
    assert done == ["inside"]
    assert os.listdir(tmp_path) == []
