"""More of sds's README on a local S3 server: images, unpacking, folders; and large indexes."""

import io
import itertools
import json
import multiprocessing
import os
import pickle
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

from flarecli.__main__ import main
from flarecli.compat.sds.dataset import StreamingDataset
from flarecli.compat.sds.rows import IndexFile
from flarecli.errors import ReachError, UnsafeError, UsageError, ValueFitError
from flarecli.storage import locate


def picture(i):
    out = io.BytesIO()
    Image.fromarray(np.full((40 + i, 60, 3), 5 * i, np.uint8)).save(out, "PNG")
    return out.getvalue()


def parquet(columns, **how):
    out = io.BytesIO()
    pq.write_table(pa.table(columns), out, **how)
    return out.getvalue()


@pytest.fixture
def bucket(empty_bucket):
    name = empty_bucket
    for i in range(12):
        locate(f"s3://{name}/img/{i}.PNG").write([picture(i)])
    columns = {
        "media_id": [f"m{i:02}" for i in range(12)],
        "path": [f"s3://{name}/img/{i}.PNG" for i in range(12)],
        "related": list(range(12)),
    }
    locate(f"s3://{name}/index/a.parquet").write(
        [parquet({key: values[:5] for key, values in columns.items()})]
    )
    locate(f"s3://{name}/index/b.parquet").write(
        [parquet({key: values[5:] for key, values in columns.items()})]
    )
    return f"s3://{name}"


class Flip:
    def __call__(self, sample):
        return {**sample, "image": sample["image"].flip(dims=[2])}


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 2])
def test_a_dataloader_returns_transformed_images(bucket, tmp_path, workers):
    torch = pytest.importorskip("torch")
    from flarecli.compat.sds.transforms import presets

    image_transforms = presets.create_standard_image_pipeline(
        image_field="path", resolution=(32, 48)
    )
    sample_cleaning_transform = presets.EnsureFieldsTransform(
        fields_whitelist=["image", "media_id"], drop_others=True
    )
    dataset = StreamingDataset(
        src=f"{bucket}/index/*.parquet",
        dst=str(tmp_path / "where" / "to" / "download"),
        transforms=[*image_transforms, Flip(), sample_cleaning_transform],
        columns_to_download=["path"],
        index_col_name="media_id",
        num_downloading_workers=5,
        prefetch=100,
        cache_limit="10gb",
        allow_missing_columns=False,
        lazy_index_chunk_size=1000,
        lazy_index_num_threads=2,
        lazy_index_prefetch_factor=3,
        min_num_pending_tasks_thresh=200,
        shuffle_seed=123,
        sql_query="SELECT * FROM dataframe WHERE related > 2",
        max_size=50_000,
        print_exceptions=True,
        print_traceback=True,
    )
    assert len(dataset) == 9
    sample = dataset[4]
    assert set(sample) == {"image", "media_id"} and sample["media_id"] == "m07"
    assert (
        sample["image"].dtype == torch.uint8
        and sample["image"].shape == (3, 32, 48)
        and (sample["image"] == 35).all()
    )
    dataloader = torch.utils.data.DataLoader(
        dataset, batch_size=3, num_workers=workers, drop_last=True
    )
    found = {}
    for batch in dataloader:
        assert batch["image"].shape == (3, 3, 32, 48)
        found |= dict(zip(batch["media_id"], batch["image"][:, 0, 0, 0].tolist(), strict=True))
    assert len(found) >= 6 and all(value == 5 * int(name[1:]) for name, value in found.items())


def test_unpack_downloads_a_column_of_the_index(bucket, tmp_path, capsys):
    out = tmp_path / "ignore" / "tmp"
    assert (
        main(
            [
                "unpack",
                f"{bucket}/index/a.parquet",
                str(out),
                "--fetch",
                "path",
                "--key",
                "media_id",
                "--jobs",
                "10",
            ]
        )
        == 0
    )
    capsys.readouterr()
    files = {
        path.name: path.read_bytes() for path in out.rglob("*") if path.suffix.lower() == ".png"
    }
    assert [name.partition(".")[0] for name in sorted(files)] == [f"m{i:02}" for i in range(5)]
    assert [files[name] for name in sorted(files)] == [picture(i) for i in range(5)]
    (table,) = out.glob("*.jsonl")
    assert [json.loads(line)["related"] for line in table.read_text().splitlines()] == list(
        range(5)
    )


def test_a_row_with_a_missing_file_does_not_block_others(bucket, tmp_path):
    locate(f"{bucket}/img/3.PNG").delete()
    dataset = StreamingDataset(
        f"{bucket}/index/a.parquet",
        str(tmp_path),
        "image",
        columns_to_load=["path"],
        index_col_name="media_id",
    )
    assert [one["media_id"] for one in dataset] == [
        "m00",
        "m01",
        "m02",
        "m04",
    ] and dataset.failed == 1
    with pytest.raises(ReachError, match="row 3: column 'path'"):
        dataset[3]
    assert Path(dataset[-1]["path"]).read_bytes() == picture(4)
    with pytest.raises(IndexError):
        dataset[5]


def test_a_folder_of_texts_is_read(tmp_path):
    torch = pytest.importorskip("torch")
    src, dst, ext = str(tmp_path / "dummy-data"), str(tmp_path / "dummy-out"), "txt"
    os.makedirs(src)
    for i in range(10):
        with open(os.path.join(src, f"{i:05d}.{ext}"), "w") as file:
            file.write(f"This is sample {i}.\n" * 10)

    class LoadTransform:
        def __call__(self, sample):
            with open(sample[ext]) as file:
                sample[ext] = file.read()
            return sample

    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert (
            len(
                pool.apply_async(
                    list, (StreamingDataset(src, dst, columns_to_download=[ext]),)
                ).get(60)
            )
            == 10
        )
    dataset = StreamingDataset(
        src, dst, columns_to_download=[ext], data_type="text", transforms=[LoadTransform()]
    )
    batches = list(torch.utils.data.DataLoader(dataset, batch_size=2, num_workers=0))
    assert [text for batch in batches for text in batch[ext]] == [
        f"This is sample {i}.\n" * 10 for i in range(10)
    ]
    assert {kind for batch in batches for kind in batch["__data_type__"]} == {"text"}


@pytest.fixture
def indexes(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    for k in range(3):
        (folder / f"{k}.bin").write_bytes(bytes([k]))
        names = [f"{k}.bin"] * 4
        (folder / f"{k}.parquet").write_bytes(
            parquet(
                {
                    "id": [f"{k}-{i}" for i in range(4)],
                    "url": names,
                    "n": list(range(4 * k, 4 * k + 4)),
                }
            )
        )
    return folder


def opened(src, tmp_path, **how):
    return StreamingDataset(
        str(src),
        str(tmp_path / "dst"),
        **{"columns_to_load": ["url"], "index_col_name": "id", **how},
    )


def numbers(dataset):
    return [one["n"] for one in dataset]


def test_the_number_of_used_index_files_is_limited(indexes, tmp_path):
    assert numbers(opened(indexes / "*.parquet", tmp_path, max_index_files_to_use=2)) == list(
        range(8)
    )
    with pytest.raises(UsageError, match="max_index_files_to_use: expected at least 1, got 0$"):
        opened(indexes / "*.parquet", tmp_path, max_index_files_to_use=0)
    with pytest.raises(TypeError):
        opened(indexes / "*.parquet", tmp_path, nope=1)


def test_an_infinite_iteration_yields_epoch_after_epoch(indexes, tmp_path):
    dataset = opened(indexes / "*.parquet", tmp_path, infinite_iteration=True, shuffle_seed=5)
    running = iter(dataset)
    epochs = [[next(running)["n"] for _ in range(12)] for _ in range(3)]
    assert all(sorted(one) == list(range(12)) for one in epochs) and epochs[0] != epochs[1]
    next(running)
    state = dataset.state_dict()
    assert state == {"epoch": 3, "sample_in_epoch": 1}
    running.close()
    other = opened(indexes / "*.parquet", tmp_path, shuffle_seed=5)
    assert [numbers(other) for _ in range(3)] == epochs
    other.load_state_dict({"epoch": 1, "sample_in_epoch": 4})
    assert numbers(other) == epochs[1][4:]


def test_a_worker_without_rows_ends_in_an_infinite_iteration(indexes, tmp_path):
    torch = pytest.importorskip("torch")
    dataset = opened(
        indexes / "*.parquet", tmp_path, infinite_iteration=True, max_index_files_to_use=1
    )
    rows = len(dataset)
    loader = torch.utils.data.DataLoader(
        dataset, batch_size=None, num_workers=rows + 1, timeout=60, collate_fn=lambda one: one["n"]
    )
    found = [*itertools.islice(loader, 3 * rows)]
    assert sorted(found) == sorted([*range(rows)] * 3)


@pytest.mark.parametrize("seed", range(4))
def test_present_files_stay_until_their_rows_are_yielded(indexes, tmp_path, seed):
    dataset = opened(
        indexes / "*.parquet",
        tmp_path,
        infinite_iteration=True,
        shuffle_seed=seed,
        cache_limit=6,
        prefetch=2,
        num_downloading_workers=1,
    )
    running = iter(dataset)
    for _ in range(60):
        assert Path(next(running)["url"]).exists()
    running.close()
    assert dataset.failed == 0 and dataset.state_dict()["epoch"] == 4
    dataset[3], dataset[3], dataset[4]
    assert sum(path.stat().st_size for path in (tmp_path / "dst").rglob("*.bin")) <= 6


def test_unaligned_workers_read_all_samples(indexes, tmp_path, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    found = []
    for rank in range(2):
        monkeypatch.setenv("RANK", str(rank))
        found.append(
            numbers(
                opened(indexes / "*.parquet", tmp_path, shuffle_seed=5, unaligned_worker_index=True)
            )
        )
    assert sorted(found[0]) == sorted(found[1]) == list(range(12)) and found[0] != found[1]


def test_the_index_file_is_removed_with_the_dataset(indexes, tmp_path):
    dataset = opened(indexes / "*.parquet", tmp_path)
    (path,) = (tmp_path / "dst").glob(".flare-index-*")
    sent = pickle.dumps(dataset)
    assert len(sent) < 10_000
    assert numbers(pickle.loads(sent)) == numbers(dataset) == list(range(12))
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert [one["n"] for one in pool.apply_async(list, (dataset,)).get(60)] == list(range(12))
    del dataset
    assert not path.exists()


def test_index_files_of_killed_processes_are_removed(indexes, tmp_path):
    kept = opened(indexes / "*.parquet", tmp_path)
    stale = tmp_path / "dst" / ".flare-index-old.arrow"
    stale.write_bytes(b"")
    for path in (tmp_path / "dst").glob(".flare-index-*"):
        os.utime(path, (1, 1))
    opened(indexes / "*.parquet", tmp_path)
    assert not stale.exists() and numbers(kept) == list(range(12))


def test_a_large_index_takes_little_memory(tmp_path):
    count = 300_000
    batches = (
        pa.record_batch({"k": pa.array(range(k, k + 50_000)), "text": ["x" * 200] * 50_000})
        for k in range(0, count, 50_000)
    )
    schema = pa.schema([("k", pa.int64()), ("text", pa.string())])
    before = pa.total_allocated_bytes()
    table = IndexFile(str(tmp_path), schema, batches, "k", "index")
    assert len(table) == count and pa.total_allocated_bytes() - before < 1 << 20
    wanted = [299_999, 0, 150_000, 7, 0]
    assert table.take(wanted).column("k").to_pylist() == wanted
    assert table.take([]).num_rows == 0


def test_dictionary_columns_are_read_and_distant_duplicate_keys_are_rejected(tmp_path):
    def batches(last):
        for words in (["a", "b"], ["c", "a"]):
            yield pa.record_batch(
                {"w": pa.array(words).dictionary_encode(), "k": [words[0], last or words[1]]}
            )

    first = next(batches(None))
    table = IndexFile(str(tmp_path), first.schema, batches(None), None, "index")
    assert table.take(range(4)).column("w").to_pylist() == ["a", "b", "c", "a"]
    with pytest.raises(UsageError, match="duplicate key 'a'"):
        IndexFile(str(tmp_path), first.schema, batches(None), "k", "index")


def test_a_key_outside_the_folder_is_a_failed_row(tmp_path):
    (tmp_path / "x.bin").write_bytes(b"x")
    pq.write_table(
        pa.table({"id": ["../../evil", "a\x00b", "fine"], "url": ["x.bin"] * 3, "n": [0, 1, 2]}),
        tmp_path / "i.parquet",
    )
    dataset = opened(tmp_path / "i.parquet", tmp_path)
    assert numbers(dataset) == [2] and dataset.failed == 2
    for row in range(2):
        with pytest.raises(UnsafeError):
            dataset[row]
    assert not list(tmp_path.rglob("*evil*"))


def test_missing_fields_are_rejected():
    from flarecli.compat.sds.transforms.presets import EnsureFieldsTransform

    ensure = EnsureFieldsTransform({"a": int, "b": str}, check_dummy_values=True)
    assert ensure({"a": 1, "b": "x", "c": 0}) == {"a": 1, "b": "x", "c": 0}
    for wrong in ({"a": 1}, {"a": "1", "b": "x"}, {"a": 1, "b": ""}):
        with pytest.raises(ValueFitError):
            ensure(wrong)


@pytest.mark.parametrize(
    ("batches", "clash"),
    [
        ([["a", "b"], ["a-thumb"]], True),
        ([["a-thumb", "a"]], True),
        ([["a"], ["b", "a-thumb"]], True),
        ([["a-thumb"], ["a"]], True),
        ([["a", "b-thumb"], ["b-thumb-x", None, None]], False),
    ],
    ids=str,
)
def test_keys_with_ambiguous_file_names_are_rejected(tmp_path, batches, clash):
    (tmp_path / "f.bin").write_bytes(b"f")
    keys = [key for batch in batches for key in batch]
    addresses = [str(tmp_path / "f.bin")] * len(keys)
    pq.write_table(
        pa.table({"k": keys, "url": addresses, "thumb-url": addresses}),
        tmp_path / "i.parquet",
        row_group_size=len(batches[0]),
    )
    schema = pa.schema([("k", pa.string())])

    def index_file(suffixes):
        return IndexFile(
            str(tmp_path),
            schema,
            (pa.record_batch([batch], schema=schema) for batch in batches),
            "k",
            "index",
            suffixes,
        )

    assert len(index_file(())) == len(keys)
    if not clash:
        assert len(index_file(["thumb"])) == len(keys)
        return
    with pytest.raises(UsageError) as caught:
        index_file(["thumb"])
    assert (
        str(caught.value) == "index: files of the keys 'a' and 'a-thumb' would have the same name"
    )
    assert (
        caught.value.hint
        == "Choose a column whose values do not end in -thumb, or download one column at a time."
    )
    with pytest.raises(
        UsageError, match="files of the keys 'a' and 'a-thumb' would have the same name"
    ):
        StreamingDataset(
            str(tmp_path / "i.parquet"),
            str(tmp_path / "dst"),
            "image",
            columns_to_download=["url", "thumb-url"],
            index_col_name="k",
        )
