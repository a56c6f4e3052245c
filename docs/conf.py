"""Sphinx configuration. `make docs` builds the site into docs/_build."""

from __future__ import annotations

import sys
from pathlib import Path

TOP = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TOP), str(TOP / "src"), str(TOP / "docs")]

from generate import write_pages

from lookalike._version import __version__

project = "lookalike"
author = "The lookalike authors"
copyright = "2026, The lookalike authors"  # noqa: A001 (Sphinx reads this name)
version = release = __version__

extensions = [
    "myst_parser",
    "sphinx.ext.autodoc",
    "sphinx.ext.napoleon",
    "sphinx.ext.viewcode",
    "sphinx_copybutton",
    "sphinx_design",
]
exclude_patterns = ["_build", "_generated"]
html_theme = "furo"
html_title = "lookalike"

myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
myst_url_schemes = {"http": None, "https": None, "mailto": None}
copybutton_prompt_text = r"\$ "
copybutton_prompt_is_regexp = True

napoleon_google_docstring = True
napoleon_numpy_docstring = False
napoleon_custom_sections = [("Shape", "notes_style"), ("References", "notes_style")]
autodoc_typehints = "none"
autodoc_member_order = "bysource"
autodoc_default_options = {"members": True, "show-inheritance": False}
suppress_warnings = ["ref.python"]  # one class exported by several packages

write_pages(TOP / "docs" / "_generated")
