"""Long-running processes that outlive the command that started them, on the host or inside a node's namespaces."""

import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TypeVar

from .errors import HarnessError

T = TypeVar("T")
MARK = "HAMIPY_CLUSTER"  # in the environment of every process of a cluster, so that none can be overlooked
_START = 'echo $$ >"$1.new" && mv "$1.new" "$1" && log=$2 && shift 2 && exec "$@" </dev/null >>"$log" 2>&1'


def wait_until(predicate: Callable[[], T], timeout: float, what: str | Callable[[], str], interval: float = 0.1) -> T:
    """Poll until `predicate` is true, and return what it returned.

    Raises:
        HarnessError: it was not within `timeout` seconds; the text ends with what was last seen.
    """
    end = time.monotonic() + timeout
    while not (seen := predicate()):
        if time.monotonic() > end:
            said = what if isinstance(what, str) else what()
            raise HarnessError(f"waited {timeout:g} s for {said}; last seen: {seen!r}")
        time.sleep(interval)
    return seen


def environment(mark: Path, path: str) -> dict[str, str]:
    """What every process of the cluster starts with: no proxies, no settings of the caller."""
    return {"PATH": path, "HOME": "/root", "LANG": "C.UTF-8", MARK: str(mark)}


class Daemon:
    """One process with its pid file and log; can be killed, paused and started again.

    Args:
        name: of pid file and log.
        argv: command, full path first.
        directory: where `<name>.pid` and `log/<name>.log` lie.
        env: its whole environment.
        init: file with the host pid of the node's first process, whose namespaces it shall live in; None: the host's.
    """

    def __init__(
        self, name: str, argv: Sequence[str], directory: Path, env: Mapping[str, str], init: Path | None = None
    ) -> None:
        self.name, self.argv, self.env = name, list(argv), dict(env)
        self.pid_file, self.log = directory / f"{name}.pid", directory / "log" / f"{name}.log"
        self._init = init

    def _enter(self) -> list[str]:
        if self._init is None:
            return []
        return ["nsenter", "-t", self._init.read_text().strip(), "-m", "-p", "-n", "-u", "--"]

    @property
    def _proc(self) -> Path:
        return Path("/proc") if self._init is None else Path("/proc", self._init.read_text().strip(), "root/proc")

    @property
    def pid(self) -> int | None:
        """Its pid in its own pid namespace; None when it does not run (a zombie does not run)."""
        try:
            pid = int(self.pid_file.read_text())
            command = (self._proc / str(pid) / "cmdline").read_bytes().split(b"\0")
        except (FileNotFoundError, ProcessLookupError, ValueError):
            return None
        # a dying process has no command line any more, but still its sockets
        ours = command[0] in (os.fsencode(self.argv[0]), b"")
        return pid if ours and not gone(self._proc, pid) else None

    @property
    def alive(self) -> bool:
        """True while it runs, paused or not."""
        return self.pid is not None

    def start(self) -> None:
        """Start it; returns as soon as it executes, not when it is ready."""
        if self.alive:
            raise HarnessError(f"{self.name} already runs")
        self.log.parent.mkdir(parents=True, exist_ok=True)
        self.pid_file.unlink(missing_ok=True)
        start = ["setsid", "-f", "sh", "-c", _START, "sh", str(self.pid_file), str(self.log), *self.argv]
        subprocess.run([*self._enter(), *start], env=self.env, check=True, stdin=subprocess.DEVNULL)
        wait_until(lambda: self.alive or self._ended(), 10, f"{self.name} to start", 0.01)

    def _ended(self) -> bool:
        return self.pid_file.exists() and not self._proc.joinpath(self.pid_file.read_text().strip()).exists()

    def signal(self, number: int) -> None:
        """Send a signal; nothing happens when it does not run."""
        pid = self.pid
        if pid is None:
            return
        if self._init is None:
            os.kill(pid, number)
        else:
            subprocess.run([*self._enter(), "kill", f"-{number}", str(pid)], check=False)

    def kill(self) -> None:
        """kill -9, and wait until it is gone."""
        self.signal(signal.SIGKILL)
        wait_until(lambda: not self.alive, 10, f"{self.name} to die", 0.02)

    def terminate(self, timeout: float = 15) -> None:
        """End it politely, and wait until it is gone."""
        self.signal(signal.SIGTERM)
        wait_until(lambda: not self.alive, timeout, f"{self.name} to end", 0.05)

    def pause(self) -> None:
        """Stop it where it stands (SIGSTOP); its sockets stay open."""
        self.signal(signal.SIGSTOP)

    def resume(self) -> None:
        """Let a paused one go on."""
        self.signal(signal.SIGCONT)

    def restart(self) -> None:
        """kill -9 and start."""
        self.kill()
        self.start()

    def tail(self, lines: int = 40) -> str:
        """The end of its log."""
        if not self.log.exists():
            return f"(no log {self.log})"
        with self.log.open("rb") as log:
            log.seek(max(0, self.log.stat().st_size - 400 * lines))
            return "\n".join(line[:240] for line in log.read().decode(errors="replace").splitlines()[-lines:])


def gone(proc: Path, pid: int) -> bool:
    """True when a process has ended with all its threads, and so let go of its files and sockets; a zombie has."""
    try:
        state = (proc / str(pid) / "stat").read_text().rpartition(")")[2].split()[0]
        return state in "ZX" and len(list((proc / str(pid) / "task").iterdir())) <= 1
    except (FileNotFoundError, ProcessLookupError):
        return True


def marked(mark: Path) -> dict[int, str]:
    """Pid and command line of every living process that belongs to the cluster in directory `mark`."""
    wanted, found = f"{MARK}={mark}".encode(), {}
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            if wanted not in (entry / "environ").read_bytes().split(b"\0"):
                continue
            command = (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except (FileNotFoundError, ProcessLookupError, PermissionError):
            continue
        if not gone(entry.parent, int(entry.name)):
            found[int(entry.name)] = command.strip()
    return found
