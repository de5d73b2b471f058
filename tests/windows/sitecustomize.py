"""Removes the names that Python lacks on Windows from Python on Linux, in each process that has
this folder on PYTHONPATH.

Sources: the notes on availability in Python's documentation, the `supports_` sets in Lib/os.py, and
the behavior of the Windows API for open files. flare is imported after this module, and sees
`sys.platform == "win32"`. The simulation does not change `os.name` and `os.path`: paths have
slashes, and names differ by case.
"""

import contextlib
import errno
import fcntl
import importlib
import io
import mmap
import os
import select
import shutil
import signal
import socket
import sys
import tempfile
import types

import pyarrow

# These libraries choose their functions when they are imported, so they must see Linux.
for _name in [
    "asyncio",
    "ctypes",
    "concurrent.futures",
    "http.server",
    "multiprocessing.connection",
    "multiprocessing.pool",
    "multiprocessing.reduction",
    "multiprocessing.shared_memory",
    "mmap",
    "pty",
    "selectors",
    "shutil",
    "signal",
    "socket",
    "socketserver",
    "subprocess",
    "tempfile",
    "urllib.request",
    "uuid",
    "zipfile",
    "PIL.Image",
    "duckdb",
    "fsspec",
    "google_crc32c",
    "isal.isal_zlib",
    "numpy",
    "numpy.random",
    "obstore",
    "pyarrow",
    "pyarrow.compute",
    "pyarrow.csv",
    "pyarrow.dataset",
    "pyarrow.fs",
    "pyarrow.json",
    "pyarrow.parquet",
    "pycurl",
    "pytest",
    "rich.console",
    "rich.live",
    "tqdm",
    "typer",
    "xxhash",
    "yaml",
    "zstandard",
    "execnet",
    "xdist",
]:
    with contextlib.suppress(ImportError):
        importlib.import_module(_name)

MISSING_MODULES = ["fcntl", "grp", "posix", "pty", "pwd", "resource", "syslog", "termios", "tty"]
MISSING = {
    os: """
        chown chroot confstr confstr_names copy_file_range ctermid eventfd eventfd_read eventfd_write fchdir fchmod fchown
        fdatasync fork forkpty fpathconf fstatvfs fwalk getegid geteuid getgid getgrouplist getgroups getloadavg getpgid
        getpgrp getpriority getrandom getresgid getresuid getsid getuid getxattr initgroups killpg lchown listxattr lockf
        login_tty major makedev memfd_create minor mkfifo mknod nice openpty pathconf pathconf_names pidfd_open pipe2 plock
        posix_fadvise posix_fallocate posix_spawn posix_spawnp pread preadv pwrite pwritev register_at_fork removexattr
        sched_get_priority_max sched_get_priority_min sched_getaffinity sched_getparam sched_getscheduler sched_param
        sched_rr_get_interval sched_setaffinity sched_setparam sched_setscheduler sched_yield sendfile set_blocking
        get_blocking setegid seteuid setgid setgroups setns setpgid setpriority setregid setresgid setresuid setreuid setsid
        setuid setxattr splice spawnlp spawnlpe spawnvp spawnvpe statvfs sync sysconf sysconf_names tcgetpgrp tcsetpgrp
        ttyname uname unshare wait wait3 wait4 waitid WCOREDUMP WEXITSTATUS WIFCONTINUED WIFEXITED WIFSIGNALED WIFSTOPPED
        WNOHANG WSTOPSIG WTERMSIG WUNTRACED
        O_ACCMODE O_ASYNC O_CLOEXEC O_DIRECT O_DIRECTORY O_DSYNC O_LARGEFILE O_NDELAY O_NOATIME O_NOCTTY O_NOFOLLOW
        O_NONBLOCK O_PATH O_RSYNC O_SYNC O_TMPFILE
        """,
    mmap: "MAP_PRIVATE MAP_SHARED MAP_ANON MAP_ANONYMOUS PROT_READ PROT_WRITE PROT_EXEC",
    select: "poll epoll",
    signal: """
        SIGALRM SIGBUS SIGCHLD SIGCLD SIGCONT SIGHUP SIGIO SIGIOT SIGKILL SIGPIPE SIGPOLL SIGPROF SIGPWR SIGQUIT SIGRTMAX
        SIGRTMIN SIGSTKFLT SIGSTOP SIGSYS SIGTRAP SIGTSTP SIGTTIN SIGTTOU SIGURG SIGUSR1 SIGUSR2 SIGVTALRM SIGWINCH SIGXCPU
        SIGXFSZ ITIMER_PROF ITIMER_REAL ITIMER_VIRTUAL alarm getitimer pause pidfd_send_signal pthread_kill pthread_sigmask
        setitimer siginterrupt sigpending sigtimedwait sigwait sigwaitinfo
        """,
    socket: "AF_UNIX fromfd_unix sendmsg recvmsg",
}
PREFIXES = {
    os: "CLONE_ EFD_ GRND_ MFD_ PIDFD_ POSIX_ PRIO_ P_PID P_PGID P_ALL RTLD_ RWF_ SCHED_ SPLICE_ ST_ TFD_ XATTR_ timerfd",
    mmap: "MADV_ MAP_",
    select: "EPOLL POLL",
}

# The standard library chose its functions for Linux. Windows removes a temporary file when it is
# closed, and `rmtree` does not use openat there.
tempfile._os = types.ModuleType("os")
tempfile._os.__dict__.update(os.__dict__)
shutil._use_fd_functions = False

for module, names in MISSING.items():
    known = tuple(PREFIXES.get(module, "\0").split())
    for name in {*names.split(), *(one for one in dir(module) if one.startswith(known))}:
        with contextlib.suppress(AttributeError):
            delattr(module, name)

io._WindowsConsoleIO = type("_WindowsConsoleIO", (), {})  # pytest refers to it
signal.SIGBREAK = signal.Signals.__members__.get("SIGUSR1", 10)  # a number that Linux accepts
os.O_BINARY = 0

# -- functions of `os`


def _fails_with_folders(call, replaces_nothing=False):
    """Wrap a function of `os` so that a `dir_fd` is refused, as on Windows."""

    def wrapped(*args, **kwargs):
        if any(kwargs.get(name) is not None for name in ("dir_fd", "src_dir_fd", "dst_dir_fd")):
            raise NotImplementedError(f"{call.__name__}: dir_fd unavailable on this platform")
        if kwargs.get("follow_symlinks", True) is False and call not in (_stat,):
            raise NotImplementedError(
                f"{call.__name__}: follow_symlinks unavailable on this platform"
            )
        if replaces_nothing and os.path.lexists(args[1]):
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), args[0], None, args[1])
        if call in (_unlink, _remove, _rename, _replace):
            _check_closed(*args)
        return call(*args, **kwargs)

    wrapped.__name__ = call.__name__
    return wrapped


def _check_closed(*paths):
    """Raise PermissionError if this process has a file open or mapped: Windows neither moves nor
    removes such a file.

    Windows also does not move a folder that contains an open file.
    """
    for path in map(os.path.realpath, paths):
        for fd in _listdir("/proc/self/fd"):
            with contextlib.suppress(OSError):
                opened = _readlink(f"/proc/self/fd/{fd}")
                if opened == path or opened.startswith(f"{path}/"):
                    break
        else:
            continue
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)


_stat, _open, _rename, _replace, _unlink = os.stat, os.open, os.rename, os.replace, os.unlink
_remove, _readlink = os.remove, os.readlink
_scandir, _listdir = os.scandir, os.listdir


def _refuse_descriptors(call):
    def wrapped(path="."):
        if isinstance(path, int):
            raise TypeError(
                f"{call.__name__}: path should be string, bytes, os.PathLike or None, not int"
            )
        return call(path)

    wrapped.__name__ = call.__name__
    return wrapped


def _open_file(path, flags, mode=0o777, *, dir_fd=None):
    if dir_fd is not None:
        raise NotImplementedError("open: dir_fd unavailable on this platform")
    if os.path.isdir(path):
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), path)
    return _open(path, flags, mode)


for name in [
    "access",
    "chmod",
    "link",
    "mkdir",
    "readlink",
    "remove",
    "replace",
    "rmdir",
    "stat",
    "symlink",
    "unlink",
    "utime",
]:
    setattr(os, name, _fails_with_folders(getattr(os, name)))
os.rename = _fails_with_folders(_rename, replaces_nothing=True)
os.open = _open_file
os.scandir, os.listdir = _refuse_descriptors(_scandir), _refuse_descriptors(_listdir)
os.supports_dir_fd = set()
os.supports_fd = {os.stat, os.truncate}
os.supports_follow_symlinks = {os.stat}
os.supports_effective_ids = set()

# -- sockets


def _socketpair(*args):
    """Return two connected TCP sockets, as on Windows, which has no other pair of sockets."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        client = socket.create_connection(server.getsockname())
        return client, server.accept()[0]


socket.socketpair = _socketpair

# -- memory maps: without `flags` and `prot`, which Windows does not accept


class _Map(mmap.mmap):
    def __new__(cls, fileno, length, tagname=None, access=mmap.ACCESS_DEFAULT, offset=0):
        return super().__new__(cls, fileno, length, access=access, offset=offset)

    madvise = property()  # raises AttributeError


mmap.mmap = _Map

# -- paths that Windows lacks


class _OSFile(pyarrow.OSFile):
    def __init__(self, path, mode="r", memory_pool=None):
        if str(path).startswith("/dev/"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), path)
        super().__init__(path, mode, memory_pool)


pyarrow.OSFile = _OSFile

# -- locks: `msvcrt.locking` locks bytes against all other handles; flock has the same effect for
# one byte

msvcrt = types.ModuleType("msvcrt")
msvcrt.LK_UNLCK, msvcrt.LK_LOCK, msvcrt.LK_NBLCK, msvcrt.LK_RLCK, msvcrt.LK_NBRLCK = range(5)


def _locking(fd, mode, nbytes):
    try:
        fcntl.flock(fd, fcntl.LOCK_UN if mode == msvcrt.LK_UNLCK else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        raise PermissionError(errno.EACCES, os.strerror(errno.EACCES)) from None


msvcrt.locking = _locking
sys.modules["msvcrt"] = msvcrt
for name in MISSING_MODULES:
    sys.modules[name] = None
for name in ("ray", "torch"):  # their builds for Linux cannot be imported as on Windows
    sys.modules[name] = None
sys.platform = "win32"
