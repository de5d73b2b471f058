"""Folders of images compared with Hugging Face's `imagefolder`: the same files, labels and
metadata.
"""

import io
import json

import pytest
from PIL import Image

from flarecli import commands, read

datasets = pytest.importorskip("datasets")


def picture(kind: str, width: int) -> bytes:
    out = io.BytesIO()
    Image.new("RGB", (width, 3), "teal").save(out, kind)
    return out.getvalue()


FILES = {
    "cat/1.jpg": picture("JPEG", 1),
    "cat/IMG_2023.01.01.JPEG": picture("JPEG", 2),
    "dog/1.png": picture("PNG", 3),
    "dog/2.PNG": picture("PNG", 4),
}


@pytest.fixture
def folder(tmp_path):
    for name, data in FILES.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    return tmp_path / "in"


def images(folder, cache, monkeypatch):
    """Return the rows that Hugging Face's imagefolder reads, with the bytes of each image."""
    monkeypatch.setattr(datasets.config, "HF_HUB_OFFLINE", True)
    data = datasets.load_dataset(
        "imagefolder", data_dir=str(folder), split="train", cache_dir=str(cache)
    )
    label = data.features.get("label")
    rows = []
    for row in data.cast_column("image", datasets.Image(decode=False)):
        with open(row.pop("image")["path"], "rb") as file:
            rows.append({**row, "image": file.read()})
        if label is not None:
            rows[-1]["label"] = label.int2str(rows[-1]["label"])
    return sorted(rows, key=lambda row: row["image"])


def packed(folder, out, *columns, **options):
    commands.pack(str(folder), str(out), **options)
    rows = read.open(str(out)).to_arrow().select(["image", *columns]).to_pylist()
    return sorted(rows, key=lambda row: row["image"])


def test_class_folders_are_the_labels_of_imagefolder(folder, tmp_path, monkeypatch):
    rows = packed(folder, tmp_path / "out", "label", folder_column="label")
    assert rows == images(folder, tmp_path / "cache", monkeypatch)


@pytest.mark.parametrize("suffix", ["csv", "jsonl"])
def test_metadata_is_joined_as_by_imagefolder(folder, tmp_path, monkeypatch, suffix):
    for below in ("cat", "dog"):
        names = [name[4:] for name in FILES if name.startswith(below)]
        rows = [{"file_name": name, "caption": f"a {below} {i}"} for i, name in enumerate(names)]
        lines = (
            ["file_name,caption", *(",".join(row.values()) for row in rows)]
            if suffix == "csv"
            else map(json.dumps, rows)
        )
        (folder / below / f"metadata.{suffix}").write_text("".join(f"{line}\n" for line in lines))
    rows = packed(folder, tmp_path / "out", "caption")
    assert rows == images(folder, tmp_path / "cache", monkeypatch)
