"""Servers of tests end within a time limit."""

import os
import signal
import subprocess
import sys

import pytest

from tests.servers import end_by_stdin

READER = [sys.executable, "-I", "-S", "-c", "import sys; sys.stdin.read()"]


def test_a_process_ends_at_the_end_of_its_input():
    process = subprocess.Popen(READER, stdin=subprocess.PIPE)
    end_by_stdin(process)
    assert process.returncode == 0


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="open pipes are found in /proc")
def test_a_forked_process_that_keeps_the_input_open_is_killed_and_named():
    process = subprocess.Popen(READER, stdin=subprocess.PIPE)
    forked = os.fork()
    if not forked:
        signal.pause()
    with pytest.raises(RuntimeError) as caught:
        end_by_stdin(process, limit_s=0.2)
    assert (
        str(caught.value)
        == f"process {process.pid} did not end; killed processes that keep its standard input open: [{forked}]"
    )
    assert process.returncode == -signal.SIGKILL
    assert os.waitstatus_to_exitcode(os.waitpid(forked, 0)[1]) == -signal.SIGKILL
