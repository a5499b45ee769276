"""The Python blocks of README.md and of each page of the documentation run as they stand, page by page."""

import ast
import re
from pathlib import Path

import pytest
from fresh_imports import run_without

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NO_PAGES = ("results", "_build")  # folders of `docs` that the site shows as they are, or that hold the built site
NOT_RUN = "# not run:"  # the first line of a block that a test cannot run, followed by the reason


def python_blocks(page: Path) -> list[str]:
    return re.findall(r"^```python\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


PAGES = [
    ROOT / "README.md",
    *(path for path in sorted(DOCS.rglob("*.md")) if path.parts[len(DOCS.parts)] not in NO_PAGES),
]
BLOCKS = {page.relative_to(ROOT).as_posix(): blocks for page in PAGES if (blocks := python_blocks(page))}
SESSIONS = {page: [block for block in blocks if not block.startswith(NOT_RUN)] for page, blocks in BLOCKS.items()}


@pytest.mark.parametrize("page", [page for page, blocks in SESSIONS.items() if blocks])
def test_the_blocks_of_a_page_run_in_order(page, tmp_path, monkeypatch, unpainted_figures):
    """They run as a script, so that a class they define is found as `__main__.NAME`, as in a user's session.

    The script runs in a process that has imported PyTorch and MONAI but nothing of medfed, so that the imports of the
    page alone must make each name available that a block uses. The first block draws all its figures, on which nothing
    is painted; the runs of later blocks draw none (`run_figures`).
    """
    first, *others = SESSIONS[page]
    (tmp_path / "session.py").write_text("\n".join([first, "import run_figures", *others]), encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    run_without(("medfed", "run_figures"), "import runpy; runpy.run_path('session.py', run_name='__main__')")


def test_blocks_that_are_not_run_say_why_and_are_valid_python():
    for page, blocks in BLOCKS.items():
        for block in blocks:
            reason = block.splitlines()[0].removeprefix(NOT_RUN).strip()
            assert reason, f"{page}: a block begins with '{NOT_RUN}' without a reason"
            ast.parse(block, page)
