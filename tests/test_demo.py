"""The complete demo with a few photographs: every command, over files and over HTTP, with each byte compared."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_demo_replaces_the_output_of_an_earlier_run(tmp_path):
    for left in ("out", "files", "photos"):
        (tmp_path / "demo" / left).mkdir(parents=True)
        (tmp_path / "demo" / left / "left").write_bytes(b"")
    argv = [sys.executable, str(ROOT / "docs" / "demo.py"), "demo", "--photos", "14"]
    ran = subprocess.run(
        argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
    )
    assert (ran.returncode, ran.stderr.count("error:"), ran.stderr.count("Traceback")) == (
        0,
        0,
        0,
    ), ran.stdout + ran.stderr
    assert "14 of 14 photographs are unpacked, each byte as it was drawn" in ran.stdout
    assert not list(tmp_path.rglob("left"))
