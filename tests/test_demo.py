"""The complete demo with a few photographs: every command, over files and over HTTP, with each byte
compared.
"""

import re
import sys
from pathlib import Path

from tests.outputs import run_on_a_terminal

ROOT = Path(__file__).parents[1]


def test_the_demo_needs_no_earlier_files_and_prints_tables_and_photographs(tmp_path):
    home = tmp_path / "home"
    home.mkdir()
    for left in ("out", "files", "photos"):  # of an earlier demo
        (tmp_path / "demo" / left).mkdir(parents=True)
        (tmp_path / "demo" / left / "left").write_bytes(b"")
    argv = [sys.executable, str(ROOT / "docs" / "demo.py"), "demo", "--photos", "14"]
    code, out, err = run_on_a_terminal(argv, tmp_path, HOME=str(home))
    assert (code, err.count("error:"), err.count("Traceback")) == (0, 0, 0), out + err
    text = re.sub(r"\x1b\[[\d;]*m", "", out)
    assert "14 of 14 photographs are unpacked without a changed byte" in text
    # a header, a rule, and the first row with the first line of its photograph
    assert re.search(
        r"^ *data_id +image +caption *\n *─+ *\n *0000 +▀{10,} +\w", text, re.MULTILINE
    )
    assert re.search(r"^ *column +encoding +type *\n *─+ *\n *data_id +str +", text, re.MULTILINE)
    assert "\t" not in text, "the tables of a pipe are TSV"
    assert not list(tmp_path.rglob("left"))
    assert list(home.iterdir()) == []
