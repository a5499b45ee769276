"""Settings of the documentation site: `sphinx-build -W docs build/docs`."""

import sys
from pathlib import Path

sys.path[:0] = [str(Path(__file__).parent)]

import generate  # noqa: E402
import import_figure  # noqa: E402

import medfed  # noqa: E402

project = "medfed"
author = "The medfed authors"
copyright = "The medfed authors, Apache-2.0"  # noqa: A001
version = release = medfed.__version__

extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon", "docstrings"]  # docs/docstrings.py
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]
myst_heading_anchors = 3
nb_execution_mode = "off"  # the outputs in the notebooks are committed; slow tests execute them again
exclude_patterns = ["results/runs", "results/discussion.md"]
suppress_warnings = ["misc.highlighting_failure"]
default_role = "code"

html_theme = "furo"
html_title = f"medfed {release}"
html_static_path = ["static"]
html_css_files = ["medfed.css"]
html_theme_options = {"navigation_with_keys": True}
html_show_sourcelink = False

DOCS = Path(__file__).parent
ROOT_PAGES = {"index": "README.md", "contributing": "CONTRIBUTING.md", "changelog": "CHANGELOG.md"}


def add_root_page(app, docname, source):
    """These pages lie beside `docs`, where a repository shows them; their links begin there."""
    if docname in ROOT_PAGES:
        text = (DOCS.parent / ROOT_PAGES[docname]).read_text(encoding="utf-8").replace("](docs/", "](")
        for page, file in ROOT_PAGES.items():
            text = text.replace(f"]({file})", f"]({page}.md)")
        source[0] = f"{text}\n{source[0]}"


def setup(app):
    app.connect("source-read", add_root_page)


generate.write_pages(DOCS)
(DOCS / "explanation" / "architecture.svg").write_text(import_figure.draw(DOCS.parent / "medfed"), encoding="utf-8")
