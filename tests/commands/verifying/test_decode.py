"""verify --decode: images are decoded completely, video and audio headers are checked, and findings
have byte ranges.
"""

import io
import struct
import tarfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flarecli import commands, formats, media
from flarecli.commands.verifying import decode as checks_values
from flarecli.commands.verifying.decode import HINT
from flarecli.model import Finding, Settings
from flarecli.progress import counted
from flarecli.read import resolve
from flarecli.write import Writer

MEDIA = Path(__file__).parents[3] / "fixtures" / "media"


def image(kind="jpeg", size=(60, 40)):
    out = io.BytesIO()
    Image.effect_noise(size, 50).convert("RGB").save(out, kind)
    return out.getvalue()


def packed(folder, values, encoding="jpeg", format="mds", name="image", **settings):
    with Writer(
        str(folder), columns={name: encoding}, format=format, settings=Settings(**settings)
    ) as writer:
        for value in values:
            writer.write({name: value})
    return folder


def findings_of(address, **options):
    return list(commands.verify(str(address), decode=True, **options))


def pillow_error(data):
    with pytest.raises((OSError, SyntaxError)) as caught:
        Image.open(io.BytesIO(data)).load()
    return str(caught.value).partition(" (")[0]


def spans_of(folder, name="starts"):
    (chunk, *_) = resolve([str(folder)])[0].streams[0]
    return formats.find(chunk.format).open_shard(chunk).layout[name].tolist()


JPEG, PNG, WEBP, GIF = (image(kind) for kind in ("jpeg", "png", "webp", "gif"))
BROKEN = PNG[:-300] + bytes([PNG[-300] ^ 255]) + PNG[-299:]


def test_complete_media_of_every_kind_have_no_findings(tmp_path):
    out = packed(tmp_path / "p", [JPEG, PNG, WEBP, GIF])
    assert findings_of(out) == []
    sounds = [
        (MEDIA / name).read_bytes()
        for name in ("whole.flac", "xing.mp3", "opus.ogg", "whole.webm", "whole.mp4", "whole.mov")
    ]
    assert findings_of(packed(tmp_path / "s", [*sounds, JPEG, b"", b"plain bytes"], "bytes")) == []


def test_a_damaged_image_is_reported_with_row_and_bytes_and_later_rows_are_decoded(
    tmp_path,
):
    out = packed(tmp_path / "out", [JPEG, JPEG[:-40], PNG, BROKEN, b"<html><body>", JPEG])
    findings = findings_of(out)
    starts = spans_of(out)
    shard = out / "shard.00000.mds"
    assert [one.message.partition(" (")[0] for one in findings] == [
        "column 'image': invalid jpeg: image file is truncated",
        f"column 'image': invalid jpeg: {pillow_error(BROKEN)}",
        "column 'image': expected jpeg, got html",
    ]
    places = [(f"{shard}[{row}]", "value", HINT, starts[row], starts[row + 1]) for row in (1, 3, 4)]
    assert [(one.where, one.kind, one.hint, one.start, one.stop) for one in findings] == places


def test_an_image_that_crashes_its_decoder_is_one_finding(tmp_path, monkeypatch):
    class Odd:
        def check(self, data):
            return "the decoder crashed (SIGSEGV)" if len(data) == len(JPEG) + 1 else ""

        def close(self):
            closed.append(1)

    closed = []
    monkeypatch.setattr(media, "Sandbox", Odd)
    out = packed(tmp_path / "out", [JPEG, JPEG + b"\0", JPEG])
    assert [(one.where, one.message) for one in findings_of(out)] == [
        (f"{out}/shard.00000.mds[1]", "column 'image': invalid jpeg: the decoder crashed (SIGSEGV)")
    ]
    assert closed == [1]


def test_each_image_of_a_list_is_decoded(tmp_path):
    def joined(*parts):
        return struct.pack(f"<{len(parts) + 1}I", len(parts), *map(len, parts)) + b"".join(parts)

    out = packed(tmp_path / "out", [[JPEG, JPEG], [JPEG, JPEG[:-40]]], "jpeg_array")
    assert joined(JPEG, JPEG) in (out / "shard.00000.mds").read_bytes()
    ((where, messages),) = [(one.where, one.message) for one in findings_of(out)]
    assert where == f"{out}/shard.00000.mds[1]"
    assert messages.startswith("column 'image': invalid jpeg_array: image file is truncated (")


@pytest.mark.parametrize(
    ("name", "cut", "messages"),
    [
        ("whole.mp4", 100, "damaged mp4: "),
        ("whole.flac", 30, "damaged flac: "),
        ("whole.mkv", 40, "damaged mkv: "),
        ("opus.ogg", 50, "damaged ogg: "),
    ],
)
def test_truncated_video_and_audio_headers_are_found_for_any_column_name(
    tmp_path, name, cut, messages
):
    out = packed(tmp_path / "out", [(MEDIA / name).read_bytes()[:cut], b"no medium"], "bytes")
    ((where, message),) = [(one.where, one.message) for one in findings_of(out)]
    assert where == f"{out}/shard.00000.mds[0]"
    assert message.startswith(f"column 'image': {messages}")


def test_a_tar_member_that_contradicts_its_extension_is_a_finding(tmp_path):
    path = tmp_path / "a.tar"
    members = [
        ("a.jpg", JPEG),
        ("a.mp3", b"not sound"),
        ("b.jpg", PNG),
        ("b.mp3", (MEDIA / "xing.mp3").read_bytes()),
        ("c.jpg", JPEG[:-40]),
    ]
    with tarfile.open(path, "w", format=tarfile.USTAR_FORMAT) as tar:
        for name, data in members:
            info = tarfile.TarInfo(name)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    findings = findings_of(path)
    assert [(one.where, one.message.partition(" (")[0]) for one in findings] == [
        (f"{path}[0]", "column 'mp3': expected mp3, got unknown bytes"),
        (f"{path}[2]", "column 'jpg': invalid jpeg: image file is truncated"),
    ]
    with tarfile.open(path) as tar:
        first, last = tar.getmember("a.jpg"), tar.getmember("a.mp3")
        assert findings[0].start == first.offset_data
        assert findings[0].stop == last.offset_data + last.size


def test_a_value_of_a_granular_shard_is_reported_with_its_bag(tmp_path):
    out = packed(tmp_path / "out", [JPEG, JPEG[:-40], JPEG], format="granular")
    (one,) = findings_of(out)
    (bag,) = out.rglob("image.bag")
    assert (one.where, one.start, one.stop) == (f"{bag}[1]", len(JPEG), 2 * len(JPEG) - 40)
    assert (one.address, one.row, one.column) == (str(bag), 1, "image")
    assert one.message.startswith("column 'image': invalid jpeg: image file is truncated (")


def test_an_unreadable_row_does_not_hide_other_findings(tmp_path):
    out = packed(tmp_path / "out", [JPEG, JPEG[:-40], JPEG, JPEG[:-40]])
    path, starts = out / "shard.00000.mds", spans_of(out)
    data = bytearray(path.read_bytes())
    data[starts[2] : starts[2] + 4] = b"\xff\xff\xff\x7f"  # size of the image
    path.write_bytes(data)
    (out / "playlist.yaml").unlink()
    (out / "index.json").unlink()
    rows = [(one.where, one.kind) for one in findings_of(path)]
    assert rows == [(f"{path}[1]", "value"), (f"{path}[2]", "format"), (f"{path}[3]", "value")]


def test_invalid_values_of_every_encoding_are_found(tmp_path):
    out = packed(tmp_path / "out", [{"a": 1}, [1]], "json", name="j")
    path = out / "shard.00000.mds"
    path.write_bytes(path.read_bytes().replace(b'{"a": 1}', b'{"a": 1!'))
    (sums, value) = findings_of(out)
    starts = spans_of(out)
    assert (sums.kind, value) == (
        "checksum",
        Finding(
            str(path),
            "value",
            "column 'j': not a valid json value (8 B)",
            sums.hint,
            row=0,
            column="j",
            start=starts[0],
            stop=starts[1],
        ),
    )


@pytest.mark.parametrize(
    "format", ["mds", "granular", "granular-refs", "webdataset", "csv", "json"]
)
def test_invalid_text_is_reported_once_for_each_row(tmp_path, format):
    out = packed(tmp_path / "out", [f"text number {i}" for i in range(9)], "str", format, "t")
    for path in out.rglob("*"):
        if path.is_file():
            data = path.read_bytes()
            path.write_bytes(
                data.replace(b"number 3", b"numb\xffr 3").replace(b"number 5", b"numb\xffr 5")
            )
    rows = [
        one.where.rpartition("[")[2] for one in findings_of(out) if one.kind in ("value", "format")
    ]
    assert rows == ["3]", "5]"]


def test_without_decode_no_process_is_started(tmp_path, monkeypatch):
    monkeypatch.setattr(checks_values.Sandbox, "check", None)
    assert list(commands.verify(str(packed(tmp_path / "out", [JPEG[:-40]])))) == []


def test_the_bytes_of_small_shards_are_reported(tmp_path):
    values = ["a", "bcd", "é" * 30]
    with Writer(str(tmp_path), columns={"t": "str"}, settings=Settings(shard_rows=1)) as writer:
        for value in values:
            writer.write({"t": value})
    (playlist,) = resolve(str(tmp_path))
    (stream,) = playlist.streams
    reported: list[int] = []
    for i in range(len(stream)):
        chunk = stream.chunk(i)
        form = formats.find(chunk.format or "")
        with counted(reported.append):
            shard = form.open_shard(chunk, stream.columns)
            before = sum(reported)
            assert list(checks_values.decode_values(form, shard, None, 10**9)) == []
        assert sum(reported) - before == len(values[i].encode())


@pytest.mark.parametrize("items", [["a", None], [1, None], [0.5, None]])
def test_nulls_in_lists_of_an_arrow_type_are_no_findings(tmp_path, items):
    pq.write_table(pa.table({"l": [items, None, []]}), tmp_path / "a.parquet")
    assert list(commands.verify(tmp_path / "a.parquet", decode=True)) == []


def test_text_in_a_parquet_list_that_is_not_utf8_is_a_finding(tmp_path):
    offsets = np.array([0, 1, 2], np.int32)
    text = pa.Array.from_buffers(
        pa.string(), 2, [None, pa.py_buffer(offsets), pa.py_buffer(b"a\xff")]
    )
    lists = pa.ListArray.from_arrays([0, 2], text)
    pq.write_table(pa.table({"l": lists}), tmp_path / "a.parquet")
    (finding,) = commands.verify(tmp_path / "a.parquet", decode=True)
    assert (finding.row, finding.column) == (0, "l")
