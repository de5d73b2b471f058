"""Tar headers compared with Python's tarfile and GNU tar, and damage."""

import io
import itertools
import random
import shutil
import subprocess
import tarfile
from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from flarecli.errors import FormatError, ValueFitError
from flarecli.formats import byte_ranges
from flarecli.formats.webdataset import tar
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore
from tests.properties import examples

FORMATS = [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT]
names = st.text(
    st.characters(codec="utf-8", exclude_characters="\0", exclude_categories=["Cs"]),
    min_size=1,
    max_size=60,
).flatmap(
    lambda text: st.integers(1, 6).map(lambda times: "/".join([text.strip("/") or "x"] * times))
)


def info(name, size=0, **fields):
    one = tarfile.TarInfo(name)
    one.size = size
    for field, value in fields.items():
        setattr(one, field, value)
    return one


def made(files, format=tarfile.PAX_FORMAT, **how):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, **how) as archive:
        for name, data in files:
            one = name if isinstance(name, tarfile.TarInfo) else info(name, len(data))
            archive.addfile(one, io.BytesIO(data))
    return out.getvalue()


def sources(data):
    at = Location(MemoryStore({"t.tar": data}), "t.tar")
    rng = random.Random(1)
    cuts = sorted({0, len(data), *(rng.randrange(len(data) + 1) for _ in range(9))})
    return [
        byte_ranges.MappedSource(memoryview(data)),
        byte_ranges.RangeSource(at, len(data)),
        tar.Blocks(data[a:b] for a, b in itertools.pairwise(cuts)),
    ]


def read(source, data, seen=None):
    return [
        (name.decode("utf-8", "surrogateescape"), data[start : start + size])
        for name, start, size in tar.members(source, "t.tar", seen)
    ]


def message(data, source=byte_ranges.MappedSource):
    with pytest.raises(FormatError) as caught:
        list(tar.members(source(memoryview(data)), "t.tar"))
    return str(caught.value)


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(names, st.binary(max_size=1300)), max_size=8), st.sampled_from(FORMATS))
def test_tars_of_tarfile_are_read(files, format):
    try:
        data = made(files, format)
    except ValueError:
        return  # the name does not fit ustar
    for source in sources(data):
        assert read(source, data) == files


@settings(max_examples=examples(150), deadline=None)
@given(st.lists(st.tuples(names, st.binary(max_size=1300)), max_size=8))
def test_written_tars_are_read_by_tarfile(files):
    data = (
        b"".join(
            tar.header(name.encode(), len(body)) + body.ljust(tar.padded(len(body)), b"\0")
            for name, body in files
        )
        + tar.END
    )
    assert read(byte_ranges.MappedSource(memoryview(data)), data) == files
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        assert [(one.name, archive.extractfile(one).read()) for one in archive if one.isreg()] == [
            (name.rstrip("/"), body) for name, body in files
        ]


@pytest.mark.parametrize(
    "name",
    [
        "a",
        "d/a.jpg",
        "x" * 100,
        "x" * 101,
        "d" * 155 + "/" + "n" * 100,
        "d" * 156 + "/" + "n" * 99,
        "d/" * 100 + "n",
        "é.txt",
        "y" * 5000,
    ],
)
def test_headers_equal_those_of_tarfile(name):
    one = info(name, 12345, mode=0o444)
    try:
        wanted = one.tobuf(tarfile.USTAR_FORMAT, "ascii")
    except (ValueError, UnicodeEncodeError):
        wanted = one.tobuf(tarfile.PAX_FORMAT)
    assert tar.header(name.encode(), 12345) == wanted


@given(
    st.lists(
        st.tuples(st.text("abc/._-0", min_size=1, max_size=100), st.integers(0, 8**11 - 1)),
        min_size=1,
        max_size=20,
    )
)
def test_headers_built_together_equal_headers_built_one_by_one(files):
    fields = np.frombuffer(
        b"".join(name.encode().ljust(100, b"\0") for name, _ in files), np.uint8
    ).reshape(-1, 100)
    many = tar.headers(fields, np.array([size for _, size in files]))
    assert many.tobytes() == b"".join(tar.header(name.encode(), size) for name, size in files)


def test_sizes_too_large_for_a_header_are_refused():
    with pytest.raises(
        ValueFitError,
        match="^member is 8589934592 bytes; a tar header allows 8589934591$",
    ):
        tar.header(b"a", 8**11)


@pytest.mark.skipif(not shutil.which("tar"), reason="no tar command")
@pytest.mark.parametrize("format", ["v7", "oldgnu", "gnu", "ustar", "posix"])
def test_tars_of_the_tar_command_are_read(tmp_path, format):
    rng = random.Random(format)
    files = {
        "a.txt": b"",
        "d/b.txt": rng.randbytes(511),
        "d/c.bin": rng.randbytes(512),
        "d/e/é.txt": rng.randbytes(5000),
    }
    if format not in ("v7", "ustar"):
        files["d/" + "long" * 30 + "/" + "name" * 20] = b"long"
    for name, data in files.items():
        (tmp_path / "in" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "in" / name).write_bytes(data)
    (tmp_path / "in" / "d" / "link").symlink_to("b.txt")
    subprocess.run(
        ["tar", "-cf", "t.tar", f"--format={format}", "--sort=name", "-C", "in", "a.txt", "d"],
        cwd=tmp_path,
        check=True,
    )
    data, seen = (tmp_path / "t.tar").read_bytes(), tar.Seen(padding=[])
    assert dict(read(byte_ranges.MappedSource(memoryview(data)), data, seen)) == files
    assert seen.skipped == Counter(
        {"folder": 2 + (format not in ("v7", "ustar")), "symbolic link": 1}
    )
    assert seen.padding == []


@pytest.mark.skipif(not shutil.which("tar"), reason="no tar command")
def test_written_tars_are_read_by_the_tar_command(tmp_path):
    names = ["a.txt", "d" * 90 + "/" + "e" * 90, "é" * 90, "f" * 200]
    (tmp_path / "t.tar").write_bytes(
        b"".join(tar.header(name.encode(), 3) + b"abc".ljust(512, b"\0") for name in names)
        + tar.END
    )
    listed = subprocess.run(
        ["tar", "-tf", "t.tar", "--quoting-style=literal"],
        cwd=tmp_path,
        check=True,
        capture_output=True,
        text=True,
        env={"LC_ALL": "C.UTF-8"},
    )
    assert listed.stdout.splitlines() == names
    assert listed.stderr == ""


def test_sizes_in_base_256_and_without_leading_zeros_are_read():
    data = bytearray(made([("a", b"x" * 5)], tarfile.USTAR_FORMAT))
    for field in (
        b"\x80" + (5).to_bytes(11, "big"),
        b"          5\0",
        b"5 \0\0\0\0\0\0\0\0\0\0",
        b"00000000005 ",
    ):
        data[124:136] = field
        signed(data)
        assert read(byte_ranges.MappedSource(memoryview(data)), bytes(data)) == [("a", b"x" * 5)]


def signed(data, at=0, total=None):
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % (sum(data[at : at + 512]) if total is None else total)
    return data


def test_checksums_of_signed_bytes_are_accepted():
    data = signed(bytearray(made([("é", b"")], tarfile.GNU_FORMAT)))
    total = sum(byte - 256 * (byte > 127) for byte in data[:148] + b" " * 8 + data[156:512])
    assert read(byte_ranges.MappedSource(memoryview(signed(data, 0, total))), bytes(data)) == [
        ("é", b"")
    ]


def test_links_folders_and_devices_are_skipped_and_counted():
    kinds = [
        tarfile.LNKTYPE,
        tarfile.SYMTYPE,
        tarfile.CHRTYPE,
        tarfile.BLKTYPE,
        tarfile.DIRTYPE,
        tarfile.FIFOTYPE,
    ]
    data = made(
        [(info(f"n{kind.decode()}", type=kind, linkname="l" * 150), b"") for kind in kinds]
        + [("file", b"1")],
        tarfile.GNU_FORMAT,
    )
    seen = tar.Seen()
    assert read(byte_ranges.MappedSource(memoryview(data)), data, seen) == [("file", b"1")]
    assert seen.skipped == Counter(
        {"hard link": 1, "symbolic link": 1, "device": 2, "folder": 1, "FIFO": 1}
    )


def test_global_pax_records_apply_until_they_are_replaced():
    data = made(
        [("a", b"1"), (info("b", 1, pax_headers={"path": "own"}), b"2")],
        pax_headers={"path": "shared", "comment": "x"},
    )
    assert [name for name, _ in read(byte_ranges.MappedSource(memoryview(data)), data)] == [
        "shared",
        "own",
    ]


def test_an_empty_pax_record_removes_the_field():
    data = made([(info("a", 1, pax_headers={"path": ""}), b"1")])
    assert read(byte_ranges.MappedSource(memoryview(data)), data) == [("a", b"1")]
    both = made(
        [("a", b"1"), (info("b", 1, pax_headers={"path": ""}), b"2")],
        pax_headers={"path": "shared"},
    )
    assert [name for name, _ in read(byte_ranges.MappedSource(memoryview(both)), both)] == [
        "shared",
        "b",
    ]


def changed(data, at, new, sign=None):
    data = bytearray(data)
    data[at : at + len(new)] = new
    return bytes(signed(data, sign)) if sign is not None else bytes(data)


GOOD = made([("one.txt", b"1" * 600), ("two.txt", b"2")], tarfile.USTAR_FORMAT)
LONG = made([("é" * 9, b"1")])


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"", "data ends at byte 0, without an end marker"),
        (GOOD[:100], "data ends at byte 100, without an end marker"),
        (GOOD[:1000], "the member at byte 0 is 600 bytes; the file ends at byte 1000"),
        (GOOD[:1200], "data ends at byte 1200, inside a member"),
        (GOOD[:1536], "data ends at byte 1536, without an end marker"),
        (GOOD[:2560], "data ends at byte 2560, without an end marker"),
        (GOOD + b"x", "unexpected data after the end marker, from byte 10240"),
        (changed(GOOD, 3000, b"\1"), "header checksum mismatch at byte 2560"),
        (changed(GOOD, 4000, b"\1"), "unexpected data after the end marker, from byte 4000"),
        (changed(GOOD, 1537, b"\1"), "header checksum mismatch at byte 1536"),
        (
            changed(GOOD, 124, b"99999999999\0", 0),
            "invalid size of the member at byte 0: b'99999999999\\x00'",
        ),
        (
            changed(GOOD, 124, b"77777777777\0", 0),
            "the member at byte 0 is 8589934591 bytes; the file ends at byte 10240",
        ),
        (
            changed(GOOD, 124, b"\x80" + b"\xff" * 11, 0),
            "invalid size of the member at byte 0: b'\\x80" + "\\xff" * 11 + "'",
        ),
        (
            changed(GOOD, 124, b"\xff" * 12, 0),
            "invalid size of the member at byte 0: b'" + "\\xff" * 12 + "'",
        ),
        (
            changed(GOOD, 124, b"-0000000001\0", 0),
            "invalid size of the member at byte 0: b'-0000000001\\x00'",
        ),
        (changed(GOOD, 156, b"S", 0), "the member at byte 0 is a sparse file"),
        (changed(GOOD, 156, b"M", 0), "unsupported type b'M' of the member at byte 0"),
        (changed(GOOD, 156, b"1", 0), "the hard link at byte 0 has 600 bytes of data; expected 0"),
        (changed(GOOD, 156, b"5", 0), "the folder at byte 0 has 600 bytes of data; expected 0"),
        (changed(GOOD, 0, bytes(7), 0), "the member at byte 0 has no name"),
        (changed(LONG, 512, b"99"), "byte 512: invalid PAX record at byte 0"),
        (changed(LONG, 512, b"x "), "byte 512: invalid PAX record at byte 0"),
        (changed(LONG, 523, b"\0"), "byte 512: the PAX field path contains a NUL"),
        (
            changed(GOOD, 124, b"00007777777\0", 0),
            "the member at byte 0 is 2097151 bytes; the file ends at byte 10240",
        ),
        (changed(GOOD, 156, b"x", 0), "byte 512: invalid PAX record at byte 0"),
    ],
)
def test_damage_is_reported_with_its_byte(data, said):
    assert message(data) == f"t.tar: {said}"


def test_a_sparse_file_of_pax_is_refused():
    data = made([(info("a", 1, pax_headers={"GNU.sparse.major": "1"}), b"1")])
    assert message(data) == "t.tar: byte 512: sparse files are not supported"


def test_a_pax_size_is_used_and_compared_with_the_file():
    sized = made([(info("a", 1, pax_headers={"size": "1025"}), b"1")])
    assert [len(body) for _, body in read(byte_ranges.MappedSource(memoryview(sized)), sized)] == [
        1025
    ]
    assert (
        message(made([(info("a", 1, pax_headers={"size": "9" * 18}), b"1")]))
        == f"t.tar: the member at byte 1024 is {'9' * 18} bytes; the file ends at byte 10240"
    )
    assert (
        message(made([(info("a", 1, pax_headers={"size": "-1"}), b"1")]))
        == "t.tar: invalid size of the member at byte 1024: b'-1'"
    )


def test_pax_records_above_the_maximum_size_are_not_read():
    data = made([(info("a", 1, pax_headers={"comment": "x" * (1 << 20)}), b"1")])
    assert message(data).endswith("bytes; the maximum is 1048576")


def test_pax_records_without_a_member_are_refused():
    data = LONG[:1024] + tar.END
    assert message(data) == "t.tar: no member follows the PAX or GNU header before byte 1024"


def test_one_block_of_zeros_is_an_end_marker():
    seen = tar.Seen()
    assert read(byte_ranges.MappedSource(memoryview(GOOD[:3072])), GOOD, seen) == [
        ("one.txt", b"1" * 600),
        ("two.txt", b"2"),
    ]
    assert seen.end == 512


def test_padding_that_is_not_zeros_is_recorded_on_request():
    data = changed(GOOD, 1300, b"x")
    for source in sources(data):
        seen = tar.Seen(padding=[])
        assert len(read(source, data, seen)) == 2
        assert seen.padding == [1112]


@pytest.mark.parametrize("kind", range(3))
def test_every_flipped_bit_of_a_header_is_detected(kind):
    data = made([("a.txt", b"1" * 5), ("b.txt", b"")], tarfile.USTAR_FORMAT)[:3072]
    wanted = read(byte_ranges.MappedSource(memoryview(data)), data)
    for byte in [*range(512), *range(1024, 3072)]:
        for bit in range(8):
            new = changed(data, byte, bytes([data[byte] ^ 1 << bit]))
            try:
                found = read(sources(new)[kind], new)
            except FormatError:
                continue
            assert found == wanted
            assert byte % 512 in range(
                148, 156
            )  # the bytes around the digits of the checksum are not in the checksum
