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
        bytearray(36_000_000)  # 9,000 pages; glibc keeps freed blocks of up to 32 MB by default
        faults.append(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
    return int(statistics.median(faults[5:]))

default = median_faults()
assert keep_freed_memory()
print(json.dumps({"default": default, "keep": median_faults()}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is a function of glibc")
def test_freed_memory_is_used_again_without_page_faults():
    # The median of 10 allocations: a kernel that is short of memory takes pages back now and then.
    faults = json.loads(subprocess.run([sys.executable, "-c", COUNT], capture_output=True, check=True).stdout)
    assert faults["keep"] < faults["default"] / 10, faults


LARGE = """
import json, resource
from pathlib import Path
from medfed.core.malloc import keep_freed_memory, return_large_blocks

def faults_of_a_large_block():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    bytearray(36_000_000)
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

def size_mb():
    return int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize() // 10**6

keep_freed_memory()
start_mb = size_mb()
with return_large_blocks():
    small = []
    for turn in range(10):  # each block is larger than the ones before, so that it does not fit where they were
        large = bytearray(36_000_000 + 200_000 * turn)
        small.append(bytearray(60_000))
        del large
    read_mb = size_mb() - start_mb
faults_of_a_large_block()
print(json.dumps({"read_mb": read_mb, "faults": faults_of_a_large_block()}))
"""


@pytest.mark.skipif(sys.platform != "linux", reason="mallopt is a function of glibc")
def test_large_blocks_of_images_are_returned_and_those_of_training_are_used_again():
    result = json.loads(subprocess.run([sys.executable, "-c", LARGE], capture_output=True, check=True).stdout)
    assert result["read_mb"] < 30, "less than one of the ten blocks"
    assert result["faults"] < 900, "a tenth of the block's 9,000 pages"
