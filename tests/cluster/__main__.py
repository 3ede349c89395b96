"""`python -m tests.cluster`: a cluster for a person, with the chart installed."""

import argparse
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

from . import chart
from .cluster import Cluster, destroy, leftovers, work_directory
from .errors import HarnessError

HERE = chart.REPOSITORY / ".cluster"
_NEXT = """
The cluster is up ({seconds:.0f} s): Kubernetes {version}, nodes {nodes}.{chart}

  . .cluster/env                       # KUBECONFIG and PATH: kubectl, helm, hamipy
  kubectl get nodes,nodedevices
  kubectl run half --image=local/busybox:1 --restart=Never \\
    --overrides='{{"spec":{{"containers":[{{"name":"half","image":"local/busybox:1","command":["sleep","3600"],
                 "resources":{{"limits":{{"hamipy.io/memory":"7Gi","hamipy.io/cores":"50"}}}}}}]}}}}'
  kubectl wait --for=condition=Ready pod/half && kubectl exec half -- cat /run/hamipy/limits.json
  hamipy inspect -d
  make cluster-down                    # takes every trace away
"""


def up(profiles: list[str], *, with_chart: bool) -> None:
    """Start a cluster, install the chart, say what to type next."""
    began = time.monotonic()
    archive = chart.image() if with_chart else None
    cluster = Cluster.start(profiles)
    HERE.mkdir(exist_ok=True)
    shutil.copy(cluster.kubeconfig, HERE / "kubeconfig")
    tools = HERE / "bin"
    shutil.rmtree(tools, ignore_errors=True)
    tools.mkdir()
    for name in ("kubectl", "helm"):
        (tools / name).symlink_to(cluster.binaries[name])
    venv = Path(sys.executable).parent
    (HERE / "env").write_text(f'export KUBECONFIG="{HERE}/kubeconfig" PATH="{tools}:{venv}:$PATH"\n')
    if archive:
        chart.install(cluster, archive)
        chart.wait_devices(cluster)
    nodes = ", ".join(f"{n} ({p})" for n, p in zip(cluster.nodes, profiles, strict=True))
    said = "" if archive else " The chart is not installed."
    seconds = time.monotonic() - began
    print(_NEXT.format(seconds=seconds, version=cluster.binaries.kubernetes_version, nodes=nodes, chart=said))


def down() -> None:
    """Take every trace away."""
    destroy(work_directory())
    shutil.rmtree(HERE, ignore_errors=True)
    left = leftovers()
    if left:
        raise HarnessError("left behind:\n" + "\n".join(left))


def reload() -> None:
    """Put the working tree's hamipy and chart on the running cluster."""
    cluster = _running()
    cluster.import_image(chart.image())
    chart.apply(cluster)
    for workload in ("deployment/hamipy-scheduler", "daemonset/hamipy-node"):
        cluster.kubectl("-n", chart.NAMESPACE, "rollout", "restart", workload)
    for workload in ("deployment/hamipy-scheduler", "daemonset/hamipy-node"):
        cluster.kubectl("-n", chart.NAMESPACE, "rollout", "status", "--timeout=120s", workload, timeout=130)
    chart.wait_devices(cluster)


def status() -> None:
    """Show components, nodes and the chart's pods."""
    cluster = _running()
    for daemon in cluster.plane.daemons.values():
        print(f"{daemon.name:26} {'runs' if daemon.alive else 'is down'}  {daemon.log}")
    for node in cluster.nodes.values():
        for daemon in (node.kubelet, node.containerd):
            up_ = node.running and daemon.alive
            print(f"{node.name + ' ' + daemon.name:26} {'runs' if up_ else 'is down'}  {daemon.log}")
    print(cluster.kubectl("get", "nodes", "-o", "wide"))
    print(cluster.kubectl("-n", chart.NAMESPACE, "get", "pods", "-o", "wide", check=False))


def execute(node: str, command: list[str]) -> int:
    """Run a command inside a node's namespaces."""
    cluster = _running()
    if node not in cluster.nodes:
        raise HarnessError(f"node: {node!r}: there are {', '.join(cluster.nodes)}")
    env = os.environ | {"PATH": cluster.binaries.search_path}
    return subprocess.run(cluster.nodes[node].command(*(command or ["sh"])), env=env).returncode


def _running() -> Cluster:
    cluster = Cluster.load()
    if cluster is None:
        raise HarnessError("no cluster runs here: `make cluster` starts one")
    return cluster


def main() -> int:
    """Read the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.cluster", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    start = commands.add_parser("up", help="start a cluster and install the chart")
    start.add_argument(
        "--profiles",
        default=os.environ.get("PROFILES") or "t4x1,t4x1",
        help="mock profile of each node, by commas; also PROFILES [t4x1,t4x1]",
    )
    start.add_argument("--no-chart", action="store_true", help="leave the cluster empty")
    commands.add_parser("down", help="take every trace of it away")
    commands.add_parser("reload", help="build the image again and restart the chart's pods with it")
    commands.add_parser("status", help="what runs, and where its log is")
    inside = commands.add_parser("exec", help="run a command inside a node")
    inside.add_argument("node")
    inside.add_argument("argv", nargs=argparse.REMAINDER, help="command; default: sh")
    arguments = parser.parse_args()
    try:
        match arguments.command:
            case "up":
                up([p for p in arguments.profiles.split(",") if p], with_chart=not arguments.no_chart)
            case "down":
                down()
            case "reload":
                reload()
            case "status":
                status()
            case "exec":
                return execute(arguments.node, [a for a in arguments.argv if a != "--"])
    except HarnessError as e:
        print(f"cluster: {e}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
