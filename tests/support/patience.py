"""How much longer than alone things take on this machine now, for the few tests that have to look at a clock."""

import os


def strain() -> float:
    """Processes that want to run for each core, at least 1."""
    return max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
