"""Tar headers at their limits, compared with Python's tarfile."""

import io
import itertools
import tarfile
from collections import Counter

import pytest

from flarecli.errors import FormatError
from flarecli.formats import byte_ranges
from flarecli.formats.webdataset import tar
from flarecli.formats.webdataset.scan import read_table
from flarecli.storage import Location
from flarecli.storage.memory import MemoryStore


def made(files, format=tarfile.PAX_FORMAT, **how):
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=format, **how) as archive:
        for one, data in files:
            if not isinstance(one, tarfile.TarInfo):
                one = tarfile.TarInfo(one)
                one.size = len(data)
            archive.addfile(one, io.BytesIO(data))
    return out.getvalue()


def signed(data, at, field, new):
    """Return data with other bytes at `field` of the header at byte `at`, and a valid checksum."""
    data = bytearray(data)
    data[at + field : at + field + len(new)] = new
    data[at + 148 : at + 156] = b" " * 8
    data[at + 148 : at + 156] = b"%06o\0 " % sum(data[at : at + 512])
    return bytes(data)


def block(name, size, kind=b"0"):
    """Return a header of tarfile, of any kind and size."""
    one = tarfile.TarInfo(name)
    one.size, one.type = size, kind
    return one.tobuf(tarfile.GNU_FORMAT)


def sources(data):
    at = Location(MemoryStore({"t.tar": data}), "t.tar")
    blocks = (data[start : start + 700] for start in range(0, len(data), 700))
    return [
        byte_ranges.MappedSource(memoryview(data)),
        byte_ranges.RangeSource(at, len(data)),
        tar.Blocks(blocks),
    ]


def read(data, kind=0, seen=None):
    return [
        (name.decode(), data[start : start + size])
        for name, start, size in tar.members(sources(data)[kind], "t.tar", seen)
    ]


def message(data, kind=0):
    with pytest.raises(FormatError) as caught:
        read(data, kind)
    return str(caught.value)


def tarfiles(data):
    with tarfile.open(fileobj=io.BytesIO(data)) as archive:
        return [(one.name, archive.extractfile(one).read()) for one in archive if one.isfile()]


EVERY = pytest.mark.parametrize("kind", range(3))


@EVERY
def test_contiguous_files_are_read_as_files(kind):
    data = signed(made([("a.txt", b"one"), ("b.txt", b"two")]), 0, 156, b"7")
    assert read(data, kind) == tarfiles(data) == [("a.txt", b"one"), ("b.txt", b"two")]


@EVERY
def test_a_pax_path_replaces_name_and_prefix(kind):
    name = "d" * 120 + "/" + "n" * 90 + ".txt"
    whole = made([(name, b"one")], tarfile.USTAR_FORMAT)
    record = b"17 path=long.txt\n"
    data = block("x", len(record), b"x") + record.ljust(512, b"\0") + whole
    assert read(whole, kind) == [(name, b"one")]
    assert read(data, kind) == tarfiles(data) == [("long.txt", b"one")]


@EVERY
def test_the_prefix_is_used_only_in_ustar_headers(kind):
    data = signed(
        made([("a.txt", b"one")], tarfile.GNU_FORMAT), 0, 345, b"12345670123 "
    )  # the field is a time in old GNU headers (tar.h)
    assert read(data, kind) == [("a.txt", b"one")]


@EVERY
def test_a_volume_label_is_skipped(kind):
    seen = tar.Seen()
    data = block("volume", 5, b"V") + b"label".ljust(512, b"\0") + made([("a.txt", b"one")])
    assert read(data, kind, seen) == [("a.txt", b"one")]
    assert seen.skipped == Counter({"label": 1})


@EVERY
def test_pax_records_of_the_maximum_size_are_read(kind):
    for size, taken in ((1 << 20, True), ((1 << 20) + 1, False)):
        record = b"%d path=named.txt\n" % 18
        record += b"%d comment=" % (size - len(record)) + b"x" * (size - len(record) - 17) + b"\n"
        data = (
            block("x", size, b"x")
            + record.ljust(tar.padded(size), b"\0")
            + made([("a.txt", b"one")])
        )
        assert len(record) == size
        if taken:
            assert read(data, kind) == tarfiles(data) == [("named.txt", b"one")]
        else:
            assert (
                message(data, kind)
                == f"t.tar: the PAX or GNU header at byte 0 is {size} bytes; the maximum is 1048576"
            )


@EVERY
def test_the_long_name_of_a_link_is_not_used_for_a_member(kind):
    data = (
        block("././@LongLink", 4, b"K")
        + b"link".ljust(512, b"\0")
        + made([("a.txt", b"one")], tarfile.GNU_FORMAT)
    )
    assert read(data, kind) == tarfiles(data) == [("a.txt", b"one")]


@EVERY
def test_pax_records_of_old_writers_are_used(kind):
    one = tarfile.TarInfo("a.txt")
    one.size, one.pax_headers = 3, {"path": "b.txt"}
    data = signed(made([(one, b"one")]), 0, 156, b"X")
    assert read(data, kind) == tarfiles(data) == [("b.txt", b"one")]


@EVERY
def test_pax_sizes_have_at_most_18_digits(kind):
    for text, said in (
        ("9" * 18, None),
        ("0" * 17 + "3", "read"),
        ("0" * 18 + "3", "refused"),
        ("+3", "refused"),
        (" 3", "refused"),
    ):
        one = tarfile.TarInfo("a.txt")
        one.size, one.pax_headers = 3, {"size": text}
        data = made([(one, b"one")])
        if said == "read":
            assert read(data, kind) == [("a.txt", b"one")]
        elif said:
            assert (
                message(data, kind)
                == f"t.tar: invalid size of the member at byte 1024: {text.encode()!r}"
            )
        else:
            wanted = (
                f"t.tar: the member at byte 1024 is {text} bytes; the file ends at byte {len(data)}"
            )
            assert message(data, kind) == (
                wanted if kind < 2 else f"t.tar: data ends at byte {len(data)}, inside a member"
            )


@EVERY
def test_a_size_is_in_base_256_only_if_its_first_bit_is_set(kind):
    data = signed(made([("a.txt", b"one")]), 0, 124, b"\x7f" + bytes(10) + b"\x03")
    assert message(data, kind) == f"t.tar: invalid size of the member at byte 0: {data[124:136]!r}"


@EVERY
def test_bytes_far_after_the_end_marker_are_reported(kind):
    whole = made([("a.txt", b"one")])
    for far in (0, 1, (1 << 20) - 1, 1 << 20, (5 << 20) + 7):
        data = whole + bytes(far) + b"x" + bytes(600)
        assert (
            message(data, kind)
            == f"t.tar: unexpected data after the end marker, from byte {len(whole) + far}"
        )
    seen = tar.Seen()
    assert read(whole + bytes(5 << 20), kind, seen) == [("a.txt", b"one")]
    assert seen.end == len(whole) - 1024 + (5 << 20)


@EVERY
@pytest.mark.parametrize("cut", range(0, 1537, 32))
def test_truncated_pax_records_are_reported(kind, cut):
    record = b"17 path=long.txt\n" + b"800 comment=" + b"x" * 787 + b"\n"
    data = (block("x", len(record), b"x") + record.ljust(1024, b"\0") + made([("a.txt", b"one")]))[
        :cut
    ]
    if cut < 512:
        wanted = f"data ends at byte {cut}, without an end marker"
    elif kind < 2 and cut < 512 + len(record):
        wanted = f"the member at byte 0 is {len(record)} bytes; the file ends at byte {cut}"
    else:
        wanted = f"data ends at byte {cut}, {'without an end marker' if cut == 1536 else 'inside a member'}"
    assert message(data, kind) == f"t.tar: {wanted}"


@EVERY
def test_a_member_that_ends_with_the_file_is_read_completely(kind):
    whole = made([("a.txt", b"x" * 512)])[:1024]
    assert message(whole, kind) == "t.tar: data ends at byte 1024, without an end marker"
    wanted = (
        "the member at byte 0 is 512 bytes; the file ends at byte 1023"
        if kind < 2
        else "data ends at byte 1023, inside a member"
    )
    assert message(whole[:1023], kind) == f"t.tar: {wanted}"


def test_names_that_tarfile_loses_are_kept_in_pax_records():
    for name in ("/" + "n" * 100, "d" * 155 + "/"):
        data = tar.header(name.encode(), 3) + b"one".ljust(512, b"\0") + tar.END
        assert (read(data), data[:14]) == ([(name, b"one")], b"././@PaxHeader")


@pytest.mark.parametrize(
    "name", ["d" * 154 + "/" + "n" * 100, "d" * 155 + "/n", "d" * 99 + "/" + "/" * 10 + "n"]
)
def test_names_of_the_maximum_length_are_split_like_tarfile(name):
    one = tarfile.TarInfo(name)
    one.size, one.mode = 5, 0o444
    try:
        wanted = one.tobuf(tarfile.USTAR_FORMAT, "ascii")
    except ValueError:
        wanted = one.tobuf(tarfile.PAX_FORMAT)
    assert tar.header(name.encode(), 5) == wanted


@pytest.mark.parametrize("length", [*range(80, 120), *range(980, 1000), *range(9975, 9995)])
def test_the_length_of_a_pax_record_includes_its_own_digits(length):
    name = "é" + "n" * length
    data = tar.header(name.encode(), 3) + b"one".ljust(512, b"\0") + tar.END
    assert tarfiles(data) == read(data) == [(name, b"one")]


def test_members_of_a_large_block_are_not_copied():
    data = bytes(range(256)) * 40
    source = tar.Blocks([data, data])
    for start in (0, 512, 700, 5000):
        assert source.window(start, 512).obj is data
        assert bytes(source.window(start, 512)[:512]) == data[start : start + 512]
    assert bytes(source.window(10_000, 600)[:600]) == (data + data)[10_000:10_600]
    assert bytes(source.window(10_100, 20_000)) == (data + data)[10_100:]
    assert bytes(source.window(30_000, 1)) == b""


@pytest.mark.parametrize("size", [1, 511, 512, 513, 5000])
def test_windows_of_a_stream_are_correct_for_any_block_sizes(size):
    data = bytes(byte % 251 for byte in range(20_000))
    for need in (0, 1, 512, 3000):
        source = tar.Blocks(data[start : start + size] for start in range(0, len(data), size))
        for start in itertools.accumulate([0, 1, 510, 512, 0, 4000, 1, 9000, 5900, 500]):
            view = bytes(source.window(start, need))
            assert len(view) >= min(need, max(0, len(data) - start))
            assert data[start : start + len(view)] == view


# -- unusual headers between ordinary ones


def linked(name):
    one = tarfile.TarInfo(name)
    one.type, one.linkname = tarfile.SYMTYPE, "a.txt"
    return one


@pytest.mark.parametrize(
    ("odd", "format", "headers"),
    [
        ("d" * 120 + "/c.txt", tarfile.USTAR_FORMAT, None),  # a name that uses the prefix
        (linked("c.txt"), tarfile.USTAR_FORMAT, None),
        ("c.txt", tarfile.PAX_FORMAT, {"comment": "x"}),
        ("é.txt", tarfile.PAX_FORMAT, None),
    ],
)
def test_an_unusual_header_is_read_as_tarfile_reads_it(odd, format, headers):
    files = [
        ("a.txt", b"1"),
        ("b.txt", b""),
        (odd, b"" if isinstance(odd, tarfile.TarInfo) else b"3"),
        ("x.txt", b"4"),
        ("y.txt", b"5"),
    ]
    data = made(files, format, pax_headers=headers)
    found = read_table(byte_ranges.MappedSource(memoryview(data)), "t.tar")
    wanted = [(name, len(body)) for name, body in tarfiles(data)]
    keys = [
        found.keys[start:end].tobytes().decode()
        for start, end in itertools.pairwise([0, *found.ends])
    ]
    assert [
        (f"{key}.txt", size) for key, size in zip(keys, found.sizes[0].tolist(), strict=True)
    ] == wanted


def test_a_global_pax_path_applies_to_every_member():
    data = made([(f"{i}.txt", b"1") for i in range(5)], pax_headers={"path": "all.txt"})
    with pytest.raises(FormatError) as caught:
        read_table(byte_ranges.MappedSource(memoryview(data)), "t.tar")
    assert str(caught.value) == "t.tar[0]: duplicate member 'all.txt' at byte 2048"


@EVERY
def test_a_pax_record_ends_with_a_newline(kind):
    for record, place in (
        (b"17 path=long.txt ", 0),
        (b"17 path=long.txt\n13 path=b.txt\0", 17),
        (b"18 path=long.txt\n", 0),
        (b"16 path=long.txt\n", 0),
    ):
        data = block("x", len(record), b"x") + record.ljust(512, b"\0") + made([("a.txt", b"one")])
        assert message(data, kind) == f"t.tar: byte 512: invalid PAX record at byte {place}"
