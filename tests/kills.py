"""Copies of a folder at each step at which a process could be killed."""

import itertools
import os
import shutil
import sys
import threading

CALLS = (
    "write",
    "pwrite",
    "pwritev",
    "posix_fallocate",
    "ftruncate",
    "truncate",
    "fsync",
    "link",
    "rename",
    "replace",
    "unlink",
    "mkdir",
    "rmdir",
)


def killed_at_each_step(run, folder):
    """Run a function in a child that copies the folder before and after each change of a file.

    Each copy equals the folder after a kill at this step.

    run     function to run; its argument is the folder to change
    folder  the folder before the run, which is not changed; it may not exist
    return  for each step: its number, the copy, and whether the run was complete
    """
    out, steps = folder.parent / "killed", folder.parent / "steps"
    copied(folder, out)
    steps.mkdir()
    pid = os.fork()
    if not pid:
        code = 1
        try:
            Copies(out, steps).at_each_call()
            run(out)
            code = 0
        finally:
            os._exit(code)
    _, status = os.waitpid(pid, 0)
    assert os.waitstatus_to_exitcode(status) == 0
    count = len(list(steps.iterdir()))
    copied(out, steps / str(count) / "out")
    for step in range(count + 1):
        shutil.rmtree(out, ignore_errors=True)
        copied(steps / str(step) / "out", out)  # in the same path, because a journal may contain it
        yield step, out, step == count


def copied(folder, to):
    if folder.exists():
        shutil.copytree(folder, to)


class Copies:
    """Copies of a folder, made before and after each call that changes files."""

    def __init__(self, folder, steps):
        self.folder, self.steps = folder, steps
        self.numbers, self.lock, self.is_copying = itertools.count(), threading.RLock(), False

    def at_each_call(self):
        for name in CALLS:
            setattr(os, name, self._copying(getattr(os, name)))

    def _copying(self, real):
        def call(*args, **named):
            with self.lock:
                if self.is_copying:
                    return real(*args, **named)
                self._copy()
                try:
                    return real(*args, **named)
                finally:  # also after an error, for example because a file to delete does not exist
                    self._copy()

        return call

    def _copy(self):
        self.is_copying = True
        try:
            to = self.steps / str(next(self.numbers))
            to.mkdir()
            copied(self.folder, to / "out")
        except BaseException as error:
            print(f"the copy failed: {error}", file=sys.stderr)
            os._exit(1)
        self.is_copying = False
