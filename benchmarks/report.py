"""What all benchmarks share: options, percentiles, memory of a process, how figures are printed."""

import argparse
import json
import os
import platform
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hamipy.cli.tables import table


def parser(description: str) -> argparse.ArgumentParser:
    """A parser with the option that every benchmark has."""
    options = argparse.ArgumentParser(description=description)
    options.add_argument("-o", "--output", choices=("table", "json"), default="table")
    return options


def percentile(samples: Sequence[float], percent: float) -> float:
    """Nearest-rank percentile."""
    ordered = sorted(samples)
    return ordered[min(len(ordered) - 1, max(0, round(percent / 100 * len(ordered)) - 1))]


def milliseconds(samples: Sequence[float]) -> dict[str, float]:
    """Median and 99th percentile of samples in seconds, as milliseconds."""
    return {"p50_ms": round(percentile(samples, 50) * 1e3, 3), "p99_ms": round(percentile(samples, 99) * 1e3, 3)}


def rss_mb(pid: int) -> float:
    """Resident memory of a process in MB (10^6 bytes)."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    return round(pages * os.sysconf("SC_PAGE_SIZE") / 1e6, 1)


def loaded() -> float:
    """Load average of the last minute: figures of a busy machine say so."""
    return round(os.getloadavg()[0], 1)


def show(output: str, title: str, figures: dict[str, Any], reach: dict[str, str]) -> None:
    """Print the figures.

    Args:
        output: `table` or `json`.
        title: what was measured.
        figures: nested names to numbers.
        reach: dotted name -> what the project wants to reach.
    """
    if output == "json":
        print(json.dumps(figures))
        return
    rows = [(name, value, reach.get(name, "")) for name, value in _flat(figures)]
    print(f"\n{title}  ({os.cpu_count()} cores, Python {platform.python_version()})\n")
    print(table(("FIGURE", "MEASURED", "REACH"), rows))


def _flat(figures: dict[str, Any], prefix: str = "") -> list[tuple[str, Any]]:
    rows: list[tuple[str, Any]] = []
    for name, value in figures.items():
        rows += _flat(value, f"{prefix}{name}.") if isinstance(value, dict) else [(f"{prefix}{name}", value)]
    return rows
