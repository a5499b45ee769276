"""How many page faults an allocation costs, with and without `keep_freed_memory`, as the kernel counts them."""

import subprocess
import sys

import pytest

COUNT = """
import resource, statistics, sys, torch
from medfed.core.malloc import keep_freed_memory
if sys.argv[1] == "keep":
    assert keep_freed_memory()
faults = []
for turn in range(30):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(12_000_000)  # 48 MB: 12,000 pages
    faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
print(int(statistics.median(faults[10:])))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is a function of glibc")
def test_freed_memory_is_used_again_without_page_faults():
    # The median of 20 allocations: a kernel that is short of memory takes pages back now and then.
    faults = {
        setting: int(subprocess.run([sys.executable, "-c", COUNT, setting], capture_output=True, check=True).stdout)
        for setting in ("keep", "default")
    }
    assert faults["keep"] < faults["default"] / 10, faults
