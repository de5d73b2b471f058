"""Files of indexes, their rows and errors, for the tests of this folder."""

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from flarecli.errors import FlareError


def rows_of(found, columns=None) -> list[dict]:
    return [row for batch in found.batches(columns) for row in batch.to_pylist()]


def write_files(folder, files) -> None:
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if isinstance(content, pa.Table):
            pq.write_table(content, path)
        else:
            path.write_bytes(content if isinstance(content, bytes) else content.encode())


def error_of(folder, act) -> tuple[str, str]:
    with pytest.raises(FlareError) as caught:
        act()
    return (
        str(caught.value).replace(f"{folder}/", ""),
        caught.value.hint.replace(f"{folder}/", ""),
    )


def images(count=3) -> dict[str, str]:
    return {
        f"{folder}/{n:03}.{kind}": f"{folder} {n} {kind}"
        for folder in "ab"
        for n in range(count)
        for kind in ("jpg", "txt", "meta.json")
    }
