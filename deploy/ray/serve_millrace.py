"""Ray Serve in front of Millrace: each copy of the deployment starts one server and passes requests on.

`serve run serve_millrace:app` in this folder starts it; the variables MODEL_ID and MILLRACE_FLAGS choose the
model and further flags. docs/deploy.md explains its use.
"""

import asyncio
import os
import shlex
import signal
import socket
import subprocess

import httpx
from ray import serve
from starlette.requests import Request
from starlette.responses import StreamingResponse

MODEL = os.environ.get("MODEL_ID", "demo")
FLAGS = shlex.split(os.environ.get("MILLRACE_FLAGS", ""))
# Headers that belong to one connection.
HOP_BY_HOP = {"connection", "keep-alive", "transfer-encoding", "te", "trailer", "upgrade", "host", "content-length"}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


@serve.deployment(
    # The server queues requests itself, in a fair order.
    max_ongoing_requests=256,
    graceful_shutdown_timeout_s=120,
    health_check_period_s=5,
    health_check_timeout_s=5,
)
class Millrace:
    async def __init__(self):
        port = free_port()
        command = ["millrace", "serve", "--model-id", MODEL, "--hostname", "127.0.0.1", "--port", str(port), *FLAGS]
        self.server = subprocess.Popen(command)
        # Answers are streams, and their time is bounded by the server.
        self.client = httpx.AsyncClient(base_url=f"http://127.0.0.1:{port}", timeout=None, trust_env=False)
        while not await self.is_ready():
            if self.server.poll() is not None:
                raise RuntimeError(f"millrace has ended with code {self.server.returncode}")
            await asyncio.sleep(0.1)

    async def is_ready(self) -> bool:
        try:
            return (await self.client.get("/ready")).status_code == 200
        except httpx.TransportError:
            return False

    async def check_health(self):
        """Ray replaces a copy for which this fails three times."""
        if (await self.client.get("/health")).status_code != 200:
            raise RuntimeError("millrace is not healthy")

    async def __call__(self, request: Request) -> StreamingResponse:
        target = self.client.build_request(
            request.method,
            httpx.URL(path=request.url.path, query=request.url.query.encode()),
            headers=[(name, value) for name, value in request.headers.items() if name not in HOP_BY_HOP],
            content=await request.body(),
        )
        answer = await self.client.send(target, stream=True)

        async def parts():
            # A client that leaves closes the generator, and with it the request to the server.
            try:
                async for part in answer.aiter_raw():
                    yield part
            finally:
                await answer.aclose()

        headers = {name: value for name, value in answer.headers.items() if name not in HOP_BY_HOP}
        return StreamingResponse(parts(), status_code=answer.status_code, headers=headers)

    async def __del__(self):
        await self.client.aclose()
        # Running requests may end.
        self.server.send_signal(signal.SIGTERM)
        await asyncio.to_thread(self.server.wait)


app = Millrace.bind()
