"""sds's basic usage with another import line, on a local S3 server, and the rest of its API."""

import io
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli.compat.sds.dataset import StreamingDataset
from flarecli.errors import ReachError, UsageError
from flarecli.storage import locate


def table(names):
    out = io.BytesIO()
    ids = [f"id{i:02}" for i in range(len(names))]
    pq.write_table(
        pa.table({"data_id": ids, "data_url": names, "score": list(range(len(names)))}), out
    )
    return out.getvalue()


def content(i):
    return f"picture {i}".encode() * 100


@pytest.fixture
def bucket(empty_bucket):
    name = empty_bucket
    for i in range(20):
        locate(f"s3://{name}/img/{i}.BIN").write([content(i)])
    locate(f"s3://{name}/index.parquet").write(
        [table([f"s3://{name}/img/{i}.BIN" for i in range(20)])]
    )
    return f"s3://{name}"


@pytest.fixture
def index(tmp_path):
    folder = tmp_path / "src"
    folder.mkdir()
    for i in range(20):
        (folder / f"{i}.bin").write_bytes(content(i))
    (folder / "index.parquet").write_bytes(table([f"{i}.bin" for i in range(20)]))
    return str(folder / "index.parquet")


def opened(src, tmp_path, **how):
    how = {
        "columns_to_load": ["data_url"],
        "index_col_name": "data_id",
        "num_downloading_workers": 4,
        **how,
    }
    return StreamingDataset(src=src, dst=str(tmp_path / "ignore" / "tmp"), data_type="image", **how)


def test_the_basic_usage_reads_from_s3(bucket, tmp_path):
    dataset = opened(f"{bucket}/index.parquet", tmp_path, num_downloading_workers=10)
    sample = dataset[0]  # downloads (with blocking) the sample and returns it
    assert sample["data_url"] == str(tmp_path / "ignore" / "tmp" / "index" / "id00-data_url.bin")
    assert Path(sample["data_url"]).read_bytes() == content(0)
    assert {
        key: sample[key]
        for key in ("data_id", "score", "__sample_key__", "__data_type__", "__worker_disk_usage__")
    } == {
        "data_id": "id00",
        "score": 0,
        "__sample_key__": "id00",
        "__data_type__": "image",
        "__worker_disk_usage__": 900,
    }
    assert [Path(one["data_url"]).read_bytes() for one in dataset] == [
        content(i) for i in range(20)
    ]


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize("workers", [0, 3])
def test_a_torch_dataloader_reads_each_epoch_in_another_order(index, tmp_path, workers):
    torch = pytest.importorskip("torch")

    dataset = opened(index, tmp_path, shuffle_seed=7)
    dataloader = torch.utils.data.DataLoader(
        dataset, batch_size=1, num_workers=workers, shuffle=False
    )
    epochs = [[batch["score"].item() for batch in dataloader] for _ in range(2)]
    assert sorted(epochs[0]) == sorted(epochs[1]) == list(range(20))
    assert epochs[0] != epochs[1]
    assert epochs[0] == [one["score"] for one in opened(index, tmp_path, shuffle_seed=7)]


def test_a_state_resumes_with_other_ranks(index, tmp_path, monkeypatch):
    whole = [one["score"] for one in opened(index, tmp_path, shuffle_seed=3)]
    dataset = opened(index, tmp_path, shuffle_seed=3)
    running = iter(dataset)
    head = [next(running)["score"] for _ in range(8)]
    state = dataset.state_dict()
    assert state == {"epoch": 0, "sample_in_epoch": 8}
    tails = []
    monkeypatch.setenv("WORLD_SIZE", "3")
    for rank in range(3):
        monkeypatch.setenv("RANK", str(rank))
        other = opened(index, tmp_path, shuffle_seed=3)
        other.load_state_dict(state)
        tails.append([one["score"] for one in other])
    steps = [tails[k % 3][k // 3] for k in range(12)]
    assert head + steps == whole


def double(sample):
    return [sample, {**sample, "score": -sample["score"]}]


def test_transforms_return_one_sample_or_several(index, tmp_path):
    dataset = opened(
        index, tmp_path, transforms=[double, lambda sample: sample["score"]], max_size=3
    )
    assert list(dataset) == [0, 0, 1, -1, 2, -2]
    assert dataset[1] == 1
    with pytest.raises(KeyError) as caught:
        opened(index, tmp_path, transforms=[lambda sample: sample["nope"]])[2]
    assert caught.value.__notes__ == [f"raised by a transform of row 2 of {index}"]


def test_the_cache_limit_is_kept(index, tmp_path):
    dataset = opened(index, tmp_path, cache_limit=3000, num_downloading_workers=1, prefetch=2)
    for one in dataset:
        assert Path(one["data_url"]).exists()
    kept = list((tmp_path / "ignore" / "tmp" / "index").iterdir())
    assert sum(path.stat().st_size for path in kept) <= 3000
    for i in range(20):
        dataset[i]
    assert (
        sum(path.stat().st_size for path in (tmp_path / "ignore" / "tmp" / "index").iterdir())
        <= 3000
    )


def test_a_row_that_cannot_be_fetched_is_reported_and_counted(index, tmp_path, caplog):
    Path(index).with_name("4.bin").unlink()
    dataset = opened(index, tmp_path)
    assert [one["score"] for one in dataset] == [i for i in range(20) if i != 4]
    assert dataset.failed == 1
    assert len(caplog.messages) == 1 and caplog.messages[0].startswith(
        "row 4 of index is skipped: "
    )
    with pytest.raises(ReachError, match="row 4: column 'data_url'"):
        dataset[4]


def test_a_query_selects_rows_and_duplicate_keys_are_rejected(index, tmp_path):
    assert [
        one["score"]
        for one in opened(index, tmp_path, sql_query="SELECT * FROM dataframe WHERE score >= 17")
    ] == [17, 18, 19]
    twice = Path(index).with_name("twice.parquet")
    pq.write_table(pa.table({"data_id": ["a", "a"], "data_url": ["1.bin", "2.bin"]}), twice)
    with pytest.raises(UsageError, match="duplicate key 'a'"):
        opened(str(twice), tmp_path)
    with pytest.raises(UsageError, match="no column 'nope'"):
        opened(index, tmp_path, columns_to_load=["nope"])


def test_a_folder_of_files_is_read(tmp_path):
    folder = tmp_path / "files"
    folder.mkdir()
    for i in range(4):
        (folder / f"{i:03}.jpg").write_bytes(content(i))
        (folder / f"{i:03}.txt").write_text(f"text {i}")
    dataset = StreamingDataset(
        src=str(folder),
        dst=str(tmp_path / "d"),
        data_type="image",
        columns_to_download=["jpg", "txt"],
    )
    assert [(Path(one["jpg"]).read_bytes(), Path(one["txt"]).read_text()) for one in dataset] == [
        (content(i), f"text {i}") for i in range(4)
    ]
