"""pytest plugin: puts flare in the place of an original, and reports each test's outcome.

The module `alias_NAME` beside this file replaces the original NAME: its `install()` returns the classes and functions of flare that stand
in for the original's, and a test that uses one of them is applicable. A test that takes too long fails, and so does one that connects
to another machine.
"""

import functools
import importlib
import ipaddress
import json
import os
import signal
import sys

import pytest

_touched = False
_results = {}


def _refuse_network(event, args):
    """Audit hook: raise for a connection or a name resolution that leaves this machine."""
    if event == "socket.connect":
        host = args[1][0] if isinstance(args[1], tuple) else "localhost"
    elif event in ("socket.getaddrinfo", "socket.gethostbyname"):
        host = args[0]
    else:
        return
    host = host.decode() if isinstance(host, bytes) else host
    try:
        inside = host in (None, "", "localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        inside = False
    if not inside:
        raise ConnectionRefusedError(f"tests stay on this machine; asked for {host}")


def _counted(one):
    """Note each construction of a class, or each call of a function."""

    def noted(call):
        @functools.wraps(call)
        def wrapper(*args, **kwargs):
            global _touched
            _touched = True
            return call(*args, **kwargs)

        return wrapper

    if isinstance(one, type):
        if one.__init__ is not object.__init__ and not hasattr(one.__init__, "__wrapped__"):
            one.__init__ = noted(one.__init__)
        return one
    return noted(one)


def count_classes(module, counted):
    """Count each construction of flare's classes that a module shows."""
    for name in dir(module):
        one = getattr(module, name)
        if isinstance(one, type) and one.__module__.startswith("flarecli.compat."):
            counted(one)


def _too_long(signum, frame):
    raise TimeoutError(f"longer than {os.environ['SUITE_TEST_SECONDS']} s")


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config):
    """Replace the original before any conftest imports it."""
    signal.signal(signal.SIGALRM, _too_long)
    sys.addaudithook(_refuse_network)
    if os.environ["SUITE_WHICH"] == "flare":
        importlib.import_module(f"alias_{os.environ['SUITE']}").install(_counted)


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_protocol(item, nextitem):
    global _touched
    _touched = False
    signal.alarm(int(os.environ["SUITE_TEST_SECONDS"]))
    yield
    signal.alarm(0)
    _write(item.nodeid, touched=_touched, **_results.pop(item.nodeid, {"outcome": "skipped"}))


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport(item, call):
    report = (yield).get_result()
    if report.failed:
        why = f"{call.excinfo.typename}: {call.excinfo.value}"
        _results[item.nodeid] = {"outcome": "failed", "why": " ".join(why.split())[:300]}
    elif report.skipped or report.when == "call":
        outcome = "skipped" if report.skipped else "passed"
        _results.setdefault(item.nodeid, {"outcome": outcome})


def pytest_collectreport(report):
    if report.failed:
        lines = str(report.longrepr).strip().splitlines()
        _write(report.nodeid, touched=False, outcome="failed", why=lines[-1] if lines else "")


def _write(test, **facts):
    with open(os.environ["SUITE_REPORT"], "a", encoding="utf-8") as file:
        file.write(json.dumps({"test": test, **facts}) + "\n")
