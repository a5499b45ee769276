"""Write the generated pages of the reference; `docs/conf.py` calls `write_pages` before each build.

A page whose content has not changed is not written, so that Sphinx does not read it again. A page that is no longer
generated is deleted.
"""

from __future__ import annotations

from pathlib import Path

from api_pages import api_pages
from method_pages import method_pages
from program_pages import programs_page
from settings_pages import datasets_page, settings_page


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
    pages = {"settings.md": settings_page(), "datasets.md": datasets_page(), "programs.md": programs_page()}
    return {**method_pages(), **api_pages(), **pages}
