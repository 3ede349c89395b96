"""The command line as a person runs it: as a process."""

import subprocess
import sys
from pathlib import Path


def _run(*args: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-m", "hamipy", *args],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        env={"PATH": "/usr/bin:/bin", **env},
    )


def test_an_error_is_one_sentence_and_exit_code_1() -> None:
    result = _run("node", "--node-name", "a/b")
    assert result.returncode == 1
    assert result.stderr == "hamipy: node-name: 'a/b': must be the name of this machine's Node object\n"


def test_wrong_usage_is_exit_code_2() -> None:
    result = _run("inspect", "--output", "yaml")
    assert result.returncode == 2
    assert "'yaml' is not one of" in result.stderr


def test_inspect_without_a_cluster_says_what_is_missing(tmp_path: Path) -> None:
    result = _run("inspect", "--kubeconfig", str(tmp_path / "nowhere"))
    assert result.returncode == 1
    assert len(result.stderr.splitlines()) == 1
    assert "nowhere" in result.stderr


def test_vendors_shows_what_each_vendor_finds_and_what_is_not_installed(tmp_path: Path) -> None:
    result = _run("vendors", "--vendors", "mock,acme", "--mock-profile", "t4x2", "--state-dir", str(tmp_path))
    assert result.returncode == 0
    vendor, missing = result.stdout.splitlines()[1:3]
    assert vendor.split() == ["mock", "discover,", "watch", "2", "devices"]
    assert missing.split(maxsplit=2) == ["acme", "-", "off: not installed; installed are mock"]
    assert result.stdout.count("Mock T4") == 2


def test_a_vendor_whose_driver_hangs_does_not_hang_the_command(tmp_path: Path) -> None:
    (tmp_path / "stuck.py").write_text(
        "import time\nfrom hamipy.core.vendor import Vendor, hookimpl\n"
        "@hookimpl\ndef hamipy_vendors(context):\n"
        "    return [Vendor(name='stuck', discover=lambda: time.sleep(600))]\n"
    )
    about = tmp_path / "stuck-1.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: stuck\nVersion: 1\n")
    (about / "entry_points.txt").write_text("[hamipy.vendors]\nstuck = stuck\n")
    flags = ("--vendors", "mock,stuck", "--mock-profile", "t4x1", "--state-dir", str(tmp_path))
    result = _run("vendors", *flags, "--discovery-limit", "0.2", PYTHONPATH=str(tmp_path))
    assert result.returncode == 0, result.stderr
    mock, stuck = result.stdout.splitlines()[1:3]
    assert mock.split()[-2:] == ["1", "device"]
    assert stuck.endswith("discover took longer than 0.2 s")


def test_the_node_role_imports_nothing_of_the_scheduler() -> None:
    heavy = ("hamipy.scheduler", "numpy", "starlette", "uvicorn", "prometheus_client", "cryptography")
    script = (
        "import sys, hamipy.cli.node, hamipy.node.daemon, hamipy.kube.client\n"
        f"print([m for m in {heavy!r} if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60, check=True)
    assert done.stdout.strip() == "[]"
