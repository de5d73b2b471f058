"""Columns, their extensions and encodings."""

import pytest

from flarecli import encodings
from flarecli.errors import (
    FormatError,
    IntegrityError,
    UsageError,
)
from flarecli.formats.webdataset.columns import extension_of
from flarecli.model import Column
from tests.formats.webdataset.samples import (
    chunk_of,
    open_files,
    rows_of,
    tar_of,
    webdataset,
)


def test_names_of_columns_become_extensions_that_mean_their_encoding():
    wanted = {
        ("jpg", "jpeg"): "jpg",
        ("image.jpg", "jpeg"): "image.jpg",
        ("image", "jpeg"): "image.jpg",
        ("Image", "png"): "image.png",
        ("label", "str_int"): "label.cls",
        ("cls", "str_int"): "cls",
        ("caption", "str"): "caption.txt",
        ("txt", "str_int"): "txt.cls",
        ("score", "json_float"): "score.json",
        ("x.json", "json_float"): "x.json",
        ("data", "bytes"): "data",
        ("jpg", "bytes"): "jpg.bin",
        ("seg.npy", "bytes"): "seg.npy",
        ("a/b", "str"): "a%2fb.txt",
        ("t", "list[jpeg]"): "t.list_jpeg",
        ("t", "ndarray:float32:2,3"): "t.ndarray",
        ("__url__", "bytes"): "__url__.bin",
        ("x__", "bytes"): "x__.bin",
        ("", "str"): ".txt",
    }
    assert {
        (name, encoding): extension_of(encodings.column(name, encoding))
        for name, encoding in wanted
    } == wanted


def test_columns_are_arranged_with_encodings_that_a_member_stores():
    held = webdataset.arrange(
        [
            Column("n", "int", 8),
            Column("f", "float32", 4),
            Column("__key__", "str"),
            Column("j", "json"),
            Column("b", "bytes"),
        ]
    )
    assert [(one.name, one.encoding, one.size) for one in held] == [
        ("__key__", "str", None),
        ("n", "str_int", None),
        ("f", "json_float", None),
        ("j", "json", None),
        ("b", "bytes", None),
    ]
    assert webdataset.arrange(held) == held


@pytest.mark.parametrize(
    ("columns", "said"),
    [
        ([], "a sample needs at least one column besides the key"),
        ([Column("__key__", "str")], "a sample needs at least one column besides the key"),
        ([Column("a", "str"), Column("a", "int")], "duplicate column name 'a'"),
        (
            [Column("__key__", "str"), Column("__key__", "int"), Column("a", "str")],
            "duplicate column name '__key__'",
        ),
        (
            [Column("a", "str"), Column("a.txt", "str")],
            "columns 'a' and 'a.txt' would have the same member name",
        ),
        (
            [Column("A", "bytes"), Column("a", "bytes")],
            "columns 'A' and 'a' would have the same member name",
        ),
        (
            [Column("é" * 128, "bytes")],
            f"column {'é' * 128!r}: the extension is 256 bytes; the maximum is 255",
        ),
    ],
)
def test_columns_that_a_tar_cannot_store_are_refused(columns, said):
    with pytest.raises(UsageError) as caught:
        webdataset.arrange(columns)
    assert str(caught.value) == said


def test_listed_columns_choose_names_and_must_include_all_members():
    data = tar_of([("a.jpg", b"1"), ("a.label.cls", b"2"), ("b.jpg", b"3")])
    listed = (Column("label", "str_int"), Column("jpg", "jpeg"), Column("other", "str"))
    assert rows_of(data, listed) == [
        {"label": b"2", "jpg": b"1", "other": None},
        {"label": None, "jpg": b"3", "other": None},
    ]
    with pytest.raises(
        IntegrityError,
        match=r"^t\.tar: unexpected extension \.jpg: the columns do not include it(?m:$)",
    ):
        rows_of(data, listed[:1])
    with pytest.raises(
        FormatError,
        match=r"^t\.tar: column 'label' has the encoding int, which a tar cannot store$",
    ):
        rows_of(data, (Column("label", "int", 8),))


def test_inferred_columns_can_be_used_as_a_listing():
    data = tar_of(
        [
            ("a.x__", b"1"),
            ("a." + "very." * 30 + "bin", b"2"),
            ("a.b\\c", b"3"),
            ("a.__url__", b"4"),
        ]
    )
    shard = webdataset.open_shard(chunk_of(data))
    again = webdataset.open_shard(chunk_of(data), shard.columns)
    assert again.columns == shard.columns
    assert webdataset.read_rows(again, [0]) == webdataset.read_rows(shard, [0]) == rows_of(data)
    assert list(rows_of(data)[0].values()) == [b"a", b"1", b"2", b"3", b"4"]


def test_arranging_columns_compares_each_name_a_few_times():
    class Name(str):
        compared = 0

        def __eq__(self, other):
            Name.compared += 1
            return str.__eq__(self, other)

        __hash__ = str.__hash__

    webdataset.arrange([Column(Name(f"c{i}"), "str") for i in range(1000)])
    assert Name.compared < 10_000


def test_the_limit_of_an_extension_is_in_bytes():
    column = encodings.column("é" * 127, "bytes")
    assert webdataset.arrange([column]) == (column,)
    for name, size in (("é" * 128, 256), ("n" * 256, 256)):
        with pytest.raises(
            ValueError,
            match=f"^column '{name}': the extension is {size} bytes; the maximum is 255$",
        ):
            webdataset.arrange([encodings.column(name, "bytes")])


def test_a_column_uses_the_extension_of_its_encoding_if_both_exist():
    data = tar_of([("k.a", b"bytes"), ("k.a.jpg", b"picture")])
    with pytest.raises(IntegrityError) as caught:
        open_files({"00000.tar": data}, (encodings.column("a", "jpeg"),))
    assert str(caught.value) == "00000.tar: unexpected extension .a: the columns do not include it"
    alone = open_files({"00000.tar": tar_of([("k.a", b"bytes")])}, (encodings.column("a", "jpeg"),))
    assert webdataset.read_rows(alone, [0]) == [{"a": b"bytes"}]
