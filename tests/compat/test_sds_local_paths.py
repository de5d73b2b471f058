"""Local paths in an index: those outside its folder need `allow_local`; failed epochs."""

import traceback
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli.compat.sds.dataset import StreamingDataset
from flarecli.errors import MissingError, ReachError, UnsafeError


@pytest.fixture
def files(tmp_path):
    """Two rows whose files are in a folder next to that of the index."""
    for folder in ("src/own", "beside"):
        (tmp_path / folder).mkdir(parents=True)
        for i in range(2):
            (tmp_path / folder / f"{i}.bin").write_bytes(f"{folder} {i}".encode())
    return tmp_path


def index(folder, addresses, name="i.parquet"):
    columns = {"id": [str(i) for i in range(len(addresses))], "url": list(addresses)}
    pq.write_table(pa.table(columns), folder / name)
    return str(folder / name)


def opened(src, tmp_path, **more):
    return StreamingDataset(
        src,
        str(tmp_path / "dst"),
        "image",
        columns_to_load=["url"],
        index_col_name="id",
        num_downloading_retries=0,
        **more,
    )


def contents(dataset):
    return [Path(one["url"]).read_bytes() for one in dataset]


@pytest.mark.parametrize("prefix", ["", "file://", "file://localhost"])
def test_an_epoch_of_paths_outside_the_index_folder_fails(files, prefix):
    address = f"{prefix}{files}/beside/0.bin"
    src = index(files / "src", [address] * 2)
    with pytest.raises(UnsafeError) as caught:
        contents(opened(src, files))
    assert str(caught.value) == (
        f"{src}: all rows of epoch 0 failed; first error: row 0: column 'url': "
        f"the address '{address}' points outside the folder"
    )
    assert caught.value.hint == "Pass allow_local=True if you trust this index."
    assert caught.value.__notes__ == [f"hint: {caught.value.hint}"]


@pytest.mark.parametrize("prefix", ["", "file://", "file://localhost"])
def test_allow_local_reads_paths_outside_the_index_folder(files, prefix):
    src = index(files / "src", [f"{prefix}{files}/beside/{i}.bin" for i in range(2)])
    assert contents(opened(src, files, allow_local=True)) == [b"beside 0", b"beside 1"]
    assert contents(opened(index(files / "src", ["../beside/1.bin"]), files, allow_local=True))


@pytest.mark.parametrize("form", ["{0}", "file://{0}", "file://localhost{0}", "../src", "./own/.."])
def test_paths_inside_the_index_folder_are_read(files, form):
    names = [f"{form.format(files / 'src')}/own/{i}.bin" for i in range(2)]
    assert contents(opened(index(files / "src", names), files)) == [b"src/own 0", b"src/own 1"]


def test_a_list_of_indexes_may_name_absolute_paths_in_its_own_folder(files):
    index(files / "src" / "own", ["0.bin", f"{files}/src/own/1.bin"], "a.parquet")
    listed = files / "src" / "split_file_paths.txt"
    listed.write_text(f"{files}/src/own/a.parquet\n")
    assert contents(opened(str(listed), files)) == [b"src/own 0", b"src/own 1"]


def test_the_error_of_a_private_host_names_the_argument_that_allows_it(files, web):
    path = index(files / "src", ["http://127.0.0.2:9/x"])
    src = web.file("/i.parquet", Path(path).read_bytes())
    with pytest.raises(UnsafeError) as caught:
        list(opened(src, files))
    assert caught.value.hint == "Pass allow_private=True if you trust this index."


def test_an_epoch_of_missing_files_fails(files):
    src = index(files / "src", ["no.bin", "own/no.bin"])
    data = opened(src, files)
    with pytest.raises(ReachError) as caught:
        list(data)
    assert str(caught.value) == (
        f"{src}: all rows of epoch 0 failed; first error: row 0: column 'url': "
        "no.bin: no such file or folder"
    )
    assert not isinstance(caught.value, MissingError) and data.failed == 2
    with pytest.raises(ReachError, match="all rows of epoch 1 failed"):
        list(data)  # also with infinite iteration
    with pytest.raises(ReachError, match="all rows of epoch 0 failed"):
        next(iter(opened(src, files, infinite_iteration=True)))


def test_an_epoch_with_one_valid_sample_does_not_fail(files):
    data = opened(index(files / "src", ["no.bin", "own/0.bin", "no.bin"]), files)
    assert contents(data) == contents(data) == [b"src/own 0"] and data.failed == 4


@pytest.mark.filterwarnings("ignore:This DataLoader will create")
@pytest.mark.parametrize(
    ("addresses", "fails"),
    [(["no.bin"] * 3, True), (["no.bin", "own/0.bin", "no.bin"], False)],
    ids=["every row fails", "one row does not"],
)
def test_workers_fail_only_if_all_rows_of_all_workers_failed(files, addresses, fails):
    torch = pytest.importorskip("torch")
    data = opened(index(files / "src", addresses), files)
    loader = torch.utils.data.DataLoader(
        data, batch_size=None, num_workers=4, multiprocessing_context="fork"
    )
    for _ in range(2):
        if fails:
            with pytest.raises(ReachError, match="all rows of epoch") as caught:
                list(loader)
            # A DataLoader ends its workers at once when its frames are cleared; the garbage
            # collector takes 5 s.
            traceback.clear_frames(caught.tb)
        else:
            assert contents(loader) == [b"src/own 0"]
