"""The node daemon imports this package and has 60 MB for everything: what it must not bring along."""

import subprocess
import sys

HEAVY = ("numpy", "yaml", "cryptography", "grpc", "starlette", "uvicorn", "prometheus_client", "aiohttp.web")


def test_nothing_heavy_comes_with_the_package() -> None:
    script = (
        "import pkgutil, sys, hamipy.kube\n"
        "for module in pkgutil.iter_modules(hamipy.kube.__path__):\n"
        "    __import__(f'hamipy.kube.{module.name}')\n"
        f"print(*(m for m in {HEAVY!r} if m in sys.modules))\n"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.split() == []
