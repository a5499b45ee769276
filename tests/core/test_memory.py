"""What keeping freed memory saves, counted in page faults by the kernel."""

import subprocess
import sys

import pytest

COUNT = """
import resource, sys, torch
from medfed.core.malloc import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
for turn in range(30):
    torch.ones(12_000_000)  # 48 MB: 12,000 pages
    if turn == 9:
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(sys.platform != "linux", reason="glibc's malloc is asked")
def test_freed_memory_is_used_again_without_page_faults():
    faults = {
        word: int(subprocess.run([sys.executable, "-c", COUNT, word], capture_output=True, check=True).stdout)
        for word in ("keep", "default")
    }
    assert faults["keep"] < faults["default"] / 10, faults
