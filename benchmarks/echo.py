"""An extender that does nothing but what every extender must: decode, answer, post the Binding.

Every node fits, every node scores 0. Same HTTP server, codec and API client as hamipy's, so the difference to it is
hamipy's own work: reading the request, the ledger, the choice, the watch.
"""

import argparse
import asyncio
import socket

import msgspec
import uvicorn
from msgspec import Raw, Struct
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from hamipy.kube.client import KubeClient
from hamipy.kube.config import load_config
from hamipy.kube.errors import KubeError


class _Args(Struct, rename="pascal"):
    node_names: Raw


class _Answer(Struct, rename="pascal"):
    node_names: Raw
    error: str = ""


class _Binding(Struct, rename="pascal"):
    pod_name: str
    pod_namespace: str
    node: str
    pod_uid: str = msgspec.field(name="PodUID")


def _app(client: KubeClient) -> Starlette:
    args, binding = msgspec.json.Decoder(_Args), msgspec.json.Decoder(_Binding)
    names = msgspec.json.Decoder(list[str])
    encode = msgspec.json.Encoder().encode

    def answer(value: object) -> Response:
        return Response(encode(value), media_type="application/json")

    async def filter_(request: Request) -> Response:
        return answer(_Answer(args.decode(await request.body()).node_names))

    async def prioritize(request: Request) -> Response:
        found = names.decode(args.decode(await request.body()).node_names)
        return answer([{"Host": name, "Score": 0} for name in found])

    async def bind(request: Request) -> Response:
        it = binding.decode(await request.body())
        try:
            await client.bind(it.pod_namespace, it.pod_name, it.pod_uid, it.node, {}, timeout=5)
        except KubeError as error:
            return answer({"Error": str(error)})
        return answer({"Error": ""})

    async def ready(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    verbs = {"/filter": filter_, "/prioritize": prioritize, "/bind": bind}
    routes = [Route(path, verb, methods=["POST"]) for path, verb in verbs.items()]
    return Starlette(routes=[*routes, Route("/readyz/extender", ready)])


async def _run(kubeconfig: str, port: int) -> None:
    async with KubeClient(load_config(kubeconfig), user_agent="echo") as client:
        config = uvicorn.Config(
            _app(client),
            http="httptools",
            ws="none",
            lifespan="off",
            loop="none",
            log_config=None,
            log_level="warning",
            access_log=False,
            server_header=False,
            timeout_keep_alive=120,
        )
        listening = socket.create_server(("127.0.0.1", port), backlog=2048)
        await uvicorn.Server(config).serve([listening])


def main() -> None:
    """Serve until SIGTERM."""
    from uvloop import new_event_loop

    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--kubeconfig", required=True)
    options.add_argument("--port", type=int, required=True)
    arguments = options.parse_args()
    with asyncio.Runner(loop_factory=new_event_loop) as runner:
        runner.run(_run(arguments.kubeconfig, arguments.port))


if __name__ == "__main__":
    main()
