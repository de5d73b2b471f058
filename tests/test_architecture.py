"""docs/architecture.md names only modules that exist."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[1]
PATH = re.compile(r"`([a-z_]+(?:/[a-z_]+)+)(?:\.py)?`")


def test_each_module_in_the_architecture_exists():
    names = set(PATH.findall((ROOT / "docs" / "architecture.md").read_text()))
    assert len(names) > 30
    missing = [
        name
        for name in sorted(names)
        if not any(
            (folder / name).is_dir() or (folder / f"{name}.py").exists()
            for folder in (ROOT, ROOT / "flarecli")
        )
    ]
    assert missing == []
