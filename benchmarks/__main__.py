"""All benchmarks, one after the other."""

import subprocess
import sys

RUNS = (
    ("extender", "--nodes", "1000", "--devices", "8", "--pods", "5000"),
    ("extender", "--nodes", "5000", "--devices", "8", "--pods", "20000"),
    ("node",),
    ("burst",),
)

if __name__ == "__main__":
    codes = [subprocess.call([sys.executable, "-m", f"benchmarks.{name}", *options]) for name, *options in RUNS]
    sys.exit(max(codes))
