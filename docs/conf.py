"""The site: `make docs` builds it from the pages here, the docstrings and what _pages.py makes."""

import re
import sys
import tomllib
from pathlib import Path
from typing import Any

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import _benchmarks  # noqa: E402
import _pages  # noqa: E402
import _signatures  # noqa: E402

import hpcomm  # noqa: E402

about = tomllib.loads((HERE.parent / "pyproject.toml").read_text())["project"]

project = "hpcomm"
author = about["authors"][0]["name"]
release = hpcomm.__version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.autosummary",
    "sphinx.ext.napoleon",
    "sphinx_design",  # tabs
]
exclude_patterns = ["README.md"]  # the list of pages for those who read them in the repository
source_suffix = {".md": "markdown"}

myst_heading_anchors = 3
highlight_language = "text"
smartquotes_action = "D"  # dashes alone: quotes stay as a program has them
default_role = "code"  # docstrings write `x` as Markdown does

autodoc_typehints = "none"  # the overloads of a verb fill a screen; _signatures.py gives what covers them all
suppress_warnings = ["ref.python"]  # of a type that is told by a name that several classes have
autodoc_member_order = "bysource"
autosummary_generate = False  # the tables lead to entries of other pages
autodoc_mock_imports = ["h5py", "scipy", "torch", "zarr"]  # not needed to read their callers' docstrings
napoleon_custom_sections = [("Attributes", "params_style")]  # one line may name several

linkcheck_ignore = [rf"{about['urls']['Source']}.*"]  # a placeholder, until the project has a home

html_theme = "furo"
html_title = f"hpcomm {release}"
html_copy_source = False
html_static_path = ["_static"]
html_css_files = ["site.css"]
html_show_copyright = False
html_theme_options = {"source_repository": about["urls"]["Source"], "source_directory": "docs/"}


def setup(app: Any) -> None:
    """Make the pages that are not written by hand; let links of pages lead somewhere on the site, too."""
    _pages.make()
    _benchmarks.make()
    app.connect("source-read", _read)
    app.connect("autodoc-process-signature", _signatures.typed)
    app.connect("autodoc-process-docstring", _escape, priority=100)


def _read(_app: Any, name: str, source: list[str]) -> None:
    page = HERE / f"{name}.md"
    source[0] = _pages.links(_pages.of_readme(source[0]), page, page)


def _escape(_app: Any, kind: str, _name: str, _of: object, _options: object, lines: list[str]) -> None:
    """Stars are stars in docstrings, as in (size, *x.shape), not emphasis; names of pages lead to them."""
    lines[:] = [re.sub(r"(`[^`]*`)|\*", lambda found: found[1] or r"\*", line) for line in lines]
    if kind == "property":  # whose first words would be taken for its type
        lines[0] = lines[0].replace(": ", " -- ", 1)
    lines[:] = [re.sub(r"docs/(\w+)\.md", r":doc:`/\1`", line) for line in lines]
