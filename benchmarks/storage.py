"""Compare reading from a local nginx, of objects of 10 KB, 100 KB and 64 MB and random 4 KB ranges,
with the libraries below flare.

    storage.py [--rounds N]

S3 requests are path-style GETs of the same files, unsigned, because only reading is compared. flare
reads many objects with `read_each`, which returns them in order; the libraries use one call per
object in threads, and "in threads" flare does so too. Each contender runs in its own process, in
turns, and repeats its task for 0.4 s, because one call may take only 50 ms; the median of these
calls is the result of a round. Medians of the rounds are printed; ratios are medians of the ratios
of each round: of wall-clock time, and in the last line of CPU time. s3fs is measured if it is
installed (the extra `dev` installs it). nginx is needed (Debian: nginx-light).
"""

import argparse
import functools
import importlib.util
import json
import os
import random
import shutil
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from measure import print_figures

SHAPES = {"10 KB": (10_000, 5_000, 32), "100 KB": (100_000, 2_000, 32), "64 MB": (64_000_000, 8, 4)}
LONG_S = 0.4  # minimum time of the calls of a contender in a round
RANGES, RANGE, HOST = 2_000, 4096, "127.0.0.1"
TASKS = (*SHAPES, "4 KB ranges")
RATIOS = (  # (contender, rival, tasks, minimum ratio)
    ("flare s3", "obstore s3", TASKS[:3], 0.85),
    ("flare s3", "obstore get_ranges", TASKS[3:], 0.85),
    ("flare http", "obstore http", TASKS[:3], 0.8),
    ("flare http links", "pycurl", TASKS[:1], 0.6),
    ("flare s3", "s3fs", TASKS[:1], 8),
    ("flare s3 in threads", "obstore s3", TASKS[:2], 0),
    ("flare http in threads", "obstore http", TASKS[:2], 0),
)


warming = False  # small tasks for the first call of each contender, which is not counted: imports, first connection


def names(task: str) -> list[str]:
    size, count, _ = SHAPES.get(task, SHAPES["64 MB"])
    return [f"{size}/{i:05}" for i in range(1 if warming else count)]


def starts() -> list[int]:
    rng = random.Random(1)
    return [rng.randrange(SHAPES["64 MB"][0] - RANGE) for _ in range(20 if warming else RANGES)]


def in_threads(read: Callable[[str], int], task: str) -> int:
    """Read every object of a task with the number of threads in its shape."""
    with ThreadPoolExecutor(SHAPES[task][2]) as threads:
        return sum(threads.map(read, names(task)))


# -- contenders: (task, url) -> bytes read


def flare(task: str, base: str, threads: bool = False) -> int:
    from flarecli.storage import Guard, Limits, locate, read_each

    at = locate(base, Guard(limits=Limits(jobs=32)))
    if task == "4 KB ranges":
        return sum(
            map(
                len, (at / names(task)[0]).read_many([(start, start + RANGE) for start in starts()])
            )
        )
    if task == "64 MB":
        return in_threads(lambda name: sum(map(len, (at / name).blocks(SHAPES[task][0]))), task)
    if threads:
        return in_threads(lambda name: len((at / name).read()), task)
    return sum(map(len, read_each([at / name for name in names(task)])))


def flare_s3(task: str, url: str) -> int:
    return flare(task, "s3://files")


def flare_http(task: str, url: str) -> int:
    return flare(task, f"{url}/files")


def flare_s3_threads(task: str, url: str) -> int:
    return flare(task, "s3://files", threads=True)


def flare_http_threads(task: str, url: str) -> int:
    return flare(task, f"{url}/files", threads=True)


def flare_http_links(task: str, url: str) -> int:
    """Download the linked files of an index as a pack does: with all checks, into Arrow buffers."""
    import pyarrow as pa

    from flarecli.progress import Progress
    from flarecli.storage import Guard, Limits, locate
    from flarecli.write.fetch_links import Link, fetch

    links = pa.record_batch({"url": [f"{url}/files/{name}" for name in names(task)]})
    got = 0
    for some in fetch(
        [links],
        [Link("url", "data")],
        key=None,
        at=locate("."),
        guard=Guard(allow_private=True),
        limits=Limits(jobs=32),
        progress=Progress(),
    ):
        if some.failures:
            sys.exit(str(some.failures[0]))
        got += some.batch.column("data").nbytes
    return got


@functools.cache  # connections stay open between calls, as in flare's HTTP engine; for S3, both create a client for each call
def _obstore_http_client(url: str) -> object:
    from obstore.store import HTTPStore

    return HTTPStore(f"{url}/files", client_options={"allow_http": True, "timeout": "10 minutes"})


def _obstore_client(url: str, kind: str) -> object:
    from obstore.store import S3Store

    if kind == "http":
        return _obstore_http_client(url)
    options = {"allow_http": True, "timeout": "10 minutes"}
    return S3Store(
        "files", endpoint=url, skip_signature=True, region="us-east-1", client_options=options
    )


def obstore(task: str, url: str, kind: str = "s3") -> int:
    import obstore

    store = _obstore_client(url, kind)
    return in_threads(lambda name: len(obstore.get(store, name).bytes()), task)


def obstore_http(task: str, url: str) -> int:
    return obstore(task, url, "http")


def obstore_ranges(task: str, url: str) -> int:
    import obstore

    at = starts()
    found = obstore.get_ranges(
        _obstore_client(url, "s3"),
        names(task)[0],
        starts=at,
        ends=[start + RANGE for start in at],
        coalesce=1 << 16,
    )
    return sum(map(len, found))


def bare_pycurl(task: str, url: str) -> int:
    import pycurl

    multi, free, todo, got = pycurl.CurlMulti(), [], names(task)[::-1], 0
    for _ in range(SHAPES[task][2]):
        easy = pycurl.Curl()
        easy.setopt(pycurl.NOSIGNAL, 1)
        free.append(easy)
    busy = 0
    while todo or busy:
        while todo and free:
            easy = free.pop()
            easy.parts = []
            easy.setopt(pycurl.URL, f"{url}/files/{todo.pop()}")
            easy.setopt(pycurl.WRITEFUNCTION, easy.parts.append)
            multi.add_handle(easy)
            busy += 1
        multi.perform()
        _, done, failed = multi.info_read()
        if failed:
            sys.exit(str(failed))
        for easy in done:
            got += len(b"".join(easy.parts))
            multi.remove_handle(easy)
            free.append(easy)
            busy -= 1
        if not done:
            multi.select(0.1)
    return got


def s3fs(task: str, url: str) -> int:
    from s3fs import S3FileSystem

    files = S3FileSystem(anon=True, endpoint_url=url)
    return in_threads(lambda name: len(files.cat_file(f"files/{name}")), task)


CONTENDERS: dict[str, tuple[Callable[[str, str], int], tuple[str, ...]]] = {
    "flare s3": (flare_s3, TASKS),
    "flare s3 in threads": (flare_s3_threads, TASKS[:2]),
    "obstore s3": (obstore, TASKS[:3]),
    "obstore get_ranges": (obstore_ranges, TASKS[3:]),
    "flare http": (flare_http, TASKS),
    "flare http in threads": (flare_http_threads, TASKS[:2]),
    "obstore http": (obstore_http, TASKS[:3]),
    "flare http links": (flare_http_links, TASKS[:1]),
    "pycurl": (bare_pycurl, TASKS[:1]),
    "s3fs": (s3fs, TASKS[:1]),
}


def contend(name: str, task: str, url: str) -> None:
    """Run one round; print seconds, CPU seconds and bytes of a call, and peak memory, as JSON."""
    global warming
    call = CONTENDERS[name][0]
    warming = True
    call(task, url)
    warming = False
    calls: list[tuple[float, float]] = []
    while sum(seconds for seconds, _ in calls) < LONG_S:
        began, cpu = time.perf_counter(), time.process_time()
        got = call(task, url)
        calls.append((time.perf_counter() - began, time.process_time() - cpu))
    seconds, used = (statistics.median(column) for column in zip(*calls, strict=True))
    peak = next(
        int(line.split()[1]) * 1024
        for line in Path("/proc/self/status").read_text().splitlines()
        if line.startswith("VmHWM")
    )
    print(json.dumps({"seconds": seconds, "cpu": used, "bytes": got, "peak": peak}), flush=True)
    os._exit(0)


# -- the server and the rounds


def serve(folder: Path, log: str = "off", rate: str = "0") -> tuple[subprocess.Popen, str]:
    """Start a server of a folder.

    rate  limit of each response, in the syntax of nginx: `80m` is 80 MiB/s
    """
    nginx = shutil.which("nginx", path=f"{os.environ['PATH']}:/usr/sbin")
    if nginx is None:
        sys.exit("nginx is needed: install the package nginx-light")
    with socket.socket() as one:
        one.bind((HOST, 0))
        port = one.getsockname()[1]
    temporary = "".join(
        f"{kind}_temp_path {folder}/tmp;"
        for kind in ("client_body", "proxy", "fastcgi", "uwsgi", "scgi")
    )
    user = "user root;" if os.geteuid() == 0 else ""
    (folder / "conf").write_text(
        f"{user} daemon off; worker_processes 1; error_log {folder}/error.log crit; pid {folder}/pid; events {{ worker_connections 4096; }}"
        f"http {{ access_log {log}; limit_rate {rate}; sendfile on; keepalive_requests 1000000; open_file_cache max=20000; {temporary}"
        f"server {{ listen {HOST}:{port} backlog=4096; root {folder}; }} }}"
    )
    process = subprocess.Popen([nginx, "-c", str(folder / "conf")])
    for _ in range(200):
        try:
            urllib.request.urlopen(f"http://{HOST}:{port}/conf", timeout=1).close()
            break
        except OSError:
            time.sleep(0.05)
    return process, f"http://{HOST}:{port}"


def make(folder: Path) -> None:
    rng = random.Random(0)
    for size, count, _ in SHAPES.values():
        (folder / "files" / str(size)).mkdir(parents=True)
        for i in range(count):
            (folder / "files" / str(size) / f"{i:05}").write_bytes(rng.randbytes(size))


def run(name: str, task: str, url: str) -> dict[str, float]:
    env = {
        "PATH": os.environ["PATH"],
        "AWS_ENDPOINT_URL": url,
        "AWS_SKIP_SIGNATURE": "true",
        "AWS_EC2_METADATA_DISABLED": "true",
        "AWS_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
    }
    ran = subprocess.run(
        [sys.executable, __file__, "--one", name, "--task", task, "--url", url],
        capture_output=True,
        text=True,
        env=env,
    )
    if ran.returncode:
        sys.exit(f"{name}, {task}: {ran.stderr}")
    return json.loads(ran.stdout)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--one")
    parser.add_argument("--task")
    parser.add_argument("--url")
    args = parser.parse_args()
    if args.one:
        contend(args.one, args.task, args.url)
    with_s3fs = importlib.util.find_spec("s3fs") is not None
    contenders = {
        name: tasks for name, (_, tasks) in CONTENDERS.items() if name != "s3fs" or with_s3fs
    }
    with tempfile.TemporaryDirectory(prefix="flare-storage-") as scratch:
        folder = Path(scratch)
        os.chmod(folder, 0o755)
        make(folder)
        server, url = serve(folder)
        try:
            pairs = [
                (name, task)
                for task in TASKS
                for name, tasks in contenders.items()
                if task in tasks
            ]
            found: dict[tuple[str, str], list[dict[str, float]]] = {pair: [] for pair in pairs}
            for i in range(args.rounds):
                for name, task in pairs:
                    if name != "s3fs" or not i:  # nginx may end slowly
                        found[name, task].append(run(name, task, url))
        finally:
            server.terminate()
            server.wait()
    report(found)


def report(found: dict[tuple[str, str], list[dict[str, float]]]) -> None:
    figures: dict[str, float] = {}
    print(f"{'':22}{'':14}{'/s':>10}{'MB/s':>8}{'CPU s':>8}{'peak MB':>9}")
    for (name, task), runs in found.items():
        count = RANGES if task not in SHAPES else SHAPES[task][1]
        middle = {key: statistics.median(run[key] for run in runs) for key in runs[0]}
        per_s, mb = count / middle["seconds"], middle["bytes"] / middle["seconds"] / 1e6
        print(
            f"{name:22}{task:14}{per_s:10,.0f}{mb:8,.0f}{middle['cpu']:8.2f}{middle['peak'] / 1e6:9.0f}"
        )
    for one, two, tasks, least in RATIOS:
        for task in tasks:
            if (one, task) in found and (two, task) in found:
                pairs = list(zip(found[one, task], found[two, task], strict=False))
                ratio = statistics.median(b["seconds"] / a["seconds"] for a, b in pairs)
                cpu = statistics.median(b["cpu"] / a["cpu"] for a, b in pairs)
                figures[f"{one} over {two}, {task}"] = cpu
                print(
                    f"{one} over {two}, {task}: {ratio:.2f}, CPU {cpu:.2f}{f' (at least {least})' if least else ''}{'' if ratio >= least else '   MISSED'}"
                )
    print_figures(figures)


if __name__ == "__main__":
    main()
