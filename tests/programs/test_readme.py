"""The Python snippets of README.md run as they stand, in their order, as one session."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import medfed

README = Path(medfed.__file__).parent.parent / "README.md"
BLOCKS = re.findall(r"^```python\n(.*?)^```", README.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)


@pytest.mark.skipif(not BLOCKS, reason="README.md has no Python snippets")
def test_the_snippets_of_the_readme_run_in_order(tmp_path):
    """They run as a script, so that a class they define is found as `__main__.NAME`, as in a user's session."""
    session = tmp_path / "session.py"
    session.write_text("\n".join(BLOCKS))
    environment = {**os.environ, "PYTHONPATH": str(README.parent), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, session.name], cwd=tmp_path, env=environment, capture_output=True, text=True, timeout=900
    )
    assert done.returncode == 0, done.stderr
    assert "UCL (UNSEEN)" in done.stdout and "Did you mean 'rounds'?" in done.stdout
