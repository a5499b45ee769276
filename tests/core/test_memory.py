"""How many page faults an allocation costs, with and without `keep_freed_memory`, as the kernel counts them."""

import json
import subprocess
import sys

import pytest

COUNT = """
import json, resource, statistics
from medfed.core.malloc import keep_freed_memory

def median_faults():
    faults = []
    for turn in range(15):
        before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
        [bytearray(20_000_000) for block in range(5)]  # 24,000 pages
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return int(statistics.median(faults[5:]))

default = median_faults()
keep_freed_memory()
print(json.dumps({"default": default, "keep": median_faults()}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is a function of glibc")
def test_freed_memory_is_used_again_without_page_faults():
    # The median of 10 allocations: a kernel that is short of memory takes pages back now and then.
    faults = json.loads(subprocess.run([sys.executable, "-c", COUNT], capture_output=True, check=True).stdout)
    assert faults["keep"] < faults["default"] / 10, faults
