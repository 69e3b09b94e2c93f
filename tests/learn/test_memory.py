"""Memory that an update frees is reused by the next one."""

import platform
import subprocess
import sys

import pytest

PROBE = """
import resource, statistics, sys, torch
from dovetail.learn.memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def faults():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    torch.ones(16 << 20)  # 64 MB: beyond what the C library keeps by itself
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
# the median: it takes a few until the heap has its shape, and a system short of memory may take pages back
print(int(statistics.median(faults() for _ in range(25))))
"""


@pytest.mark.extended
@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides by itself")
def test_freed_memory_is_kept():
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", PROBE, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("keep") < 100 < faults("plain") // 10
