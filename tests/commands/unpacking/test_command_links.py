"""unpack of an index: downloads become files named by their key; failures are listed."""

import io
import json
import os
import signal
import subprocess
import sys
import time
import wave
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flarecli import commands
from flarecli.errors import FormatError, ReachError, UsageError

JPEG = b"\xff\xd8\xff\xe0" + b"j" * 90
LIMITS = {"jobs": 4, "retries": 0, "timeout": 5, "deadline": 10}


@pytest.fixture
def index(tmp_path):
    """Write a local index with links to an image, a text that only its name identifies, and unknown
    bytes.
    """
    folder = tmp_path / "in"
    folder.mkdir()
    for name, data in (("one.jpeg", JPEG), ("two.txt", b"words"), ("three", b"\x01\x02")):
        (folder / name).write_bytes(data)
    columns = {
        "id": ["a", "b", "c"],
        "url": ["one.jpeg", "two.txt", "three"],
        "score": [0.5, float("nan"), None],
    }
    pq.write_table(pa.table(columns), folder / "i.parquet")
    return folder / "i.parquet"


def test_links_become_files_named_by_their_key(index, tmp_path):
    to = tmp_path / "f"
    done = commands.unpack(str(index), str(to), fetch=["url:file"], key="id", **LIMITS)
    assert {name: (to / name).read_bytes() for name in os.listdir(to) if name != "index.jsonl"} == {
        "a.jpg": JPEG,
        "b.txt": b"words",
        "c.bin": b"\x01\x02",
    }
    assert [json.loads(line) for line in (to / "index.jsonl").read_text().splitlines()] == [
        {"id": "a", "file": "a.jpg", "score": 0.5},
        {"id": "b", "file": "b.txt", "score": None},
        {"id": "c", "file": "c.bin", "score": None},
    ]
    assert (done.files, done.rows, done.bytes, done.failed) == (3, 3, len(JPEG) + 7, 0)


def test_the_files_of_a_list_of_addresses_are_unpacked(index, tmp_path):
    (index.parent / "list.lst").write_text("one.jpeg\nthree\n")
    source, to = str(index.parent / "list.lst"), tmp_path / "f"
    done = commands.unpack(source, str(to), input="lines", fetch=["name"], **LIMITS)
    assert (done.rows, done.files) == (2, 2)
    assert (to / "000000.jpg").read_bytes() == JPEG
    assert (to / "000001.bin").read_bytes() == b"\x01\x02"
    with pytest.raises(UsageError) as caught:
        commands.unpack(source, str(to), input="lines", format="mds", fetch=["name"], **LIMITS)
    assert str(caught.value) == "--input lines contradicts --format mds"


def test_a_failed_link_ends_the_unpack_or_is_listed(index, tmp_path):
    (index.parent / "two.txt").unlink()
    to = tmp_path / "f"
    with pytest.raises(ReachError) as caught:
        commands.unpack(str(index), str(to), fetch=["url"], **LIMITS)
    assert str(caught.value) == f"{index}[1]: b: two.txt: no such file or folder"
    assert (
        caught.value.hint == "Use --on-error skip to omit such rows and list them in failed.jsonl."
    )
    done = commands.unpack(
        str(index),
        str(to),
        fetch=["url"],
        key="id",
        on_error="skip",
        overwrite=to.exists(),
        **LIMITS,
    )
    assert (done.files, done.rows, done.failed, sum(done.reasons.values())) == (2, 2, 1, 1)
    assert sorted(os.listdir(to)) == ["a.jpg", "c.bin", "failed.jsonl", "index.jsonl"]
    (line,) = (to / "failed.jsonl").read_text().splitlines()
    assert [json.loads(line)[name] for name in ("row", "key", "column")] == [1, "b", "url"]


def test_an_unpack_of_links_is_resumed_at_its_end(index, tmp_path, monkeypatch):
    from flarecli.commands.unpacking import target as outlets

    rows = {"id": [str(i) for i in range(2500)], "url": ["one.jpeg"] * 2500}
    pq.write_table(pa.table(rows), index)
    put, count, to = outlets.Folder.write, iter(range(1500)), tmp_path / "f"
    with monkeypatch.context() as patch:

        def failing(self, name, data):
            if next(count, None) is None:
                raise ReachError("the disk is full", where=name)
            put(self, name, data)

        patch.setattr(outlets.Folder, "write", failing)
        with pytest.raises(ReachError):
            commands.unpack(str(index), str(to), fetch=["url"], **LIMITS)
    done = commands.unpack(str(index), str(to), fetch=["url"], resume=True, **LIMITS)
    assert (done.rows, done.files, done.resumed_rows >= 1024) == (2500, 2500, True)
    assert [
        json.loads(line)["id"] for line in (to / "index.jsonl").read_text().splitlines()
    ] == rows["id"]
    assert all((to / f"{i}.jpg").read_bytes() == JPEG for i in range(2500))


def test_duplicate_keys_are_refused_before_downloads(index, tmp_path):
    pq.write_table(pa.table({"id": ["a", "A"], "url": ["one.jpeg", "missing"]}), index)
    with pytest.raises(FormatError) as caught:
        commands.unpack(str(index), str(tmp_path / "f"), fetch=["url"], **LIMITS)
    assert str(caught.value) == f"{index}[1]: file name 'A.*' is also the name of selected row 0"
    assert os.listdir(tmp_path) == ["in"]


def test_columns_of_bytes_in_an_index_need_no_fetch(tmp_path):
    pq.write_table(
        pa.table(
            {"id": [1, 2], "image": [JPEG, JPEG], "when": pa.array([0, 1], pa.timestamp("s"))}
        ),
        tmp_path / "i.parquet",
    )
    commands.unpack(str(tmp_path / "i.parquet"), str(tmp_path / "f"), where="id > 1")
    assert (tmp_path / "f" / "2.jpg").read_bytes() == JPEG
    assert (
        tmp_path / "f" / "index.jsonl"
    ).read_text() == '{"id": 2, "image": "2.jpg", "when": "1970-01-01 00:00:01"}\n'


def test_the_command_line_downloads_names_by_key_and_resumes(web, tmp_path, capfd):
    from flarecli.__main__ import main

    names = [f"id{i:02d}" for i in range(40)]
    for i in range(40):
        web.file(f"/p/{i}", JPEG + bytes([i]))
    gone = web.pages.pop("/p/30")
    pq.write_table(
        pa.table({"data_id": names, "data_url": [web.url(f"/p/{i}") for i in range(40)]}),
        tmp_path / "index.parquet",
    )
    line = [
        "unpack",
        str(tmp_path / "index.parquet"),
        str(tmp_path / "files"),
        "--fetch",
        "data_url",
        "--key",
        "data_id",
        "--jobs",
        "10",
        "--allow-private",
    ]
    assert main([*line, "--retries", "0"]) == 3
    output = capfd.readouterr()
    assert output.err.splitlines()[-2:] == [
        f"error: {tmp_path}/index.parquet[30]: id30: {web.url('/p/30')}: 404 Not Found",
        "hint: Use --on-error skip to omit such rows and list them in failed.jsonl.",
    ]
    web.pages["/p/30"] = gone
    assert main([*line, "--resume"]) == 0
    result = {
        name: (tmp_path / "files" / name).read_bytes()
        for name in os.listdir(tmp_path / "files")
        if name != "index.jsonl"
    }
    assert result == {f"{name}.jpg": JPEG + bytes([i]) for i, name in enumerate(names)}
    assert [
        json.loads(text)["data_url"]
        for text in (tmp_path / "files/index.jsonl").read_text().splitlines()
    ] == [f"{name}.jpg" for name in names]


def test_a_killed_unpack_downloads_only_the_remaining_links(web, tmp_path):
    rows, index, to = 2000, tmp_path / "i.parquet", tmp_path / "files"
    addresses = [web.file(f"/p/{i}", JPEG + i.to_bytes(2)) for i in range(rows)]
    pq.write_table(
        pa.table({"data_id": [f"id{i:04d}" for i in range(rows)], "data_url": addresses}), index
    )
    line = [
        sys.executable,
        "-m",
        "flarecli",
        "unpack",
        str(index),
        str(to),
        "--fetch",
        "data_url",
        "--key",
        "data_id",
        "--resume",
        "-q",
        "--allow-private",
    ]
    process = subprocess.Popen(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    while process.poll() is None and not (
        to.is_dir() and sum(name.endswith(".jpg") for name in os.listdir(to)) > 1050
    ):
        time.sleep(0.002)
    process.send_signal(signal.SIGKILL)
    assert process.wait() == -signal.SIGKILL
    before = len(web.requests)
    assert (
        subprocess.run(line, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0
    )
    assert len(web.requests) - before < rows
    result = {name: (to / name).read_bytes() for name in os.listdir(to) if name != "index.jsonl"}
    assert result == {f"id{i:04d}.jpg": JPEG + i.to_bytes(2) for i in range(rows)}
    assert [
        json.loads(text)["data_url"] for text in (to / "index.jsonl").read_text().splitlines()
    ] == sorted(result)


def test_files_get_the_extension_of_their_content(tmp_path):
    media = Path(__file__).parents[3] / "fixtures" / "media"
    values = {
        path.name: (path.suffix[1:], path.read_bytes())
        for path in media.glob("*.*")
        if path.suffix != ".md"
    }
    for kind, extension in {
        "jpeg": "jpg",
        "tiff": "tif",
        **{one: one for one in ("png", "webp", "gif", "avif", "bmp")},
    }.items():
        out = io.BytesIO()
        Image.effect_noise((31, 17), 90).convert("RGB").save(out, kind)
        values[kind] = extension, out.getvalue()
    for kind, save in (("npy", np.save), ("npz", lambda out, x: np.savez(out, x=x))):
        out = io.BytesIO()
        save(out, np.arange(4))
        values[kind] = kind, out.getvalue()
    with wave.open(out := io.BytesIO(), "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(80))
    values["wav"] = "wav", out.getvalue()
    assert {extension for extension, _ in values.values()} >= {
        "mp4",
        "webm",
        "mkv",
        "mov",
        "wav",
        "flac",
        "mp3",
        "ogg",
        "m4a",
        "avif",
        "npz",
    }
    names = [name.replace(".", "_") for name in values]
    table = pa.table(
        {"id": names, "file": pa.array([data for _, data in values.values()], pa.binary())}
    )
    pq.write_table(table, tmp_path / "i.parquet")
    commands.unpack(str(tmp_path / "i.parquet"), str(tmp_path / "f"), key="id")
    result = {
        name: (tmp_path / "f" / name).read_bytes()
        for name in os.listdir(tmp_path / "f")
        if name != "index.jsonl"
    }
    assert result == {
        f"{name}.{extension}": data
        for name, (extension, data) in zip(names, values.values(), strict=True)
    }


def test_fixed_size_bytes_get_the_extension_of_their_content(tmp_path):
    values = pa.array([b"\xff\xd8\xff\xe0", b"abcd"], pa.binary(4))
    pq.write_table(pa.table({"id": ["a", "b"], "v": values}), tmp_path / "i.parquet")
    commands.unpack(str(tmp_path / "i.parquet"), str(tmp_path / "f"), index="none")
    assert sorted(os.listdir(tmp_path / "f")) == ["a.jpg", "b.bin"]
