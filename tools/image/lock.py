"""`python -m tools.image.lock`: write requirements.lock anew from pyproject.toml, for x86_64 and arm64."""

import json
import subprocess
import sys
import tomllib

from tools.image.packages import LOCK, REPOSITORY, wheel_tags


def main() -> None:
    """Write the lock file."""
    wanted = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    found: dict[str, str] = {}
    hashes: dict[str, set[str]] = {}
    for machine in ("x86_64", "aarch64"):
        command = [
            sys.executable,
            "-m",
            "pip",
            "--quiet",
            "install",
            "--dry-run",
            "--ignore-installed",
            "--report=-",
            "--target=/nonexistent",
        ]
        done = subprocess.run([*command, *wheel_tags(machine), *wanted], check=True, capture_output=True, text=True)
        for item in json.loads(done.stdout)["install"]:
            name, version = item["metadata"]["name"].lower().replace("_", "-"), item["metadata"]["version"]
            if found.setdefault(name, version) != version:
                raise SystemExit(f"tools.image.lock: {name} is {found[name]} and {version} on different machines")
            hashes.setdefault(name, set()).add(item["download_info"]["archive_info"]["hashes"]["sha256"])
    lines = ["# Made by `python -m tools.image.lock`; wheels for Python 3.11 on x86_64 and arm64."]
    lines += [
        " \
    ".join([f"{name}=={found[name]}", *(f"--hash=sha256:{h}" for h in sorted(hashes[name]))])
        for name in sorted(found)
    ]
    LOCK.write_text("\n".join(lines) + "\n")


if __name__ == "__main__":
    main()
