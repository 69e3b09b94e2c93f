"""What an update frees, the next one has at once."""

import platform
import subprocess
import sys

import pytest

PROBE = """
import resource, sys, torch
from dovetail.learn.memory import keep_freed_memory
torch.set_num_threads(1)
if sys.argv[1] == "keep":
    assert keep_freed_memory()
def work():
    torch.ones(16 << 20)  # 64 MB: beyond what the C library keeps by itself
for _ in range(10):  # it takes a few until the heap has its shape
    work()
before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(4):
    work()
print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library decides by itself")
def test_freed_memory_is_kept():
    def faults(how: str) -> int:
        done = subprocess.run([sys.executable, "-c", PROBE, how], capture_output=True, text=True, check=True)
        return int(done.stdout)

    assert faults("keep") < 100 < faults("plain") // 10
