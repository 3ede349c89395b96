"""Processes under measurement: their ports, their kubeconfig, and when they are ready."""

import contextlib
import http.client
import json
import socket
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path


def free_port() -> int:
    """A TCP port of 127.0.0.1 that nobody listens on at the moment."""
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def kubeconfig(url: str) -> Iterator[Path]:
    """A kubeconfig file for an API server without TLS that asks for no credentials."""
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory, "kubeconfig")
        document = {
            "clusters": [{"name": "c", "cluster": {"server": url}}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "users": [{"name": "u", "user": {"token": "t"}}],
            "current-context": "x",
        }
        path.write_text(json.dumps(document))
        yield path


def wait_ready(port: int, pid: int, limit: float = 60.0) -> None:
    """Wait until the scheduler of this metrics port says that its extender is ready."""
    deadline = time.monotonic() + limit
    while time.monotonic() < deadline and Path(f"/proc/{pid}").exists():
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
        try:
            connection.request("GET", "/readyz/extender")
            if connection.getresponse().status == 200:
                return
        except OSError:
            pass  # it has not opened its port yet
        finally:
            connection.close()
        time.sleep(0.02)
    raise SystemExit(f"the scheduler is not ready after {limit:.0f} s")
