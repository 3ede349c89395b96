"""A control plane for benchmarks: etcd, kube-apiserver, kube-controller-manager, kube-scheduler, and no kubelet.

It listens on free ports of 127.0.0.1 only, so that it can stand beside any other cluster of the machine. Node objects
stay as they are created: there is no node-lifecycle controller that would miss their kubelets.
"""

import asyncio
import contextlib
import json
import os
import shutil
import signal
import tempfile
from collections import Counter
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any, Self

import yaml

from benchmarks.processes import free_port
from hamipy.kube.client import KubeClient
from hamipy.kube.config import load_config
from hamipy.kube.errors import KubeError
from tests.cluster import chart, pki
from tests.cluster.binaries import Binaries, obtain

_WRITES = ["create", "update", "patch", "delete"]


class Process:
    """A child process whose output goes to a file."""

    def __init__(self, name: str, process: asyncio.subprocess.Process, log: Path) -> None:
        self.name, self.log, self._process = name, log, process
        self.pid = process.pid

    @classmethod
    async def start(cls, name: str, command: list[str], directory: Path) -> Self:
        """Start it; its log is `<directory>/<name>.log`."""
        log = directory / f"{name}.log"
        with log.open("ab") as output:
            process = await asyncio.create_subprocess_exec(*command, stdout=output, stderr=output)
        return cls(name, process, log)

    @property
    def cpu_seconds(self) -> float:
        """User and system time that it has taken."""
        fields = Path(f"/proc/{self.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def check(self) -> None:
        """Raises SystemExit with the end of its log when it has ended."""
        if self._process.returncode is not None:
            raise SystemExit(f"{self.name} ended:\n{self.log.read_text()[-2000:]}")

    async def stop(self) -> None:
        """End it, politely at first."""
        if self._process.returncode is None:
            self._process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(10):
                    await self._process.wait()
            except TimeoutError:
                self._process.kill()
                await self._process.wait()


class ControlPlane:
    """The control plane; an async context manager.

    Attributes:
        client: of a member of system:masters.
        server: address of the API server.
    """

    def __init__(self) -> None:
        self.directory = Path(tempfile.mkdtemp(prefix="hamipy-burst-"))
        self.binaries: Binaries = obtain()
        self.client: KubeClient
        self._authority = pki.Authority(self.directory / "pki")
        self._port = free_port()
        self.server = f"https://127.0.0.1:{self._port}"
        self._stack = contextlib.AsyncExitStack()
        self.apiserver: Process
        self._audit = self.directory / "audit.log"

    async def __aenter__(self) -> Self:
        try:
            await self._start()
        except BaseException:
            await self._stack.aclose()
            raise
        return self

    async def __aexit__(self, *error: object) -> None:
        await self._stack.aclose()

    @contextlib.asynccontextmanager
    async def process(self, name: str, *command: str) -> AsyncIterator[Process]:
        """One more process, for as long as the context lasts."""
        process = await Process.start(name, list(command), self.directory)
        try:
            yield process
        finally:
            await process.stop()

    def kubeconfig(self, user: str, groups: tuple[str, ...] = ()) -> Path:
        """A kubeconfig for a user with these groups."""
        return self._authority.kubeconfig(self.directory / f"{user}.kubeconfig", user, groups, server=self.server)

    @contextlib.asynccontextmanager
    async def scheduler(self, extender: int | None) -> AsyncIterator[Process]:
        """kube-scheduler as the chart configures it, with the extender at this port or with none, and no Lease."""
        config = yaml.safe_load(await self._rendered("kube-scheduler.yaml", "templates/scheduler-config.yaml"))
        config["clientConnection"]["kubeconfig"] = str(self.directory / "system:kube-scheduler.kubeconfig")
        config["leaderElection"] = {"leaderElect": False}
        if extender is None:
            del config["extenders"]
        else:
            config["extenders"][0]["urlPrefix"] = f"http://127.0.0.1:{extender}"
        path = self.directory / "kube-scheduler.yaml"
        path.write_text(yaml.safe_dump(config))
        command = [self.binaries["kube-scheduler"], f"--config={path}", "--secure-port=0"]
        async with self.process("kube-scheduler", *command) as process:
            yield process

    async def _rendered(self, key: str, template: str) -> str:
        """One entry of a ConfigMap of the chart."""
        values = self.directory / "values.json"
        values.write_text(json.dumps(chart.values()))
        command = [self.binaries["helm"], "template", "hamipy", str(chart.CHART), "--show-only", template]
        helm = await asyncio.create_subprocess_exec(*command, "-f", str(values), stdout=asyncio.subprocess.PIPE)
        output, _ = await helm.communicate()
        if helm.returncode:
            raise SystemExit(f"helm template failed with exit code {helm.returncode}")
        return str(yaml.safe_load(output)["data"][key])

    def writes(self, user: str) -> Counter[str]:
        """What a user has written so far, as the API server's audit log has it: `create pods/binding` -> requests."""
        counts: Counter[str] = Counter()
        for line in self._audit.read_text().splitlines():
            event = json.loads(line)
            if event["user"]["username"] == user:
                resource = event["objectRef"]
                name = "/".join(filter(None, (resource["resource"], resource.get("subresource"))))
                counts[f"{event['verb']} {name}"] += 1
        return counts

    async def _start(self) -> None:
        self._stack.callback(shutil.rmtree, self.directory, ignore_errors=True)
        etcd = await self._start_etcd()
        self._authority.issue("apiserver", "kube-apiserver", dns=["localhost"], ips=["127.0.0.1"])
        pki.write_key(self.directory / "pki" / "service-accounts.key")
        policy = self.directory / "audit.yaml"
        rules = [{"level": "Metadata", "users": ["hamipy", "echo"], "verbs": _WRITES}, {"level": "None"}]
        policy.write_text(
            yaml.safe_dump(
                {"apiVersion": "audit.k8s.io/v1", "kind": "Policy", "omitStages": ["RequestReceived"], "rules": rules}
            )
        )
        key = self.directory / "pki" / "service-accounts.key"
        self.apiserver = await self._child(
            "kube-apiserver",
            f"--etcd-servers={etcd}",
            f"--secure-port={self._port}",
            "--bind-address=127.0.0.1",
            "--endpoint-reconciler-type=none",
            f"--tls-cert-file={self.directory / 'pki' / 'apiserver.crt'}",
            f"--tls-private-key-file={self.directory / 'pki' / 'apiserver.key'}",
            f"--client-ca-file={self.directory / 'pki' / 'ca.crt'}",
            f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}",
            "--service-account-issuer=https://kubernetes.default.svc",
            "--service-cluster-ip-range=10.96.0.0/16",
            "--authorization-mode=Node,RBAC",
            "--disable-admission-plugins=TaintNodesByCondition",  # no controller would take the taint off again
            f"--audit-policy-file={policy}",
            f"--audit-log-path={self._audit}",
            "--audit-log-mode=batch",
        )
        config = load_config(str(self.kubeconfig("admin", ("system:masters",))))
        self.client = await self._stack.enter_async_context(KubeClient(config, user_agent="benchmark"))
        await self._ready()
        self.kubeconfig("system:kube-scheduler")
        manager = self.kubeconfig("system:kube-controller-manager")
        await self._child(
            "kube-controller-manager",
            f"--kubeconfig={manager}",
            "--controllers=*,-node-lifecycle-controller",
            "--use-service-account-credentials=true",
            f"--service-account-private-key-file={key}",
            f"--root-ca-file={self.directory / 'pki' / 'ca.crt'}",
            "--leader-elect=false",
            "--secure-port=0",
        )

    async def _start_etcd(self) -> str:
        clients, peers = (f"http://127.0.0.1:{free_port()}" for _ in range(2))
        await self._child(
            "etcd",
            f"--data-dir={self.directory / 'etcd'}",
            "--unsafe-no-fsync",
            f"--listen-client-urls={clients}",
            f"--advertise-client-urls={clients}",
            f"--listen-peer-urls={peers}",
            f"--initial-advertise-peer-urls={peers}",
            f"--initial-cluster=default={peers}",
            "--log-level=warn",
        )
        return clients

    async def _child(self, name: str, *arguments: str) -> Process:
        return await self._stack.enter_async_context(self.process(name, self.binaries[name], *arguments))

    async def _ready(self) -> None:
        async with asyncio.timeout(60):
            while True:
                self.apiserver.check()
                with contextlib.suppress(KubeError):
                    if await self.client.request("GET", "/readyz", timeout=2) == b"ok":
                        return
                await asyncio.sleep(0.1)

    def check(self, *more: Process) -> None:
        """Raises SystemExit when a part has ended."""
        for process in (self.apiserver, *more):
            process.check()


async def retried(action: Any, limit: float = 30.0) -> Any:
    """The result of `action()` once the API server takes it: namespaces and service accounts appear a little later."""
    async with asyncio.timeout(limit):
        while True:
            try:
                return await action()
            except KubeError:
                await asyncio.sleep(0.1)
