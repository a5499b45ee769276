"""Write the generated pages of the reference; `docs/conf.py` calls `write_pages` before each build.

A page whose content has not changed is not written, so that Sphinx does not read it again. A page that is no longer
generated is deleted.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path

from api_pages import api_pages
from method_pages import method_pages
from settings_pages import datasets_page, settings_page

PROGRAMS = Path(__file__).with_name("programs.py")


def write_pages(docs: Path) -> None:
    """Write the pages into the folder `reference` of `docs`."""
    pages = generated_pages()
    folder = docs / "reference"
    for path, text in pages.items():
        file = folder / path
        if not file.exists() or file.read_text(encoding="utf-8") != text:
            file.parent.mkdir(parents=True, exist_ok=True)
            file.write_text(text, encoding="utf-8")
    for name in ("methods", "api"):
        for file in (folder / name).glob("*.md"):
            if f"{name}/{file.name}" not in pages:
                file.unlink()


def generated_pages() -> dict[str, str]:
    """The text of each page by its path in the folder `reference`."""
    pages = {**method_pages(), **api_pages(), "settings.md": settings_page(), "datasets.md": datasets_page()}
    if PROGRAMS.exists():
        pages["programs.md"] = _programs_page()
    return pages


def _programs_page() -> str:
    """The page of `docs/programs.py`, imported by its path: the folder `tests/programs` has the same name."""
    spec = importlib.util.spec_from_file_location("program_pages", PROGRAMS)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.programs_page()
