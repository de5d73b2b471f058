"""pytest plugin: replaces an original by flare, and reports the result of each test.

`install()` of the module `alias_NAME` in this folder replaces the original NAME. A test that uses a
class or function of flare is applicable. A test fails if it takes too long, or if it connects to
another machine.
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
        is_local = host in (None, "", "localhost") or ipaddress.ip_address(host).is_loopback
    except ValueError:
        is_local = False
    if not is_local:
        raise ConnectionRefusedError(f"only connections to this machine are allowed, got {host}")


def _counted(target):
    """Record each construction of a class, or each call of a function."""

    def recorded(call):
        @functools.wraps(call)
        def wrapper(*args, **kwargs):
            global _touched
            _touched = True
            return call(*args, **kwargs)

        return wrapper

    if isinstance(target, type):
        if target.__init__ is not object.__init__ and not hasattr(target.__init__, "__wrapped__"):
            target.__init__ = recorded(target.__init__)
        return target
    return recorded(target)


def count_classes(module, counted):
    """Count each construction of the classes of flare in a module."""
    for name in dir(module):
        value = getattr(module, name)
        if isinstance(value, type) and value.__module__.startswith("flarecli.compat."):
            counted(value)


def _too_long(signum, frame):
    raise TimeoutError(f"the test took longer than {os.environ['SUITE_TEST_SECONDS']} s")


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
