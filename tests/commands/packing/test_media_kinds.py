"""Inferred encodings of files: by their bytes, their names, and the encodings of the format."""

import io
import wave
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, features

from flarecli import commands, read
from flarecli.media import category_of, sniff
from tests.commands.packing.note_collector import NoteCollector

MEDIA = Path(__file__).parents[3] / "fixtures" / "media"
WHOLE = {
    name: (MEDIA / f"whole.{name}").read_bytes()
    for name in ("mp4", "webm", "mkv", "mov", "flac", "m4a")
}


def image(kind):
    out = io.BytesIO()
    Image.new("RGB", (8, 6), "teal").save(out, kind)
    return out.getvalue()


def sound():
    out = io.BytesIO()
    with wave.open(out, "wb") as file:
        file.setparams((1, 2, 8000, 0, "NONE", ""))
        file.writeframes(bytes(400))
    return out.getvalue()


def array(save, *args, **named):
    out = io.BytesIO()
    save(out, *args, **named)
    return out.getvalue()


VALUES = {
    "jpg": image("jpeg"),
    "png": image("png"),
    "webp": image("webp"),
    "gif": image("gif"),
    "tiff": image("tiff"),
    **({"avif": image("avif")} if features.check("avif") else {}),
    **WHOLE,
    "wav": sound(),
    "mp3": (MEDIA / "plain.mp3").read_bytes(),
    "ogg": (MEDIA / "vorbis.ogg").read_bytes(),
    "npy": array(np.save, np.arange(6.0).reshape(2, 3)),
    "npz": array(np.savez, latent=np.arange(6, dtype=np.float16)),
    "txt": "a café".encode(),
    "json": b'{"a": [1, null]}',
}
OWN = {
    "jpg": "jpeg",
    "png": "png",
    "txt": "str",
    "json": "json",
}  # in every format; all others are files: bytes
OF = {
    "mds": OWN,
    "granular": OWN | {"mp4": "mp4", "webm": "webm"},
    "granular-refs": OWN | {"mp4": "mp4", "webm": "webm"},
    "webdataset": OWN | {"mp4": "mp4", "webm": "webm"},
}


def encodings(done):
    return {column.name: column.encoding for column in done.columns}


def stored(out, name):
    (row,) = read.open(str(out)).rows([0], [name])
    return row[name]


@pytest.mark.parametrize(
    ("format", "extension"),
    [
        (format, extension)
        for format in OF
        for extension in VALUES
        if format == "mds" or extension in OF[format] or extension in ("txt", "json", "gif")
    ],
)
def test_links_files_and_values_with_the_same_content_have_the_same_kind(
    tmp_path, format, extension
):
    data = VALUES[extension]
    (tmp_path / "in").mkdir()
    (tmp_path / f"in/000.{extension}").write_bytes(data)
    (tmp_path / "i.csv").write_text(f"id,url\na,in/000.{extension}\n")
    expected = OF[format].get(extension, "bytes")
    done = commands.pack(
        str(tmp_path / "i.csv"),
        str(tmp_path / "linked"),
        fetch=["url:data"],
        key="id",
        format=format,
        strict=True,
    )
    assert encodings(done)["data"] == expected
    assert stored(tmp_path / "linked", "data") == data
    done = commands.pack(str(tmp_path / "in"), str(tmp_path / "folder"), format=format, strict=True)
    column = category_of(extension) or extension
    assert encodings(done)[column] == expected
    assert stored(tmp_path / "folder", column) == data
    pq.write_table(
        pa.table({"id": ["a"], "data": pa.array([data], pa.binary())}), tmp_path / "v.parquet"
    )
    done = commands.pack(
        str(tmp_path / "v.parquet"), str(tmp_path / "value"), key="id", format=format
    )
    assert encodings(done)["data"] == (
        "bytes" if extension in ("txt", "json") else expected
    )  # bytes without a name are not text
    assert stored(tmp_path / "value", "data") == data


@pytest.mark.parametrize("extension", VALUES)
def test_each_kind_is_detected_by_its_first_bytes(extension):
    known = {"jpg": "jpeg", "txt": None, "json": None, "m4a": "m4a", "mov": "mov"}
    assert sniff(VALUES[extension][:512]) == known.get(extension, extension)


def test_text_that_starts_like_a_magic_number_is_text(tmp_path):
    (tmp_path / "i.csv").write_text("url\nx.txt\n")
    (tmp_path / "x.txt").write_text("ID3 tags name a song")
    done = commands.pack(
        str(tmp_path / "i.csv"), str(tmp_path / "out"), fetch=["url:data"], strict=True
    )
    assert encodings(done) == {"data": "str"}


@pytest.mark.parametrize(
    ("name", "encoding"),
    [("x.mov", "bytes"), ("x.m4a", "bytes"), ("x.mkv", "bytes"), ("x", "mp4"), ("x.mp4", "mp4")],
)
def test_a_file_with_the_extension_of_another_container_is_not_a_video(tmp_path, name, encoding):
    """Containers of one family start alike: only a file with the extension mp4, or without one, is
    mp4.
    """
    (tmp_path / "i.csv").write_text(f"url\n{name}\n")
    (tmp_path / name).write_bytes(VALUES["mp4"])
    done = commands.pack(
        str(tmp_path / "i.csv"), str(tmp_path / "out"), fetch=["url:data"], format="granular"
    )
    assert encodings(done) == {"data": encoding}


@pytest.mark.parametrize("extension", sorted(set(VALUES) - {"txt", "json"}))
def test_content_that_contradicts_its_name_is_a_note_or_a_failed_row_with_strict(
    tmp_path, extension
):
    other = "webp" if extension == "jpg" else "jpg"
    (tmp_path / "i.csv").write_text(f"id,url\na,1.{other}\nb,2.{other}\n")
    (tmp_path / f"1.{other}").write_bytes(VALUES[other])
    (tmp_path / f"2.{other}").write_bytes(VALUES[extension])
    result, promised = sniff(VALUES[extension][:512]), sniff(VALUES[other][:512])
    collector = NoteCollector()
    done = commands.pack(
        str(tmp_path / "i.csv"),
        str(tmp_path / "out"),
        fetch=["url:data"],
        key="id",
        progress=collector,
    )
    assert (done.rows, collector.notes) == (
        2,
        [f"column 'data': 1 value is {result}, not {promised}: 2.{other}"],
    )
    done = commands.pack(
        str(tmp_path / "i.csv"),
        str(tmp_path / "strict"),
        fetch=["url:data"],
        key="id",
        strict=True,
        on_error="skip",
    )
    assert (done.rows, dict(done.reasons)) == (1, {"value": 1})
