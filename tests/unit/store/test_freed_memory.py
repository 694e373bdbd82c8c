"""Memory that a training step frees stays with the process."""

from __future__ import annotations

import platform
import subprocess
import sys

import pytest

STEPS = """
import resource, threading
import numpy as np
from sparsefleet import _core

_core.keep_freed_memory()

def step():
    blocks = [np.ones(1 << 20) for _ in range(3)]  # 8 MiB each, freed at the end
    return len(blocks)

def train():
    step()
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(5):
        step()
    print(resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before)

for _ in range(2):
    thread = threading.Thread(target=train)
    thread.start()
    thread.join()
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_steps_of_a_thread_take_no_new_pages_from_the_system() -> None:
    done = subprocess.run(
        [sys.executable, "-c", STEPS], capture_output=True, text=True, timeout=60, check=True
    )
    faults = [int(line) for line in done.stdout.split()]
    assert len(faults) == 2
    assert max(faults) < 1000  # given back, 5 steps of 24 MiB would fault 30,720 times


ARENAS = """
import ctypes, threading
from sparsefleet import _core

_core.keep_freed_memory(2)
c = ctypes.CDLL(None)
c.malloc.restype = ctypes.c_void_p
together = threading.Barrier(2)

def allocate():
    c.malloc(ctypes.c_size_t(100_000))
    together.wait()

threads = [threading.Thread(target=allocate) for _ in range(2)]
for thread in threads:
    thread.start()
for thread in threads:
    thread.join()
c.malloc_stats()  # writes a block for each arena to stderr
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="other C libraries are left alone")
def test_threads_that_train_do_not_share_an_arena() -> None:
    done = subprocess.run(
        [sys.executable, "-c", ARENAS], capture_output=True, text=True, timeout=60, check=True
    )
    assert done.stderr.count("Arena ") >= 3  # of the main thread and of both others
