"""CPU time of a program with all its processes, as the kernel accounts for it: steadier than any rate on a busy machine."""

from __future__ import annotations

import contextlib
import ctypes
import hashlib
import json
import os
import time
from collections.abc import Iterator
from pathlib import Path

_TICKS = os.sysconf("SC_CLK_TCK")


def tree_cpu_seconds(root: int) -> float:
    """CPU seconds so far of a process, its living descendants and those that ended and were waited for.

    0.0 outside Linux, where /proc does not tell.
    """
    processes = dict(_processes())
    children: dict[int, list[int]] = {}
    for pid, (parent, _) in processes.items():
        children.setdefault(parent, []).append(pid)
    total, left = 0.0, [root]
    while left:
        pid = left.pop()
        if pid in processes:
            total += _own_seconds(pid) + processes[pid][1]
            left += children.get(pid, [])
    return total


def _processes() -> Iterator[tuple[int, tuple[int, float]]]:
    """(process id, (parent's id, CPU seconds of its ended children)) of every process."""
    for folder in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            fields = (folder / "stat").read_text().rpartition(")")[2].split()
            yield int(folder.name), (int(fields[1]), (int(fields[13]) + int(fields[14])) / _TICKS)


def _own_seconds(pid: int) -> float:
    """CPU seconds of all threads of a process, also of ended ones, in the resolution of its CPU clock."""
    clock = ctypes.c_int()
    try:
        if ctypes.CDLL(None).clock_getcpuclockid(pid, ctypes.byref(clock)):
            return 0.0
        return time.clock_gettime(clock.value)
    except (AttributeError, OSError):
        return 0.0


def machine_cpu_seconds() -> float:
    """CPU seconds so far that anything used on this machine, also what a hypervisor gave to others; 0.0 outside Linux."""
    told = Path("/proc/stat")
    if not told.exists():
        return 0.0
    user, nice, system, _idle, _waiting, *rest = map(int, told.read_text().split("\n", 1)[0].split()[1:9])
    return (user + nice + system + sum(rest)) / _TICKS


def yardstick_us(rounds: int = 400) -> float:
    """CPU microseconds of a fixed piece of work, its fastest third: how fast this machine is at this moment."""
    work = {"account": "acct_000001", "numbers": list(range(40)), "parts": {str(n): "x" * n for n in range(20)}}
    times = []
    for _ in range(rounds):
        began = time.thread_time()
        for _ in range(4):
            hashlib.sha256(json.dumps(work, sort_keys=True).encode()).hexdigest()
        times.append(time.thread_time() - began)
    fastest = sorted(times)[: rounds // 3]
    return 1e6 * sum(fastest) / len(fastest)
