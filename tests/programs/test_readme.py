"""The Python snippets of README.md run as they stand, in their order, as one session."""

from __future__ import annotations

import re
import runpy
from pathlib import Path

import pytest

import medfed

README = Path(medfed.__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not BLOCKS, reason="README.md has no Python snippets")
def test_the_snippets_of_the_readme_run_in_order(tmp_path, monkeypatch, capsys):
    """They run as a script, so that a class they define is found as `__main__.NAME`, as in a user's session.

    The script runs in this process, which has imported PyTorch and MONAI. That every public name can be imported first
    and alone is tested in test_public_names.py.
    """
    (tmp_path / "session.py").write_text("\n".join(BLOCKS))
    monkeypatch.chdir(tmp_path)
    runpy.run_path("session.py", run_name="__main__")
    output = capsys.readouterr().out
    assert "UCL (UNSEEN)" in output and "Did you mean 'rounds'?" in output
