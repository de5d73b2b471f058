"""Commits, a prune and a pin in every order of their requests, against a store in memory.

Each process is a thread, of which one runs at a time. Before each request of the real code, a
scheduler chooses the process that continues. A state that was reached before is not explored again.
With FLARE_TEST_CHANGES, up to MAX_SCHEDULES schedules are explored.
"""

import contextlib
import functools
import hashlib
import heapq
import os
import random
import re
import threading
from dataclasses import dataclass, field, replace

import numpy as np
import pytest

import flarecli as flare
from flarecli import playlists
from flarecli.commands import history_command
from flarecli.commands.packing.append import Append
from flarecli.errors import BusyError, FlareError, UsageError
from flarecli.hashes import digest
from flarecli.model import Playlist, Stream
from flarecli.playlists import PLAYLIST, pin_of, version_name, version_number
from flarecli.read.version_lists import file_names
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from flarecli.write import removal, versions
from flarecli.write.erased import ErasedKeys

MAX_SCHEDULES = 40_000 if "FLARE_TEST_CHANGES" in os.environ else None
FRAGMENTS = [f"fragment.{i:032x}" for i in range(1, 5)]
THREADS = threading.local()


class CancelledError(BaseException):
    """Ends a process whose schedule is not explored further."""


class Process:
    """A thread that waits before each request until the scheduler continues it."""

    def __init__(self, name, run, world):
        self.name, self.run, self.world = name, run, world
        self.turn, self.is_cancelled, self.is_done = threading.Semaphore(0), False, False
        self.result, self.ready = None, lambda: True
        self.history = hashlib.blake2b(digest_size=12)  # the answers, which determine the process
        self.at = Location(Objects(world, self), "")
        self.thread = threading.Thread(target=self._main, daemon=True)

    def _main(self):
        THREADS.at = self.at
        try:
            self.wait()
            self.answered("started")
            self.run(self.at)
            self.result = "done"
        except CancelledError:
            self.result = "cancelled"
        except FlareError as error:
            self.result = f"refused: {error}"
        except BaseException as error:
            self.result = error
        finally:
            self.is_done = True
            self.world.control.release()

    def wait(self, ready=lambda: True):
        """Wait for the scheduler, which continues this process only while `ready` returns true."""
        if self.world.atomic is self:
            self.world.atomic = None
            return
        self.ready = ready
        self.world.control.release()
        self.turn.acquire()
        if self.is_cancelled:
            raise CancelledError

    def answered(self, answer):
        self.history.update(repr(answer).encode())
        return answer


class Objects(MemoryStore):
    """Objects in memory; each request of a process is one step of the schedule."""

    is_local = False

    def __init__(self, world, process):
        super().__init__(world.files)
        self.world, self.process = world, process

    def _step(self, call, *args):
        if self.world.in_step:  # a request that is part of another one
            return call(*args)
        self.process.wait()
        self.world.in_step = True
        try:
            return self.process.answered(call(*args))
        except FlareError as error:
            self.process.answered(str(error))
            raise
        finally:
            self.world.in_step = False

    def names(self, path):
        return self._step(super().names, path)

    def list(self, path):
        return iter(self._step(lambda: [*MemoryStore.list(self, path)]))

    def size(self, path):
        return self._step(super().size, path)

    def read_files(self, paths, max_bytes, room):
        return self._step(super().read_files, paths, max_bytes, room)

    def read(self, path, start=0, stop=None):
        return self._step(super().read, path, start, stop)

    def create(self, path, data):
        self._step(super().create, path, data)

    def delete(self, path):
        self._step(super().delete, path)

    def write(self, path, parts, hashes=(), replace=True):
        return self._step(super().write, path, list(parts), hashes, replace)


@dataclass
class World:
    """The objects, the lock of the commit, and the processes of one schedule.

    files         the objects
    first         number, bytes and parsed list of the version from which all changes start
    can_expire    any process may take over the lock at any time
    splits_check  other processes may run between a check of the lock and the next request
    takes_over    the prune may take over the lock of a fragment from its writer. Its own checks are
                  then not split, because a delete cannot be conditional
    fragments     name of a fragment -> the prune that has taken over its lock, or None after the
                  prune has deleted the lock
    """

    files: dict
    first: tuple
    can_expire: bool
    splits_check: bool
    takes_over: bool = False
    fragments: dict = field(default_factory=dict)
    control: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    processes: list = field(default_factory=list)
    owner: object = None
    atomic: object = None
    in_step: bool = False

    def state(self):
        """Return a key of the objects, of what each process has seen, and of the lock."""
        key = hashlib.blake2b(digest_size=16)
        for name, data in sorted(self.files.items()):
            key.update(name.encode() + b"\0" + hashlib.blake2b(data, digest_size=12).digest())
        for process in self.processes:
            key.update(process.history.digest() + bytes([process.is_done]))
        key.update(repr(sorted(self.fragments.items())).encode())
        owner = self.owner.process.name if self.owner else ""
        return key.digest() + owner.encode()


class Lock:
    """The lock of the commit."""

    def __init__(self, at):
        self.process, self.world = at.store.process, at.store.world

    def __enter__(self):
        self.process.wait(lambda: self.world.owner is None or self.world.can_expire)
        self.world.owner = self
        self.process.answered("locked")
        return self

    def check(self, now=True):
        self.process.wait()
        if self.process.answered(self.world.owner is not self):
            raise BusyError("another process has the lock")
        is_split = self.world.splits_check and not (
            self.world.takes_over and self.process.name == "prune"
        )
        self.world.atomic = None if is_split else self.process

    def check_store(self):
        """Do nothing, because this store has conditional writes."""

    def __exit__(self, *raised):
        self.world.atomic = None
        if self.world.owner is self:
            self.world.owner = None


class FragmentLock:
    """The lock of a fragment, as its writer or the prune sees it."""

    def __init__(self, at, owner):
        self.process, self.world = at.store.process, at.store.world
        self.name, self.owner = at.path, owner

    def check(self, now=True):
        if self.owner == "writer":
            self.process.wait()
        owner = self.world.fragments.get(self.name, "writer")
        if self.process.answered(owner != self.owner):
            raise BusyError("another process has taken over the fragment")


@contextlib.contextmanager
def fragment_lock(at):
    if at.store.world.takes_over:
        at.store.process.wait()
        at.store.world.fragments[at.path] = "prune"
        yield FragmentLock(at, "prune")
        at.store.world.fragments[at.path] = None
        return
    if any(at.path == one.name and not one.is_done for one in at.store.world.processes):
        raise BusyError("another process is writing this fragment", where=at)
    yield None


def conditional_put(where, old, new):
    store = where.store
    store.process.wait()
    if store.process.answered(store.files.get(where.path)) != old:
        raise BusyError("another process has changed this file", where=where)
    store.files[where.path] = new


@pytest.fixture(autouse=True)
def model(monkeypatch):
    for module in (versions, history_command):
        monkeypatch.setattr(module, "CommitLock", Lock)
    monkeypatch.setattr(removal, "_lock", fragment_lock)
    monkeypatch.setattr(versions, "_replace", conditional_put)
    monkeypatch.setattr(
        history_command, "open_for_change", lambda out, guard, dry_run: (THREADS.at, None)
    )


# -- the processes


def stream(urls, at=None):
    return Stream("data", at, None, list(urls), (), np.ones(len(urls), np.int64))


def base_of(at):
    number, data, parsed = at.store.world.first
    return versions.Version(at / version_name(number), number, data, parsed)


def append(name):
    """Return a process that appends a fragment, which it packed from the first newest version."""

    def run(at):
        base = base_of(at)
        parts = ((name, stream(["shard"], at / name)),)
        change = Append(at, parts, None, None, base, ErasedKeys())
        versions.commit(at, change, base, [FragmentLock(at / name, "writer")])

    return name, run


class Swap(versions.Change):
    """A change that lists a fragment in the place of a shard, as `drop` does."""

    verb, source, erases = "drop", None, ()

    def __init__(self, old, name):
        self.old, self.fragments = old, (name,)

    def apply(self, base):
        (one,) = base.streams
        if self.old not in one.urls:
            raise BusyError("another process has changed the dataset", where=base.at)
        new = f"{self.fragments[0]}/shard"
        return (replace(one, urls=[new if url == self.old else url for url in one.urls]),)


def drop(old, name):
    def run(at):
        versions.commit(at, Swap(old, name), base_of(at), [FragmentLock(at / name, "writer")])

    return name, run


PRUNE = "prune", lambda at: flare.prune("out", keep=1)
PIN = "pin", lambda at: history_command._pin(at, "run")


# -- the schedules


def dataset(processes):
    """Return the objects of a dataset with two versions, and the newest version.

    The second version no longer lists the shard `old`, so a prune deletes it.
    """
    files, before = {}, ""
    for number, urls in enumerate((["old", "a"], ["new", "a"]), 1):
        header = {"number": number, "before": before, "verb": "pack", "fragments": []}
        one = replace(stream(urls), headers={"requires": 1, "version": header})
        data = playlists.text(Playlist((one,)))
        files |= {version_name(number): data, PLAYLIST: data, **dict.fromkeys(urls, b"x")}
        before = digest(data)
    for name, _ in processes:
        if name in FRAGMENTS:
            files |= {f"{name}/shard": b"x", f"{name}/{PLAYLIST}": b"x"}
    return files, (2, data, playlists.parse(data, Location(MemoryStore(), "x.yaml")))


@functools.lru_cache(1 << 16)
def listed(data):
    """Return the addresses of the shards that a list names, and all its file names."""
    (one,) = playlists.parse(data, Location(MemoryStore(), "x.yaml")).streams
    return tuple(one.urls), {name for name, _ in file_names(one)}


def check_lists(files, all_numbers=False):
    """Check that no file is missing that the newest version, the current list or a pin names."""
    numbers = sorted(name for name in files if version_number(name) is not None)
    names = numbers[:] if all_numbers else numbers[-1:]
    names += [name for name in files if name == PLAYLIST or pin_of(name) == "run"]
    for name in names:
        assert listed(files[name])[1] <= files.keys(), (name, "names a missing file")
    return files[numbers[-1]]


def check_end(world):
    newest = check_lists(world.files, all_numbers=True)
    assert world.files[PLAYLIST] == newest
    urls = listed(newest)[0]
    assert len(set(urls)) == len(urls)
    for process in world.processes:
        assert isinstance(process.result, str), process.result
        if process.name in FRAGMENTS and process.result == "done":
            assert urls.count(f"{process.name}/shard") == 1, (process.name, "is lost")
        elif process.name in FRAGMENTS:
            assert (
                "lost the lock" in process.result
                or "has the lock" in process.result
                or ("has changed the dataset" in process.result)
                or ("has taken over the fragment" in process.result)
                or (world.takes_over and re.search("is missing|no such file", process.result))
            ), process.result


def explore(processes, can_expire=False, splits_check=False, takes_over=False, schedules=40):
    """Run schedules until all states are explored, in random order.

    Schedules with few interruptions are likely to be first.

    schedules  limit, unless FLARE_TEST_CHANGES is set
    return     the numbers of schedules and of states, and whether all states were explored
    """
    files, first = dataset(processes)
    seen, rng, count = set(), random.Random(5), 0
    waiting = [(0, 0, ())]  # heap: random number, interruptions, start of the schedule
    while waiting and count < (MAX_SCHEDULES or schedules):
        (_, interruptions, prefix), count = heapq.heappop(waiting), count + 1
        world = World(dict(files), first, can_expire, splits_check, takes_over)
        world.processes += [Process(name, run, world) for name, run in processes]
        for process in world.processes:
            process.thread.start()
            world.control.acquire()
        steps = []
        try:
            while running := [one for one in world.processes if not one.is_done]:
                enabled = [
                    i for i, one in enumerate(world.processes) if one in running and one.ready()
                ]
                assert enabled, "no process can continue"
                if len(steps) < len(prefix):
                    chosen = prefix[len(steps)]
                else:
                    key = world.state()
                    if key in seen:
                        break
                    seen.add(key)
                    can_go_on = bool(steps) and steps[-1] in enabled
                    chosen = steps[-1] if can_go_on else enabled[0]
                    for i in enabled:
                        if i != chosen:
                            number = interruptions + can_go_on
                            start = (rng.random() * (number + 1), number, (*steps, i))
                            heapq.heappush(waiting, start)
                steps.append(chosen)
                world.processes[chosen].turn.release()
                world.control.acquire()
                if not takes_over:  # otherwise, a version may be invalid until it is restored
                    check_lists(world.files)
            else:
                check_end(world)
        except AssertionError as error:
            names = [world.processes[i].name[-4:] for i in steps]
            raise AssertionError(f"{error} after the schedule {names}") from error
        finally:
            for process in world.processes:
                process.is_cancelled = True
                process.turn.release()
            for process in world.processes:
                process.thread.join()
    return count, len(seen), not waiting


A, B, C, D = FRAGMENTS
SCENARIOS = {
    "three appends": [append(A), append(B), append(C)],
    "two appends and a prune": [append(A), append(B), PRUNE],
    "an append, a drop, a prune and a pin": [append(A), drop("new", B), PRUNE, PIN],
    "two drops of a shard and a pin": [drop("new", A), drop("new", B), PIN],
    "three appends, a prune and a pin": [append(A), append(B), append(C), PRUNE, PIN],
}


@pytest.mark.parametrize("name", SCENARIOS)
@pytest.mark.parametrize("can_expire", [False, True])
def test_no_order_of_requests_loses_rows_or_listed_files(name, can_expire):
    count, states, is_complete = explore(SCENARIOS[name], can_expire)
    print(
        f"{name}, can_expire={can_expire}: {count} schedules, {states} states, complete: {is_complete}"
    )
    assert states > 50


def test_a_version_that_others_created_and_pruned_meanwhile_is_refused_as_a_lost_lock():
    class PrunedStore(MemoryStore):
        def create(self, path, data):
            raise UsageError("already exists", where=path)

    class LostLock:
        checks = 0

        def check(self):
            self.checks += 1
            if self.checks == 2:
                raise BusyError("this process has lost the lock")

    at = Location(PrunedStore(), "")
    version = versions.Version(at / version_name(3), 3, b"the playlist")
    with pytest.raises(BusyError, match="^this process has lost the lock$"):
        versions._created(at, version, LostLock())


def test_no_append_is_lost_if_a_process_stops_between_the_check_of_the_lock_and_its_commit():
    """The others commit two versions and prune the number that the stopped process then creates."""
    processes = [append(A), append(B), append(C), PRUNE]
    count, states, is_complete = explore(processes, True, True, schedules=200)
    print(f"split: {count} schedules, {states} states, complete: {is_complete}")
    assert states > 50


TAKEN_OVER = {
    "two appends and a prune": [append(A), append(B), PRUNE],
    "an append, a drop and a prune": [append(A), drop("new", B), PRUNE],
    "an append by two processes, another append and a prune": [
        append(A),
        append(A),
        append(B),
        PRUNE,
    ],
}


@pytest.mark.parametrize("name", TAKEN_OVER)
def test_no_version_lists_a_fragment_that_a_prune_took_over_from_a_stopped_process(name):
    count, states, is_complete = explore(TAKEN_OVER[name], True, True, True, schedules=800)
    print(f"{name}: {count} schedules, {states} states, complete: {is_complete}")
    assert states > 50


def test_a_version_that_lists_deleted_files_does_not_count_as_done():
    """The process that created the version was suspended, and has not undone the version yet."""

    def result_of_append():
        world.processes = [Process(*append(A), world)]
        world.processes[0].thread.start()
        world.control.acquire()
        while not world.processes[0].is_done:
            world.processes[0].turn.release()
            world.control.acquire()
        return world.processes[0].result

    files, first = dataset([append(A)])
    world = World(files, first, can_expire=False, splits_check=False)
    assert result_of_append() == "done"
    assert result_of_append() == "done"  # again, as after a kill
    del world.files[f"{A}/shard"]
    assert result_of_append() == f"refused: {A}/shard: the file is missing"
