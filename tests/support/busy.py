"""How busy this machine is: what a test gives more time by."""

from __future__ import annotations

import os


def overload() -> float:
    """How much longer things take here than on a machine of our own: waiting processes per processor, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
