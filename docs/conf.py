"""Sphinx configuration of the docs site: `make docs` writes it to build/docs."""

import tomllib
from pathlib import Path

project = "flare"
author = "The flare authors"
copyright = author
release = tomllib.loads((Path(__file__).parents[1] / "pyproject.toml").read_text("utf-8"))[
    "project"
]["version"]
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
root_doc = "index"
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence"]
suppress_warnings = ["misc.highlighting_failure"]  # shell sessions with quotes that span lines
html_theme = "furo"
html_title = f"flare {release}"
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_sphinx = False
html_copy_source = False
