"""Build the source package and the wheel of this checkout in `dist/`.

    python packaging/dist.py

REPOSITORY in the environment is the address of the repository, such as the one that a release
workflow runs for. The metadata then contain links to it, and relative links of the README become
absolute, because a package index shows the README without the other files. Without REPOSITORY, the
metadata contain no links.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
IGNORED = shutil.ignore_patterns(
    ".git", ".venv", ".*_cache", "__pycache__", "*.egg-info", "build", "dist"
)
LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)#]+)(#[^)]*)?\)")


def with_links(project: str, repository: str) -> str:
    """Return the text of pyproject.toml with links to the repository."""
    urls = {
        "Repository": repository,
        "Issues": f"{repository}/issues",
        "Changelog": f"{repository}/blob/main/CHANGELOG.md",
        "Documentation": f"{repository}/tree/main/docs",
    }
    table = "".join(f'{name} = "{url}"\n' for name, url in urls.items())
    return project.replace(
        "[project.scripts]\n", f"[project.urls]\n{table}\n[project.scripts]\n", 1
    )


def with_absolute_links(readme: str, repository: str) -> str:
    """Return the README with links to files of the repository: pages of files, and the content of
    images.
    """

    def absolute(match: re.Match[str]) -> str:
        image, text, path, fragment = match.groups()
        kind = "raw" if image else "blob"
        return f"{image}[{text}]({repository}/{kind}/main/{path}{fragment or ''})"

    return LINK.sub(absolute, readme)


def build(target: Path, repository: str = "") -> None:
    """Build both packages in a folder, from a copy of the checkout."""
    with tempfile.TemporaryDirectory() as scratch:
        copy = Path(scratch) / "flare"
        shutil.copytree(ROOT, copy, ignore=IGNORED)
        if repository:
            for name, change in (
                ("pyproject.toml", with_links),
                ("README.md", with_absolute_links),
            ):
                path = copy / name
                path.write_text(change(path.read_text("utf-8"), repository.rstrip("/")), "utf-8")
        subprocess.run([sys.executable, "-m", "build", "--outdir", target, copy], check=True)


if __name__ == "__main__":
    build(ROOT / "dist", os.environ.get("REPOSITORY", ""))
