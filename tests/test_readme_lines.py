"""The command lines of the pages without output, run one by one with folders as buckets and
servers, and this process as the cluster.
"""

import io
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import flarecli
from flarecli.__main__ import main

ROOT = Path(__file__).parents[1]
OTHERS = (
    "make ",
    "pip ",
    "flare --install-completion",
    "$ ",
)  # other programs, and lines with output, which have their own tests
HERE = (
    ("s3://bucket", "bucket"),
    ("s3://b/", "bucket/"),
    ("https://host/", "host/"),
    ("--engine ray", "--engine local"),
    ("-r 41237", "-r 7"),
)

pytestmark = pytest.mark.skipif(
    not all(map(shutil.which, ("bash", "jq", "tar"))), reason="no bash, jq or tar here"
)


def lines():
    """Return each command line once, with its page."""
    found = {}
    for page in ("docs/examples.md", "docs/inspect.md", "docs/json.md", "docs/scale.md"):
        for block in re.findall(r"```console\n(.*?)```", (ROOT / page).read_text(), re.DOTALL):
            for line in filter(None, block.splitlines()):
                if not line.startswith(OTHERS):
                    found.setdefault(re.split(r"\s+# ", line)[0], page)
    return found


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """Create a folder with all files that the lines name."""
    folder = tmp_path_factory.mktemp("lines")
    made = io.BytesIO()
    Image.new("RGB", (40, 30), "teal").save(made, "JPEG")
    ids = [f"k{i}" for i in range(20)]
    for below in ("pictures", "images", "photos/house", "bucket/index/pictures"):
        (folder / below).mkdir(parents=True)
        for name in ids:
            (folder / below / f"{name}.jpg").write_bytes(made.getvalue())
    links = [f"pictures/{name}.jpg" for name in ids]
    small = {
        "score": [i / 20 for i in range(20)],
        "aes": list(range(20)),
        "lang": ["en", "de"] * 10,
        "label": [i % 3 for i in range(20)],
    }
    pq.write_table(
        pa.table({"data_id": ids, "data_url": links, **small}), folder / "photos.parquet"
    )
    for name in ("big.parquet", "links.parquet", "bucket/index/a.parquet"):
        pq.write_table(pa.table({"id": ids, "url": links}), folder / name)
    (folder / "texts.csv").write_text("id,n,text\n1,2,a\n2,3,b\n")
    export = "Größe;n\n1,5;2\n;\n"
    (folder / "export.csv").write_bytes(export.encode("latin-1"))
    rows = pa.table({"id": ids, "data_id": ids, "image": [made.getvalue()] * 20, **small})
    for name in ("rows", "today"):
        pq.write_table(rows, folder / f"{name}.parquet")
    for name in ("out", "host/set", "host/cifar", "bucket/train", "imgs"):
        flarecli.pack(folder / "rows.parquet", folder / name, shard_rows=5)
    flarecli.pack(folder / "texts.csv", folder / "lab")
    flarecli.pack(folder / "rows.parquet", folder / "old" / "mds")
    text = (folder / "old" / "mds" / "playlist.yaml").read_text()
    (folder / "old" / "mds" / "playlist.yaml").write_text(
        re.sub("^data:", "images:", text[: text.rindex("#")], count=1)
    )
    for name in ("old.yaml", "new.yaml", "set.yaml"):
        flarecli.playlist(folder / "out", out=folder / name)
    return folder


@pytest.mark.parametrize(("line", "page"), sorted(lines().items()))
def test_the_command_line_runs(line, page, place, tmp_path, forked_flare):
    here = tmp_path / "here"
    shutil.copytree(place, here)
    for old, new in HERE:
        line = line.replace(old, new)
    for target in ("out/", "bucket/train"):
        is_new = "--append" not in line
        if is_new and re.search(rf"flare pack (-q )?(?!{target}).* {target}", line):
            shutil.rmtree(here / target)
    if "--reindex" in line:
        (here / "out" / "index.json").unlink()
    fails = "" if line.endswith("| head") else "set -o pipefail; "  # `head` closes the pipe early
    script = f'{fails}flare() {{ {shlex.join(forked_flare)} "$@"; }}; python() {{ "{sys.executable}" "$@"; }}\n{line}'
    ran = subprocess.run(
        ["bash", "-c", script], cwd=here, capture_output=True, timeout=120, check=False
    )
    assert (ran.returncode, b"error:" in ran.stderr) == (0, False), (
        page,
        ran.stderr.decode(errors="replace"),
    )
    assert (
        ran.stdout
        or line.startswith("P=")
        or ">" in line
        or "--check" in line
        or "--diff" in line
        or "select(" in line
    )


def test_every_page_with_command_lines_is_tested():
    pages = {
        path.name
        for path in [ROOT / "README.md", *(ROOT / "docs").glob("*.md")]
        if "```console" in path.read_text()
    }
    assert pages == {
        "README.md",
        "inspect.md",
        "json.md",
        "scale.md",
        "verify.md",
        "recipes.md",
        "living.md",
        "start.md",
        "examples.md",
    }
    assert main(["--version"]) == 0
