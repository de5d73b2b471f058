"""The examples of ffrecord's README with another import line, its golden files, and its API."""

import pickle
import shutil
from pathlib import Path
from zlib import crc32

import numpy as np
import pytest

from flarecli.compat import ffrecord
from flarecli.compat.ffrecord import FileReader, FileWriter, PackedFolder, pack_folder
from flarecli.errors import IntegrityError, MissingError, RowsError, UnfinishedError, UsageError

FIXTURES = Path(__file__).parents[2] / "fixtures" / "ffrecord"


def serialize(sample):
    return pickle.dumps(sample)


def deserialize(data):
    return pickle.loads(data)


@pytest.fixture
def fname(tmp_path):
    samples = list(range(100))
    fname = str(tmp_path / "test.ffr")
    n = len(samples)
    writer = FileWriter(fname, n)
    for i in range(n):
        data = serialize(samples[i])
        writer.write_one(data)
    writer.close()
    return fname


def test_written_records_are_read(fname):
    reader = FileReader(fname, check_data=True)
    assert reader.n == 100
    indices = [3, 6, 0, 10, 3]
    assert [deserialize(one) for one in reader.read(indices)] == indices
    assert deserialize(reader.read_one(99)) == 99
    one = reader.read_one(0)
    assert one.dtype == np.uint8 and one.flags.writeable
    assert reader.read([]) == []
    reader.validate()
    assert len(reader.get_offsets(0)) == 101 and len(reader.get_checksums(0)) == 100
    assert [
        deserialize(one) for one in pickle.loads(pickle.dumps(reader)).read(range(100))
    ] == list(range(100))
    for wrong in (-1, 100):
        with pytest.raises(RowsError):
            reader.read([wrong])
    reader.close()
    with pytest.raises(UsageError):
        reader.read([0])


@pytest.mark.parametrize(
    "name",
    [
        "one",
        "many",
        "empties",
        "allempty",
        "zero",
        "multi",
        "multi_order",
        "dumped",
        "big",
        "oldversion",
    ],
)
def test_files_of_the_original_are_read_and_reproduced(tmp_path, name):
    data = FIXTURES / name / "data"
    reader = FileReader(data if data.is_dir() else str(data))
    for file, path in enumerate(reader.fnames):
        first = sum(len(reader.get_checksums(k)) for k in range(file))
        records = reader.read(range(first, first + len(reader.get_checksums(file))))
        assert [crc32(one) for one in records] == reader.get_checksums(file).tolist()
        with FileWriter(tmp_path / "again.ffr", len(records)) as writer:
            for one in records:
                writer.write_one(one)
        if name != "oldversion":
            assert (tmp_path / "again.ffr").read_bytes() == Path(path).read_bytes()


def test_the_whole_buffer_is_written(tmp_path):
    values = [np.arange(5), np.zeros((2, 3), np.uint8), np.arange(10)[::2], bytearray(b"x"), b""]
    with FileWriter(tmp_path / "a.ffr", len(values)) as writer:
        for one in values:
            writer.write_one(one)
    found = FileReader(tmp_path / "a.ffr").read(range(5))
    assert [one.tobytes() for one in found] == [
        bytes(np.asarray(one).tobytes()) if hasattr(one, "shape") else bytes(one) for one in values
    ]


def test_a_wrong_number_of_records_is_reported(tmp_path):
    writer = FileWriter(tmp_path / "a.ffr", 2)
    writer.write_one(b"x")
    with pytest.raises(UsageError, match="expected 2 records, got 1"):
        writer.close()
    assert list(tmp_path.iterdir()) == []
    writer = FileWriter(tmp_path / "a.ffr", 1)
    writer.write_one(b"x")
    with pytest.raises(UsageError):
        writer.write_one(b"y")
    writer.close()
    assert FileReader(tmp_path / "a.ffr").n == 1
    with pytest.raises(UsageError):
        FileWriter(tmp_path / "a.bin", 1)


def test_damage_is_reported_with_its_record(fname):
    data = bytearray(Path(fname).read_bytes())
    data[-1] ^= 1
    Path(fname).write_bytes(data)
    with pytest.raises(IntegrityError, match=r"test.ffr\[99\]"):
        FileReader(fname).read([99])
    assert len(FileReader(fname, check_data=False).read([99])) == 1
    with pytest.raises(UnfinishedError):
        FileReader(FIXTURES / "bad" / "aborted_writer.ffr")


def test_packed_folders_equal_those_of_the_original(tmp_path):
    (packed,) = (
        (FIXTURES / "packed" / "data").glob("*.ffr")
        if (FIXTURES / "packed" / "data").is_dir()
        else [FIXTURES / "packed" / "data"]
    )
    shutil.copy(packed, tmp_path / "their.ffr")
    folder = PackedFolder(tmp_path / "their.ffr")
    tree = FIXTURES / "packed" / "source_tree"
    for path in (path for path in tree.rglob("*") if path.is_file()):
        name = path.relative_to(tree)
        assert folder.read_one(name).tobytes() == path.read_bytes()
        assert folder.exists(name) and folder.is_file(name) and not folder.is_dir(name)


def test_a_folder_is_packed_and_listed(tmp_path):
    for name in ("b/x.txt", "b/c/y.txt", "a.txt"):
        (tmp_path / "f" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "f" / name).write_text(name)
    (tmp_path / "f" / "void").mkdir()
    pack_folder(tmp_path / "f", tmp_path / "f.ffr")
    folder = PackedFolder(tmp_path / "f.ffr")
    assert folder.list() == ["a.txt", "b", "void"]
    assert folder.list(recursive=True, list_dir=False) == [
        "a.txt",
        Path("b/c/y.txt"),
        Path("b/x.txt"),
    ]
    assert folder.list("b", list_file=False) == ["c"]
    assert [bytes(one) for one in folder.read(["b/x.txt", "a.txt"])] == [b"b/x.txt", b"a.txt"]
    assert (
        folder.is_dir("void") and not folder.exists("a.txt/child") and not folder.exists("../f.ffr")
    )
    with pytest.raises(MissingError):
        folder.read_one("b")
    (tmp_path / "f" / "ring").symlink_to(tmp_path / "f")
    with pytest.raises(UsageError, match="symbolic links form a cycle"):
        pack_folder(tmp_path / "f", tmp_path / "g.ffr")
    assert not (tmp_path / "g.ffr").exists()


def test_records_of_several_files_are_one_dataset(tmp_path):
    ffrecord.dump([bytes([i]) for i in range(10)], str(tmp_path / "d"), 4, verbose=True)
    ffrecord.dump({0: b"x", 1: b"yz"}, tmp_path / "one.ffr", 1)  # any object with `len` and `[i]`
    assert [one.tobytes() for one in FileReader(tmp_path / "one.ffr").read([0, 1])] == [b"x", b"yz"]
    ffrecord.dump([], tmp_path / "none.ffr")
    assert FileReader(tmp_path / "none.ffr").n == 0
    reader = FileReader(tmp_path / "d")
    assert [len(reader.get_checksums(k)) for k in range(4)] == [3, 3, 3, 1]
    assert [one[0] for one in reader.read([9, 0, 3, 9])] == [9, 0, 3, 9]


@pytest.mark.parametrize("workers", [0, 2])
def test_the_torch_dataset_and_loader_return_the_records(fname, workers):
    torch = pytest.importorskip("torch")

    class CustomDataset(ffrecord.torch.Dataset):
        def __init__(self, fname, check_data=True, transform=None):
            super().__init__(fname, check_data)
            self.transform = transform

        def process(self, indices, data):
            samples = [pickle.loads(b) for b in data]
            if self.transform:
                samples = [self.transform(s) for s in samples]
            return samples

    dataset = CustomDataset(fname)
    assert dataset[[3, 4, 1, 0]] == [3, 4, 1, 0]
    assert dataset.ffreaders() == [dataset.reader]
    both = dataset + ffrecord.torch.Subset(dataset, range(50, 60))
    assert both[[0, 100, -1, 0]] == [0, 50, 59, 0]
    with pytest.raises(TypeError):
        dataset[3]

    def loader():
        seeded = torch.Generator().manual_seed(5)
        return ffrecord.torch.DataLoader(
            dataset, batch_size=16, shuffle=True, num_workers=workers, generator=seeded
        )

    whole = [batch.tolist() for batch in loader()]
    assert sorted(one for batch in whole for one in batch) == list(range(100))
    rest = loader()
    rest.set_step(3)
    assert len(rest) == 4
    assert [batch.tolist() for batch in rest] == whole[3:]
    with pytest.raises(UsageError):
        rest.set_step(7)
    given = ffrecord.torch.DataLoader(
        dataset,
        30,
        False,
        None,
        None,
        workers,
        sum,
        False,
        True,
        0,
        None,
        None,
        prefetch_factor=2,
        persistent_workers=False,
    )
    assert list(given) == [sum(range(k, k + 30)) for k in (0, 30, 60)]
    whole_batches = ffrecord.torch.DataLoader(
        dataset, None, False, [[1, 2], [3]], num_workers=workers, skippable=False
    )
    assert [list(batch) for batch in whole_batches] == [[1, 2], [3]]
    with pytest.raises(UsageError):
        whole_batches.set_step(1)


@pytest.mark.parametrize("wanted", [[0.5], ["0"], [None], 0, [[0]]])
def test_indices_that_are_not_integers_are_rejected(fname, wanted):
    with (
        FileReader(fname) as reader,
        pytest.raises(ValueError, match="expected a list of integers$"),
    ):
        reader.read(wanted)


def test_arguments_of_a_packed_folder_have_the_names_of_the_original(tmp_path):
    (tmp_path / "src" / "a").mkdir(parents=True)
    for name in ("b", "a/c"):
        (tmp_path / "src" / name).write_bytes(name.encode())
    ffrecord.pack_folder(folder=tmp_path / "src", out_file=tmp_path / "p.ffr", verbose=True)
    folder = ffrecord.PackedFolder(ffr_file=tmp_path / "p.ffr", check_data=True)
    assert (folder.num_files(), folder.list(path=None), folder.list()) == (
        2,
        ["a", "b"],
        ["a", "b"],
    )


@pytest.mark.parametrize("file", [1, -1])
def test_a_file_number_out_of_range_is_an_index_error(fname, file):
    with FileReader(fname) as reader:
        assert len(reader.get_offsets(0)) == len(reader.get_checksums(0)) + 1 == 101
        with pytest.raises(RowsError, match=f"^file {file} is out of range; there are 1 files$"):
            reader.get_offsets(file)


def test_a_registry_finds_the_readers_among_its_attributes(fname):
    pytest.importorskip("torch")
    from flarecli.compat.ffrecord.torch import Dataset, ReaderRegistry

    class Pair(ReaderRegistry):
        def __init__(self):
            self.left, self.right, self.name = FileReader(fname), FileReader(fname), "pair"

    class Both(Dataset):
        def __init__(self):
            self.reader, self.pair, self.more = FileReader(fname), Pair(), [Pair(), 1]

    data = Both()
    pairs = [data.pair, data.more[0]]
    assert data.ffreaders() == [data.reader, *(r for one in pairs for r in (one.left, one.right))]
    assert ReaderRegistry().ffreaders() == []


def test_import_paths_equal_those_of_the_original():
    from flarecli.compat.ffrecord.utils import dump

    assert dump is ffrecord.dump is ffrecord.utils.dump
    assert ffrecord.__version__ == "1.4.0"
