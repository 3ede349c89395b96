"""Two servers that have to keep the same promises: the one in memory, and the real etcd and kube-apiserver."""

import itertools
import os
from collections.abc import AsyncIterator, Iterator

import pytest

from hamipy.kube.client import KubeClient
from hamipy.kube.config import ClusterConfig
from hamipy.kube.nodedevices import apply_crd
from hamipy.testing.apiserver import InMemoryApiServer
from tests.chart.bare import BareApiServer
from tests.cluster.binaries import obtain

_numbers = itertools.count(1)


@pytest.fixture(scope="session")
def real(tmp_path_factory: pytest.TempPathFactory) -> Iterator[BareApiServer]:
    """The real one, started once."""
    server = BareApiServer(tmp_path_factory.mktemp("real"), obtain())
    server.start()
    yield server
    server.stop()


@pytest.fixture(params=["memory", "real"])
async def config(request: pytest.FixtureRequest) -> AsyncIterator[ClusterConfig]:
    """How to reach the server under test, as an administrator."""
    if request.param == "memory":
        async with InMemoryApiServer(crds=False) as api:
            yield api.config()
        return
    server: BareApiServer = request.getfixturevalue("real")
    certificate, key = server.authority.issue("admin-contract", "admin", ["system:masters"])
    yield ClusterConfig(
        server=server.server,
        ca_file=str(server.authority.certificate),
        client_cert_file=str(certificate),
        client_key_file=str(key),
    )


@pytest.fixture
async def client(config: ClusterConfig) -> AsyncIterator[KubeClient]:
    async with KubeClient(config) as made:
        yield made


@pytest.fixture
async def namespace(client: KubeClient) -> str:
    """A namespace of the test's own."""
    name = f"contract-{os.getpid()}-{next(_numbers)}"
    await client.create("/api/v1/namespaces", {"metadata": {"name": name}})
    return name


@pytest.fixture
async def with_crd(client: KubeClient) -> None:
    """NodeDevices are served."""
    await apply_crd(client)
