"""mosaicml-streaming's README on a local S3 server: DataLoader, mixed streams, writers."""

import os

import numpy as np
import pytest
from PIL import Image

from flarecli.compat.streaming import (
    JSONWriter,
    LocalDataset,
    MDSWriter,
    Stream,
    StreamingDataset,
    TSVWriter,
)
from flarecli.errors import FormatError, RowsError, UsageError, ValueFitError


@pytest.fixture
def bucket(empty_bucket):
    return f"s3://{empty_bucket}"


def written(out, start, count, **how):
    with MDSWriter(
        out=out, columns={"image": "jpeg", "class": "int"}, size_limit="8kb", **how
    ) as writer:
        for i in range(start, start + count):
            writer.write(
                {"image": Image.fromarray(np.full((32, 32, 3), i % 256, np.uint8)), "class": i}
            )


@pytest.mark.parametrize("workers", [0, 2])
def test_the_quickstart_runs_with_a_bucket(bucket, tmp_path, workers):
    torch = pytest.importorskip("torch")
    written(
        (str(tmp_path / "out"), f"{bucket}/path-to-dataset"),
        0,
        60,
        compression="zstd",
        hashes=["sha1", "xxh64"],
    )
    assert os.listdir(tmp_path / "out") == []
    remote, local = f"{bucket}/path-to-dataset", str(tmp_path / "path-to-dataset")
    dataset = StreamingDataset(
        local=local,
        remote=remote,
        shuffle=True,
        validate_hash="xxh64",
        download_retry=3,
        download_timeout=20,
    )
    sample = dataset[37]
    assert sample["class"] == 37 and sample["image"].size == (32, 32)
    assert len([name for name in os.listdir(local) if name.endswith(".mds")]) == 1
    dataloader = torch.utils.data.DataLoader(dataset, num_workers=workers, collate_fn=list)
    epochs = [[one["class"] for batch in dataloader for one in batch] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(60)) and epochs[0] != epochs[1]
    assert not [name for name in os.listdir(local) if name.endswith(".zstd")]


def test_streams_of_several_buckets_are_mixed(bucket, tmp_path):
    for k, count in enumerate((40, 20, 10)):
        written(f"{bucket}/{k}/train", 1000 * k, count)
    streams = [
        Stream(remote=f"{bucket}/{k}", local=str(tmp_path / str(k)), proportion=share)
        for k, share in enumerate((0.4, 0.1, 0.5))
    ]
    dataset = StreamingDataset(
        streams=streams,
        epoch_size="0.1k",
        split="train",
        shuffle=True,
        cache_limit="40kb",
        predownload=4,
    )
    found = [one["class"] for one in dataset]
    assert [sum(one // 1000 == k for one in found) for k in range(3)] == [40, 10, 50]
    assert dataset.cache_usage <= 40 << 10
    assert sorted(os.listdir(tmp_path)) == ["0", "1", "2"] and os.listdir(tmp_path / "0") == [
        "train"
    ]


def test_keep_zip_keeps_compressed_files(bucket, tmp_path):
    written(f"{bucket}/d", 0, 30, compression="gz")
    for keep in (False, True):
        local = tmp_path / str(keep)
        dataset = StreamingDataset(remote=f"{bucket}/d", local=str(local), keep_zip=keep)
        assert [one["class"] for one in dataset] == list(range(30))
        raw, zipped = (
            sorted(path.name for path in local.glob(f"*.{end}")) for end in ("mds", "gz")
        )
        assert (
            len(raw) > 1
            and [f"{name}.gz" for name in raw]
            == (zipped if keep else [f"{name}.gz" for name in raw])
            and bool(zipped) == keep
        )
        sizes = [
            sum(one.get_persistent_size(keep) for one in dataset.shards),
            sum(path.stat().st_size for path in local.glob("shard*")),
        ]
        index = (local / "index.json").stat().st_size
        assert sizes[0] == sizes[1] == dataset.cache_usage - index


def test_invalid_writer_use_is_rejected(tmp_path):
    class Case:
        def __init__(self, error, **how):
            self.error, self.how = (
                error,
                {"out": str(tmp_path / "d"), "columns": {"a": "int"}, **how},
            )

    full = tmp_path / "full"
    full.mkdir()
    (full / "x").write_text("")
    for case in (
        Case(ValueError, hashes=["sha1", "md5"]),
        Case(ValueError, hashes=["nope"]),
        Case(ValueError, compression="zstd:99"),
        Case(ValueError, size_limit=-1),
        Case(ValueError, size_limit="4gb"),
        Case(ValueError, columns={"a": "nope"}),
        Case(FileExistsError, out=str(full)),
        Case(ValueError, nope=1),
    ):
        with pytest.raises(case.error):
            MDSWriter(**case.how)
        assert not (tmp_path / "d" / "index.json").exists()
    with pytest.raises(ValueError):
        JSONWriter(out=str(tmp_path / "e"), columns={"a": "pkl"})
    with MDSWriter(out=str(tmp_path / "f"), columns={"a": "int", "b": "uint8"}) as writer:
        with pytest.raises(KeyError, match="the sample has no column 'b'"):
            writer.write({"a": 1})
        for wrong in ({"a": 1 << 63, "b": 0}, {"a": 1, "b": 300}):
            with pytest.raises(ValueFitError):
                writer.write(wrong)
    with (
        pytest.raises(ValueFitError),
        TSVWriter(out=str(tmp_path / "g"), columns={"a": "str"}) as tsv,
    ):
        tsv.write({"a": "a\tb"})


def test_exist_ok_replaces_a_dataset(tmp_path):
    for count in (3, 5):
        written(str(tmp_path / "d"), 0, count, exist_ok=True)
    assert len(LocalDataset(str(tmp_path / "d"))) == 5
    with pytest.raises(UsageError, match="Directory is not empty"):
        written(str(tmp_path / "d"), 0, 1)


def test_invalid_reader_use_is_rejected(tmp_path):
    written(str(tmp_path / "d"), 0, 3)
    data = LocalDataset(str(tmp_path / "d"))
    for wrong in (3, -4):
        with pytest.raises(RowsError):
            data[wrong]
    reader = data.shards[0]
    for wrong in (-1, 3):
        for call in (reader.get_item, reader.get_sample_data):
            with pytest.raises(IndexError):
                call(wrong)
    for wrong in ("x", 1.5, None):
        with pytest.raises(ValueError):
            data[wrong]
    for wrong in (b"", b"\xff\xff\xff\xff", b"\1\0\0\0"):
        with pytest.raises(FormatError):
            reader.decode_sample(wrong)
