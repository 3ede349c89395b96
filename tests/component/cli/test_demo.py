"""`hamipy demo`: the known scenario, with the real roles."""

import subprocess
import sys


def test_the_demo_fills_two_cards_to_89_percent_and_says_what_is_free() -> None:
    done = subprocess.run(
        [sys.executable, "-m", "hamipy", "demo"],
        capture_output=True,
        text=True,
        timeout=90,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stderr == ""
    lines = done.stdout.splitlines()
    tables = [n for n, line in enumerate(lines) if line.startswith("NODE")]
    assert len(tables) == 6
    rows = [line.split() for line in lines[tables[-1] + 1 : tables[-1] + 3]]
    assert sorted(row[1] for row in rows) == ["12/14", "13/14"]
    assert "Allocated memory: 25/28 GiB (89%)" in done.stdout
    (pending,) = [line for line in lines if "stays pending" in line]
    assert "0/2 nodes are available" in pending
    assert "2 node(s) without 3Gi free memory on one device (most free 2Gi)" in pending
    (free,) = [line for line in lines if line.startswith("Free memory")]
    assert "2Gi on mock-node-" in free
    assert "1Gi on mock-node-" in free
