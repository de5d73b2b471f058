"""Removes the names of Python's modules that macOS does not have, from each process that has this
folder on PYTHONPATH.

`make portable` runs the tests this way. What macOS lacks is listed by the notes on availability in
Python's documentation; 3.11 on macOS 11 or later, which has `preadv` and `pwritev`, without flags.
"""

import contextlib
import fcntl
import mmap
import os
import posix
import resource
import select
import signal

MISSING = {
    os: """
        copy_file_range eventfd eventfd_read eventfd_write fdatasync getrandom getresgid getresuid getxattr listxattr memfd_create
        pidfd_open pipe2 plock posix_fadvise posix_fallocate removexattr sched_getaffinity sched_getparam sched_getscheduler
        sched_param sched_rr_get_interval sched_setaffinity sched_setparam sched_setscheduler setns setresgid setresuid setxattr
        splice timerfd_create timerfd_gettime timerfd_gettime_ns timerfd_settime timerfd_settime_ns unshare waitid
        O_DIRECT O_LARGEFILE O_NOATIME O_PATH O_RSYNC O_TMPFILE P_ALL P_PGID P_PID P_PIDFD RTLD_DEEPBIND SCHED_BATCH SCHED_IDLE
        SCHED_RESET_ON_FORK
        """,
    fcntl: """
        F_EXLCK F_GETLEASE F_GETLK64 F_GETPIPE_SZ F_GETSIG F_NOTIFY F_SETLEASE F_SETLK64 F_SETLKW64 F_SETPIPE_SZ F_SETSIG F_SHLCK
        F_ADD_SEALS F_GET_SEALS
        """,
    mmap: """
        MADV_DODUMP MADV_DOFORK MADV_DONTDUMP MADV_DONTFORK MADV_HUGEPAGE MADV_HWPOISON MADV_MERGEABLE MADV_NOHUGEPAGE
        MADV_REMOVE MADV_SOFT_OFFLINE MADV_UNMERGEABLE
        MAP_DENYWRITE MAP_EXECUTABLE MAP_GROWSDOWN MAP_HUGETLB MAP_LOCKED MAP_NONBLOCK MAP_POPULATE MAP_STACK
        """,
    resource: "prlimit RLIMIT_MSGQUEUE RLIMIT_NICE RLIMIT_OFILE RLIMIT_RTPRIO RLIMIT_RTTIME RLIMIT_SIGPENDING RUSAGE_THREAD",
    select: "epoll",
    signal: "pidfd_send_signal sigtimedwait sigwaitinfo",
}
PREFIXES = {
    os: "CLONE_ EFD_ GRND_ MFD_ PIDFD_ POSIX_FADV_ RWF_ SPLICE_ TFD_ XATTR_",
    fcntl: "DN_ F_OFD_ F_SEAL_ LOCK_MAND LOCK_READ LOCK_RW LOCK_WRITE",
    select: "EPOLL",
}

for module, names in MISSING.items():
    known = tuple(PREFIXES.get(module, "\0").split())
    for name in {*names.split(), *(one for one in dir(module) if one.startswith(known))}:
        with contextlib.suppress(AttributeError):
            delattr(module, name)
        if module is os:  # which names them a second time
            with contextlib.suppress(AttributeError):
                delattr(posix, name)
