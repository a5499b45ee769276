"""The Python snippets of README.md run as they stand, in their order, as one session."""

import re
from pathlib import Path

import pytest
from fresh_imports import run_without

import medfed

README = Path(medfed.__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not BLOCKS, reason="README.md has no Python snippets")
def test_the_snippets_of_the_readme_run_in_order(tmp_path, monkeypatch, unpainted_figures):
    """They run as a script, so that a class they define is found as `__main__.NAME`, as in a user's session.

    The script runs in a process that has imported PyTorch and MONAI but nothing of medfed, so that `import medfed`
    alone must make each name available that a snippet uses. The first run draws all its figures, on which nothing is
    painted; the runs after it draw none (`run_figures`).
    """
    (tmp_path / "session.py").write_text("\n".join([BLOCKS[0], "import run_figures", *BLOCKS[1:]]))
    monkeypatch.chdir(tmp_path)
    code = "import runpy; runpy.run_path('session.py', run_name='__main__')"
    output = run_without(("medfed", "run_figures"), code)
    assert "UCL (UNSEEN)" in output and "Did you mean 'rounds'?" in output
