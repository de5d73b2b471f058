"""Commands work without names that only Linux has. `make portable` runs all tests this way, `make
test` some of them.
"""

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]
PYTHONPATH = f"{ROOT / 'tests/portable'}{os.pathsep}{os.environ.get('PYTHONPATH', '')}"


def run(*argv: str) -> "subprocess.CompletedProcess[str]":
    environment = {**os.environ, "PYTHONPATH": PYTHONPATH}
    command = [sys.executable, *argv]
    return subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)


def test_names_that_only_linux_has_are_hidden():
    names = "os.sched_getaffinity os.memfd_create os.posix_fadvise os.O_DIRECT os.MFD_CLOEXEC fcntl.F_OFD_SETLK mmap.MADV_HUGEPAGE mmap.MAP_POPULATE select.epoll"
    program = f"import os, fcntl, mmap, select\nprint([one for one in {names.split()} if hasattr(globals()[one.partition('.')[0]], one.partition('.')[2])])"
    assert run("-c", program).stdout == "[]\n"


def test_pack_verify_and_cat_work_without_names_of_linux(tmp_path):
    from PIL import Image

    folder = tmp_path / "in"
    folder.mkdir()
    for n in range(3):
        Image.new("RGB", (40 + n, 30)).save(folder / f"{n}.jpg")
    out = str(tmp_path / "out")
    pack = ["pack", str(folder), "--resize", "16", "--media-info", "-z", "zstd"]
    for argv in (
        [*pack, str(tmp_path / "one"), "-j", "1"],
        [*pack, out, "-j", "2"],
        ["verify", out, "--decode"],
        ["cat", out],
        ["unpack", out, str(tmp_path / "files")],
    ):
        ran = run("-m", "flarecli", *argv)
        assert ran.returncode == 0, ran.stderr
    assert len(list((tmp_path / "files").glob("*.jpg"))) == 3
    (one,), (two,) = (list((tmp_path / name).glob("*.mds*")) for name in ("one", "out"))
    assert one.read_bytes() == two.read_bytes()


def test_a_missing_unix_module_is_not_reported_as_a_library_to_install(tmp_path):
    (tmp_path / "a.csv").write_text("a\n1\n")
    program = "import sys\nsys.modules['fcntl'] = None\nfrom flarecli.__main__ import main\nsys.exit(main(sys.argv[1:]))"
    ran = run("-c", program, "pack", str(tmp_path / "a.csv"), str(tmp_path / "out"))
    assert (ran.returncode, ran.stderr) == (
        6,
        "error: the command requires fcntl, which is not available on this system\n"
        "hint: Run flare on Linux or macOS; on Windows, use WSL.\n",
    )
