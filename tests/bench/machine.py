"""What a run was made on: described without naming the machine."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from sentinel.store.embedded import find_binaries
from tests.bench.generator import has_wrk

SAME = ("processor", "processors", "memory", "load by")
"""What makes two runs comparable. Versions of Python and PostgreSQL are not in it: what they cost is looked for as well."""


def describe_machine() -> dict[str, str]:
    """What a reader wants to know, by name."""
    return {
        "processor": _processor(),
        "processors": str(os.cpu_count()),
        "memory": f"{os.sysconf('SC_PAGE_SIZE') * os.sysconf('SC_PHYS_PAGES') / 2**30:.0f} GiB",
        "system": f"{platform.system()} {platform.release()}",
        "python": f"{platform.python_version()}, compiled {'with' if _is_optimised() else 'without'} optimisations",
        "postgresql": str(find_binaries().version),
        "load by": "wrk" if has_wrk() else "tests/bench/load.py",
        "fdatasync": f"{_fdatasync_us():.0f} µs",
        "busy before": f"{os.getloadavg()[0]:.1f}",
    }


def machine_id(machine: dict[str, str]) -> str:
    """Short text that two runs have in common exactly when their CPU times may be compared."""
    said = "\n".join(machine[name] for name in SAME)
    return f"{re.sub(r'[^a-z0-9]+', '-', machine['processor'].lower()).strip('-')}-{hashlib.sha256(said.encode()).hexdigest()[:8]}"


def _is_optimised() -> bool:
    script = Path(__file__).parents[2] / "deploy" / "is_optimised.py"
    return subprocess.run([sys.executable, str(script)], check=False).returncode == 0


def _processor() -> str:
    told = Path("/proc/cpuinfo")
    found = re.search(r"^model name\s*: (.+)$", told.read_text(), re.MULTILINE) if told.exists() else None
    return found[1] if found else platform.processor() or platform.machine()


def _fdatasync_us() -> float:
    """The median of writing 8 kB to disk where the database will be, in microseconds."""
    times = []
    with tempfile.TemporaryFile() as file:
        for _ in range(50):
            file.write(b"x" * 8192)
            file.flush()
            began = time.perf_counter()
            os.fdatasync(file.fileno())
            times.append(time.perf_counter() - began)
    return 1e6 * statistics.median(times)
