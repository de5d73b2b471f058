"""The demo from beginning to end, with a few photographs: every command, over files and over HTTP, and each byte compared."""

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[1]


def test_the_demo_runs_twice_into_one_folder(tmp_path):
    for _ in range(2):
        argv = [sys.executable, str(ROOT / "docs" / "demo.py"), "demo", "--photos", "14"]
        ran = subprocess.run(argv, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False)
        assert (ran.returncode, ran.stderr.count("error:"), ran.stderr.count("Traceback")) == (0, 0, 0), ran.stdout + ran.stderr
    assert "14 of 14 photographs are unpacked, each byte as it was drawn" in ran.stdout
