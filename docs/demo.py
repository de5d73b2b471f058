"""The demo: pack photographs from a local HTTP server, inspect and verify the dataset, unpack it,
and compare every byte.

    python docs/demo.py FOLDER [--photos 500]

The demo creates FOLDER, or replaces the files of an earlier demo in it. It draws the photographs,
serves the folder on a free port of 127.0.0.1, and runs `flare`. Each command line is printed before
its output. The exit code is 0 only if every command succeeded and every unpacked file equals its
photograph.
"""

import argparse
import io
import json
import re
import shlex
import shutil
import subprocess
import sys
import sysconfig
import threading
import time
from concurrent.futures import ProcessPoolExecutor
from functools import cache
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from PIL import Image

SIZES = ((800, 600), (640, 640), (1024, 683), (600, 800), (960, 540), (1200, 800), (320, 240))
TEXTURE = 2048  # pixels per side
PLACES = (
    "a harbour",
    "a hillside",
    "an orchard",
    "a river bend",
    "a market",
    "a ridge",
    "a bay",
    "a lane",
)
LIGHTS = (
    "at dawn",
    "in fog",
    "at noon",
    "in rain",
    "at dusk",
    "under snow",
    "by moonlight",
    "after a storm",
)
MADE = ("photos", "out", "files", "index.parquet", "far.parquet", "near.jpg", "far.jpg", "set.yaml")


@cache
def texture(kind: str) -> np.ndarray:
    """Return a large square of noise, from which each photograph is cut: `detail` on every scale,
    or `grain`.
    """
    rng = np.random.default_rng(len(kind))
    if kind == "grain":
        return rng.normal(0, 6, (TEXTURE, TEXTURE)).astype(np.float32)
    detail = np.zeros((TEXTURE, TEXTURE), np.float32)
    for cells, weight in ((6, 40), (18, 22), (54, 14), (162, 9), (486, 6)):
        coarse = Image.fromarray(rng.normal(0, weight, (cells, cells)).astype(np.float32))
        detail += np.asarray(coarse.resize((TEXTURE, TEXTURE), Image.Resampling.BICUBIC))
    return detail


def picture(seed: int) -> Image.Image:
    """Draw an image that compresses like a photograph: a gradient, edges, detail on every scale,
    and grain.
    """
    rng = np.random.default_rng(seed)
    width, height = SIZES[seed % len(SIZES)]

    def piece(kind: str) -> np.ndarray:
        top, left = rng.integers(0, (TEXTURE - height, TEXTURE - width))
        return texture(kind)[top : top + height, left : left + width][
            :: rng.choice((-1, 1)), :: rng.choice((-1, 1))
        ]

    across, down = (
        np.linspace(0, 1, width, dtype=np.float32),
        np.linspace(0, 1, height, dtype=np.float32)[:, None],
    )
    sky, ground = (
        rng.uniform(60, 230, 3).astype(np.float32),
        rng.uniform(20, 140, 3).astype(np.float32),
    )
    horizon = 0.55 + 0.15 * np.interp(
        across, np.linspace(0, 1, 40), rng.normal(0, 0.5, 40).cumsum() / 3
    ).astype(np.float32)
    below = down > horizon
    shade, light = (
        piece("detail") * np.where(below, np.float32(1), np.float32(0.35)) + piece("grain"),
        1 - 0.4 * down,
    )
    bands = [
        np.clip(np.where(below, ground[i], sky[i] * light) + shade, 0, 255).astype(np.uint8)
        for i in range(3)
    ]
    return Image.merge("RGB", [Image.fromarray(band) for band in bands])


def photograph(seed: int) -> bytes:
    """Return an image as a JPEG."""
    out = io.BytesIO()
    picture(seed).save(out, "jpeg", quality=90)
    return out.getvalue()


def draw(folder: str, seed: int) -> None:
    """Write one photograph to a folder. This function runs in a separate process."""
    Path(folder, f"{seed:04}.jpg").write_bytes(photograph(seed))


class Handler(BaseHTTPRequestHandler):
    """Handler for GET, HEAD and single ranges of the files in `server.root`, with persistent
    connections.
    """

    protocol_version = "HTTP/1.1"

    def do_GET(self) -> None:
        path = self.path.partition("?")[0].lstrip("/")
        try:
            data = (self.server.root / path).read_bytes()
        except OSError:
            data = None
        if data is None or ".." in path:
            self.answer(404, b"", {})
            return
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range", ""))
        if not asked:
            self.answer(200, data, {"Accept-Ranges": "bytes"})
            return
        start, stop = int(asked[1]), min(int(asked[2] or len(data)) + 1, len(data))
        if start >= len(data):
            self.answer(416, b"", {"Content-Range": f"bytes */{len(data)}"})
            return
        self.answer(
            206, data[start:stop], {"Content-Range": f"bytes {start}-{stop - 1}/{len(data)}"}
        )

    do_HEAD = do_GET

    def answer(self, status: int, data: bytes, headers: dict[str, str]) -> None:
        """Send a response and count it."""
        self.send_response(status)
        for name, value in {"Content-Length": str(len(data)), **headers}.items():
            self.send_header(name, value)
        self.end_headers()
        if self.command == "GET":
            self.wfile.write(data)
            with self.server.counting:
                self.server.answers += 1
                self.server.sent += len(data)

    def log_message(self, format: str, *args: object) -> None:
        """Do not log requests."""


class Server(ThreadingHTTPServer):
    """Server of a folder, on a free port of 127.0.0.1. It counts its responses and their bytes."""

    daemon_threads = True
    request_queue_size = 128

    def __init__(self, root: Path) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.root, self.answers, self.sent, self.counting = root, 0, 0, threading.Lock()

    @property
    def url(self) -> str:
        """Return the address of the folder, without a trailing slash."""
        return f"http://127.0.0.1:{self.server_port}"

    def handle_error(self, request: object, client_address: object) -> None:
        """Do not report closed connections."""

    def __enter__(self) -> "Server":
        threading.Thread(
            target=self.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True
        ).start()
        return self

    def __exit__(self, *error: object) -> None:
        self.shutdown()
        self.server_close()


def run(line: str, folder: Path) -> None:
    """Print a command line, run it in the folder, and print its output.

    On a terminal, the command writes to the terminal and prints tables and photographs.
    """
    print(f"\n$ {line}", flush=True)
    line, target = re.fullmatch(r"(.*?)(?: > (\S+))?", line).groups()
    argv = [sysconfig.get_path("scripts") + "/flare", *shlex.split(line)[1:]]
    is_shown = target is None and sys.stdout.isatty()
    stdout = None if is_shown else subprocess.PIPE
    ran = subprocess.run(argv, cwd=folder, stdout=stdout, check=False)
    if target:
        (folder / target).write_bytes(ran.stdout)
    elif not is_shown:
        print(ran.stdout.decode(), end="", flush=True)
    if ran.returncode:
        sys.exit(f"exit {ran.returncode}")


def check(what: str, holds: bool) -> None:
    """Print the result of a check, or end the demo."""
    print(f"  -> {what}" if holds else f"  -> FAILED: {what}", flush=True)
    if not holds:
        sys.exit(1)


def make(folder: Path, photos: int) -> dict[str, bytes]:
    """Draw the photographs into FOLDER/photos, and return key -> JPEG."""
    (folder / "photos").mkdir()
    with ProcessPoolExecutor() as pool:
        list(pool.map(draw, [str(folder / "photos")] * photos, range(photos), chunksize=8))
    return {path.stem: path.read_bytes() for path in sorted((folder / "photos").iterdir())}


def write_index(path: Path, keys: list[str], url: str) -> None:
    """Write the parquet index, with a key, a link, a caption and a score for each photograph."""
    rng = np.random.default_rng(7)
    captions = [f"{rng.choice(PLACES)} {rng.choice(LIGHTS)}, no. {int(key)}" for key in keys]
    table = {
        "data_id": keys,
        "data_url": [f"{url}/photos/{key}.jpg" for key in keys],
        "caption": captions,
        "score": rng.random(len(keys)).round(4),
    }
    pq.write_table(pa.table(table), path)


def show(folder: Path, photos: dict[str, bytes], server: Server) -> None:
    """Run every command on the photographs, and compare the unpacked files."""
    host = f"--allow-host 127.0.0.1:{server.server_port}"
    run(f"flare pack index.parquet out/ --fetch data_url:image --key data_id {host}", folder)
    run("flare inspect out/", folder)
    run("flare verify out/", folder)
    run("flare cat out/ --limit 3", folder)
    run("flare cat out/ --limit 2 --columns data_id,image,caption --to table", folder)
    run('flare cat out/ --where "score > 0.98" --columns data_id,caption,score --to table', folder)
    row, key = len(photos) // 2, list(photos)[len(photos) // 2]
    run(f"flare cat out/ --rows {row} --raw image > near.jpg", folder)
    check(f"near.jpg is photograph {key}", (folder / "near.jpg").read_bytes() == photos[key])
    run("flare playlist out/ --out set.yaml", folder)
    run("flare cat set.yaml --tail 1 --columns data_id,caption", folder)

    print(f"\n# The same dataset over HTTP: {server.url}/out/")
    run(f"flare inspect {server.url}/out/", folder)
    answers, sent = server.answers, server.sent
    run(f"flare cat {server.url}/out/ --rows {row} --raw image > far.jpg", folder)
    check(f"far.jpg is photograph {key}", (folder / "far.jpg").read_bytes() == photos[key])
    whole = sum(path.stat().st_size for path in (folder / "out").iterdir())
    asked = server.sent - sent
    check(
        f"{server.answers - answers} responses with {asked:,} bytes; the dataset has {whole:,}",
        asked < len(photos[key]) + (1 << 20),
    )
    run(
        f"flare cat {server.url}/out/playlist.yaml --columns data_id,score --to parquet > far.parquet",
        folder,
    )
    check(
        "its keys equal the keys of the index",
        pq.read_table(folder / "far.parquet")["data_id"].to_pylist() == list(photos),
    )

    run("flare unpack out/ files/", folder)
    compare(folder, "files/index.jsonl", photos)


def compare(folder: Path, listing: str, photos: dict[str, bytes]) -> None:
    """Compare every unpacked file with its photograph."""
    rows = [json.loads(line) for line in (folder / listing).read_text().splitlines()]
    same = sum(
        (folder / "files" / row["image"]).read_bytes() == photos[row["data_id"]] for row in rows
    )
    check(
        f"{same} of {len(photos)} photographs are unpacked without a changed byte",
        same == len(photos) == len(rows),
    )


def main() -> None:
    """Create the folder, serve it and run the commands."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("folder", type=Path)
    parser.add_argument("--photos", type=int, default=500)
    args = parser.parse_args()
    began = time.monotonic()
    args.folder.mkdir(exist_ok=True)
    folder = args.folder.resolve()
    for name in MADE:
        path = folder / name
        shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)
    photos = make(folder, args.photos)
    size = sum(map(len, photos.values()))
    print(
        f"# {len(photos)} photographs, {size / 1e6:.1f} MB, drawn in {time.monotonic() - began:.0f} s; all files are in {args.folder}/"
    )
    with Server(folder) as server:
        write_index(folder / "index.parquet", list(photos), server.url)
        show(folder, photos, server)
    print(f"\nThe demo took {time.monotonic() - began:.0f} s. All files are in {args.folder}/.")


if __name__ == "__main__":
    main()
