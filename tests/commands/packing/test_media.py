"""pack with images: resized, measured and rejected images do not depend on threads, and match
Pillow.
"""

import io
import json
import os
import struct
import zlib

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image, ImageOps

from flarecli import commands, read
from flarecli.errors import ReachError, UsageError, ValueFitError
from tests.commands.packing.note_collector import NoteCollector
from tests.outputs import files_of


def saved(size, kind="jpeg"):
    out = io.BytesIO()
    Image.effect_noise(size, 120).convert("RGB").save(out, kind)
    return out.getvalue()


@pytest.fixture
def images(tmp_path):
    """Write an index and 30 images; return the folder and the bytes of the images."""
    folder = tmp_path / "in"
    (folder / "p").mkdir(parents=True)
    values = [saved((90 + i, 60)) for i in range(30)]
    for i, data in enumerate(values):
        (folder / f"p/{i:02d}.jpg").write_bytes(data)
    names = [f"p/{i:02d}.jpg" for i in range(30)]
    pq.write_table(
        pa.table({"id": [f"k{i}" for i in range(30)], "url": names}),
        folder / "i.parquet",
        row_group_size=7,
        write_page_checksum=True,
    )
    return folder, values


def pack(folder, out, **options):
    return commands.pack(
        str(folder / "i.parquet"),
        str(out),
        fetch=["url:image"],
        key="id",
        retries=0,
        **options,
    )


def rows_of(out):
    data = read.Dataset(read.select_streams(result := read.resolve(str(out))), result)
    return [row for batch in data.scan() for row in batch.to_pylist()]


def test_resized_images_are_those_of_pillow_in_row_order(images, tmp_path):
    folder, values = images
    done = pack(folder, tmp_path / "out", resize=32)
    result = rows_of(tmp_path / "out")
    assert (done.rows, [row["id"] for row in result]) == (30, [f"k{i}" for i in range(30)])
    for row, value in zip(result, values, strict=True):
        expected, out = (
            ImageOps.contain(Image.open(io.BytesIO(value)), (32, 32), Image.Resampling.BICUBIC),
            io.BytesIO(),
        )
        expected.save(out, "jpeg", quality=95)
        assert row["image"] == out.getvalue()


def test_the_bytes_do_not_depend_on_threads(images, tmp_path, monkeypatch):
    folder, _ = images
    options = {"resize": (40, 30), "resize_mode": "crop", "quality": 70, "media_info": True}
    pack(folder, tmp_path / "one", **options)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(1), raising=False)
    pack(folder, tmp_path / "two", **options)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: range(7), raising=False)
    monkeypatch.setattr("flarecli.commands.packing.media._AHEAD_BYTES", 1)
    pack(folder, tmp_path / "three", **options)
    assert files_of(tmp_path / "one") == files_of(tmp_path / "two") == files_of(tmp_path / "three")


def test_bytes_are_unchanged_without_media_options(images, tmp_path):
    folder, values = images
    pack(folder, tmp_path / "out", resize=200, min_size=60, max_aspect=2, media_info=True)
    result = rows_of(tmp_path / "out")
    assert [row["image"] for row in result] == values
    assert [(row["width"], row["height"], row["frames"], row["duration"]) for row in result] == [
        (90 + i, 60, 1, 0.0) for i in range(30)
    ]


def bomb(side):
    """Return a PNG with one bit per pixel, all zero."""

    def chunk(name, data):
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    row, packer = bytes(1 + (side + 7) // 8), zlib.compressobj(9)
    body = b"".join(packer.compress(row) for _ in range(side)) + packer.flush()
    return (
        b"\x89PNG\r\n\x1a\n"
        + chunk(b"IHDR", struct.pack(">IIBBBBB", side, side, 1, 0, 0, 0, 0))
        + chunk(b"IDAT", body)
        + chunk(b"IEND", b"")
    )


def test_rejected_images_are_failed_rows_with_a_reason(images, tmp_path):
    folder, values = images
    data = bomb(11_700)
    assert (len(data) // 1000, 3 * 11_700**2 // 10**6) == (
        16,
        410,
    )  # kilobytes, but megabytes as RGB
    for i, one in {
        3: data,
        5: b"junk",
        8: saved((90, 20)),
        11: saved((300, 64)),
        13: values[13][:900],
    }.items():
        (folder / f"p/{i:02d}.jpg").write_bytes(one)
    collector = NoteCollector()
    done = pack(
        folder,
        tmp_path / "out",
        resize=32,
        min_size=32,
        max_aspect=3,
        on_error="skip",
        progress=collector,
    )
    assert (done.rows, done.failed, done.reasons) == (25, 5, {"value": 5})
    reasons = {
        3: "11700×11700 pixels; the maximum is 67108864",
        5: "not an image in a supported format",
        8: "90×20 pixels; the shorter side must be at least 32",
        11: "300×64 pixels; the aspect ratio must be at most 3",
        13: "damaged jpeg: image file is truncated (0 bytes not processed)",
    }
    result = [json.loads(line) for line in (tmp_path / "out/failed.jsonl").read_text().splitlines()]
    kept = [one["reason"] for one in result]
    kept[-1] = kept[-1].partition(" (")[0] + " (0 bytes not processed)"
    assert kept == [
        f"{folder}/p/{i:02d}.jpg: {reason}".replace(f"{folder}/", "")
        for i, reason in reasons.items()
    ]
    assert [(one["row"], one["key"], one["column"], one["kind"]) for one in result] == [
        (i, f"k{i}", "image", "value") for i in reasons
    ]
    assert collector.notes == ["column 'image': 1 value is png, not jpeg: p/03.jpg"]
    with pytest.raises(ValueFitError) as caught:
        pack(folder, tmp_path / "all", resize=32)
    assert str(caught.value) == f"{folder}/i.parquet[3]: k3: p/03.jpg: {reasons[3]}"


def test_content_that_contradicts_its_extension_is_counted_or_fails(images, tmp_path):
    folder, _ = images
    for i in (2, 4, 9, 20):
        (folder / f"p/{i:02d}.jpg").write_bytes(saved((50, 50), "png"))
    collector = NoteCollector()
    assert pack(folder, tmp_path / "out", progress=collector).rows == 30
    assert collector.notes == [
        "column 'image': 4 values are png, not jpeg: p/02.jpg, p/04.jpg, p/09.jpg, …"
    ]
    with pytest.raises(ValueFitError) as caught:
        pack(folder, tmp_path / "strict", strict=True)
    assert (
        str(caught.value)
        == f"{folder}/i.parquet[2]: k2: p/02.jpg: content does not match the file extension: png, not jpeg"
    )
    assert (
        caught.value.hint == "Use --on-error skip to omit such rows and list them in failed.jsonl."
    )
    assert (
        pack(folder, tmp_path / "strict", strict=True, on_error="skip", overwrite=True).failed == 4
    )


def test_a_pack_is_resumed_only_with_the_same_media_options(images, tmp_path):
    folder, values = images
    (folder / "p/20.jpg").unlink()
    with pytest.raises(ReachError):
        pack(folder, tmp_path / "out", resize=(48, 32), shard_rows=5)
    (folder / "p/20.jpg").write_bytes(values[20])
    for options in (
        {"resize": 32},
        {"resize": (48, 32), "quality": 90},
        {"resize": (48, 32), "strict": True},
    ):
        with pytest.raises(UsageError):
            pack(folder, tmp_path / "out", resume=True, shard_rows=5, **options)
    assert (
        pack(folder, tmp_path / "out", resize=(48, 32), shard_rows=5, resume=True).resumed_rows
        == 15
    )
    pack(folder, tmp_path / "whole", resize=(48, 32), shard_rows=5)
    assert files_of(tmp_path / "out") == files_of(tmp_path / "whole")


def test_media_info_columns_have_the_name_of_their_column_if_names_are_used(images, tmp_path):
    folder, values = images
    table = pa.table(
        {"url": ["p/00.jpg"], "width": [7], "thumb": pa.array([values[1]], pa.binary())}
    )
    pq.write_table(table, folder / "t.parquet")
    commands.pack(
        str(folder / "t.parquet"),
        str(tmp_path / "out"),
        fetch=["url:image"],
        media_info=True,
        resize=45,
    )
    (row,) = rows_of(tmp_path / "out")
    assert {name: value for name, value in row.items() if name not in ("image", "thumb")} == {
        "width": 7,
        "image_width": 45,
        "image_height": 30,
        "image_frames": 1,
        "image_duration": 0.0,
        "thumb_width": 45,
        "thumb_height": 30,
        "thumb_frames": 1,
        "thumb_duration": 0.0,
    }
    pq.write_table(table.append_column("image_width", [[1]]), folder / "t.parquet")
    with pytest.raises(UsageError) as caught:
        commands.pack(
            str(folder / "t.parquet"), str(tmp_path / "no"), fetch=["url:image"], media_info=True
        )
    assert (str(caught.value), caught.value.hint) == (
        "two columns would be named 'image_width'",
        "Rename the column in the source, or omit --media-info.",
    )
    with pytest.raises(UsageError) as caught:
        commands.pack(str(folder / "i.parquet"), str(tmp_path / "no"), media_info=True)
    assert str(caught.value) == "--media-info: no column contains files"


def test_text_columns_are_not_processed_as_images(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for i in range(4):
        (folder / f"{i}.jpg").write_bytes(saved((80, 40)))
        (folder / f"{i}.txt").write_text(f"caption {i}")
        (folder / f"{i}.json").write_text("[1]")
    commands.pack(str(folder), str(tmp_path / "out"), resize=20, media_info=True)
    result = rows_of(tmp_path / "out")
    assert [(row["text"], row["json"], row["width"], row["height"]) for row in result] == [
        (f"caption {i}", "[1]", 20, 10) for i in range(4)
    ]


def test_a_dry_run_estimates_the_size_of_resized_images(images, tmp_path):
    folder, _ = images
    would = pack(folder, tmp_path / "out", resize=16, media_info=True, dry_run=True)
    done = pack(folder, tmp_path / "out", resize=16, media_info=True)
    assert (would.rows, would.shards, would.bytes, would.columns) == (
        done.rows,
        done.shards,
        done.bytes,
        done.columns,
    )


def test_an_empty_image_file_is_a_note_or_a_failed_row_with_strict(tmp_path):
    folder = tmp_path / "photos"
    folder.mkdir()
    (folder / "a.jpg").write_bytes(b"")
    (folder / "b.jpg").write_bytes(saved((9, 9), "jpeg"))
    (folder / "b.txt").write_bytes(b"")
    (folder / "a.txt").write_bytes(b"text")
    collector = NoteCollector()
    assert commands.pack(str(folder), str(tmp_path / "out"), progress=collector).rows == 2
    assert collector.notes == ["column 'image': 1 value is empty, not jpeg: a.jpg"]
    options = {"strict": True, "on_error": "skip"}
    done = commands.pack(str(folder), str(tmp_path / "strict"), **options)
    assert (done.rows, done.failed) == (1, 1)
    (failed,) = (tmp_path / "strict/failed.jsonl").read_text().splitlines()
    assert json.loads(failed)["reason"] == (
        "a.jpg: content does not match the file extension: empty, not jpeg"
    )
