"""Fake HTTP APIs of Docker and Kubernetes, for any number of apps that run until they are ended.

`python fake_api.py docker 1000` prints its port. The measure uses `/bench/...` to set the number of apps, end them, and
read counts of requests.
"""

from __future__ import annotations

import asyncio
import contextlib
import hashlib
import json
import re
import subprocess
import sys
import time
from collections import Counter, defaultdict
from collections.abc import Iterator
from email.utils import formatdate
from typing import Any
from urllib.parse import parse_qs, urlsplit
from urllib.request import urlopen

START = "2026-01-01T12:00:00.123456789Z"
CREATED = 1_767_268_800
NOT_FOUND = 404, {"message": "there is no such thing"}


class Api:
    """Common parts of both APIs."""

    def __init__(self, count: int) -> None:
        self.names = [f"bench-{number:04}" for number in range(count)]
        self.counts: Counter[str] = Counter()
        self.ended: dict[str, float] = {}
        self.ends: defaultdict[str, asyncio.Event] = defaultdict(asyncio.Event)
        self.tasks: set[Any] = set()

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[str, int, Any]:
        """Return the kind of the request, and the answer: bytes or a document."""
        raise NotImplementedError

    def followed(self, path: str, query: dict[str, list[str]]) -> str | None:  # noqa: ARG002 - of those that have it
        """Return the app whose log is followed; None for other requests."""
        return None

    async def end(self, count: int, pause_s: float) -> None:
        """End one app after the other."""
        for name in [name for name in self.names if name not in self.ended][:count]:
            self.ended[name] = time.time()
            self.ends[name].set()
            await asyncio.sleep(pause_s)

    def control(self, path: str, query: dict[str, list[str]]) -> Any:
        """Answer the requests of the measure."""
        if path.endswith("/end"):
            self.tasks.add(asyncio.ensure_future(self.end(int(query["count"][0]), float(query["pause_s"][0]))))
        if path.endswith("/apps"):
            self.names = [f"bench-{number:04}" for number in range(int(query["count"][0]))]
        return {"counts": self.counts, "ended": self.ended}

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer the requests of one connection."""
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while head := (await reader.readuntil(b"\r\n\r\n")).decode("latin-1"):
                length = re.search(r"(?i)content-length: (\d+)", head)
                if length:
                    await reader.readexactly(int(length.group(1)))
                url = urlsplit(head.split(" ", 2)[1])
                query = parse_qs(url.query)
                if url.path.startswith("/bench/"):
                    status, body = 200, self.control(url.path, query)
                else:
                    kind, status, body = self.answer(url.path, query)
                    self.counts[kind] += 1
                if (name := self.followed(url.path, query)) is not None:
                    await self.follow(name, reader, writer)
                    return
                data = body if isinstance(body, bytes) else json.dumps(body).encode()
                date = formatdate(usegmt=True)
                kind = "application/json" if data else "application/vnd.docker.raw-stream"
                writer.write(
                    f"HTTP/1.1 {status} -\r\nDate: {date}\r\nContent-Type: {kind}\r\n"
                    f"Content-Length: {len(data)}\r\n\r\n".encode()
                    + data
                )
                await writer.drain()
        writer.close()

    async def follow(self, name: str, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Answer with a log that continues until the app has ended or the client has left."""
        head = "HTTP/1.1 200 -\r\nContent-Type: application/vnd.docker.raw-stream\r\nTransfer-Encoding: chunked\r\n\r\n"
        writer.write(head.encode())
        await writer.drain()
        waits = [asyncio.ensure_future(each) for each in (self.ends[name].wait(), reader.read(1))]
        await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        for wait in waits:
            wait.cancel()
        writer.write(b"0\r\n\r\n")
        writer.close()


class Docker(Api):
    """An engine with a record and a container for each app, made from requests of the scheduler."""

    def __init__(self, count: int) -> None:
        super().__init__(count)
        from airflow_provider_launch.runner import Runner
        from airflow_provider_launch.schedulers.docker.naming import container_name
        from airflow_provider_launch.schedulers.docker.request import container_body, record_body
        from airflow_provider_launch.specs import AppDef, Role

        app = AppDef("idle", [Role("trainer", "registry.example/team/trainer:1", entrypoint="sleep", args=["3600"])])
        self.rows: dict[str, list[bytes]] = {}
        self.bodies: dict[str, Any] = {}
        self.names_of: dict[str, str] = {}
        with Runner("bench") as runner:
            for app_id in self.names:
                request = runner.dryrun(app, "docker", {"network": "none"}, app_id=app_id).request
                (role,) = request.roles
                name = container_name(app_id, role.slug, 0, 0, 0)
                made = [(app_id, record_body(request), False), (name, container_body(request, role, 0, 0, 0), True)]
                self.rows[app_id] = [json.dumps(self.row(*each)).encode() for each in made]
                self.names_of[_id(name)] = app_id
                self.bodies |= {_id(name): body for name, body, _ in made}
        self.body = b""
        self.shown: tuple[int, int] | None = None

    @staticmethod
    def row(name: str, body: Any, runs: bool) -> dict[str, Any]:
        """One row of the list of containers, as the engine's version 20.10 shows it."""
        where: dict[str, Any] = dict.fromkeys(
            ("Gateway", "IPAddress", "IPv6Gateway", "GlobalIPv6Address", "MacAddress"), ""
        )
        where |= {"IPAMConfig": None, "Links": None, "Aliases": None, "NetworkID": "", "EndpointID": ""}
        where |= {"IPPrefixLen": 0, "GlobalIPv6PrefixLen": 0, "DriverOpts": None}
        return {
            "Id": _id(name),
            "Names": [f"/{name}"],
            "Image": body["Image"],
            "ImageID": f"sha256:{_id(body['Image'])}",
            "Command": " ".join([*body.get("Entrypoint", []), *body["Cmd"]]),
            "Created": CREATED,
            "Ports": [],
            "Labels": body["Labels"],
            "State": "running" if runs else "created",
            "Status": "Up 5 minutes" if runs else "Created",
            "HostConfig": {"NetworkMode": "none"},
            "NetworkSettings": {"Networks": {"none": where}},
            "Mounts": [],
        }

    def rows_of(self, app_id: str) -> bytes:
        """The rows of one app now."""
        record, replica = self.rows[app_id]
        if app_id in self.ended:
            replica = replica.replace(b'"running"', b'"exited"').replace(b"Up 5 minutes", b"Exited (0) 1 second ago")
        return replica + b", " + record

    def listed(self, query: dict[str, list[str]]) -> bytes:
        """The list of containers."""
        wanted = [label for label in json.loads(query["filters"][0])["label"] if label.startswith("launch.io/app-id=")]
        if wanted:
            return b"[" + self.rows_of(wanted[0].partition("=")[2]) + b"]"
        shown = (len(self.names), len(self.ended))
        if shown != self.shown:
            self.shown, self.body = shown, b"[" + b", ".join(map(self.rows_of, self.names)) + b"]"
        return self.body

    def followed(self, path: str, query: dict[str, list[str]]) -> str | None:
        parts = path.strip("/").split("/")
        return self.names_of.get(parts[-2]) if parts[-1] == "logs" and query.get("follow") == ["1"] else None

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[str, int, Any]:
        path = re.sub(r"^/v1\.\d+", "", path)
        if path == "/version":
            return "other", 200, {"Version": "20.10.24", "ApiVersion": "1.41", "MinAPIVersion": "1.12"}
        if path == "/containers/json":
            return "states", 200, self.listed(query)
        match path.strip("/").split("/"):
            case ["containers", _, "logs"]:
                return "logs", 200, b""
            case ["containers", one, "json"] if one in self.bodies:
                state = {"StartedAt": START, "FinishedAt": "0001-01-01T00:00:00Z", "ExitCode": 0, "Error": ""}
                return "other", 200, {"Id": one, "Created": START, "State": state, "Config": self.bodies[one]}
        return "other", *NOT_FOUND


class Pods(Api):
    """A cluster with a pod for each app."""

    def answer(self, path: str, query: dict[str, list[str]]) -> tuple[str, int, Any]:  # noqa: ARG002 - of both
        found = re.fullmatch(r"/api/v1/namespaces/default/pods/([\w-]+)", path)
        if found and found.group(1) in self.names:
            return "states", 200, self.pod(found.group(1))
        if path.endswith("/events"):
            return "other", 200, {"kind": "EventList", "apiVersion": "v1", "metadata": {}, "items": []}
        return "other", *NOT_FOUND

    def pod(self, name: str) -> dict[str, Any]:
        """A pod of one container."""
        over = name in self.ended
        state = {"terminated": {"exitCode": 0, "reason": "Completed"}} if over else {"running": {"startedAt": START}}
        conditions = ["Initialized", "Ready", "ContainersReady", "PodScheduled"]
        image = "registry.example/team/trainer:1"
        labels = {"dag_id": "bench", "task_id": name, "run_id": "manual", "try_number": "1", "kubernetes_pod": "True"}
        status = {
            "phase": "Succeeded" if over else "Running",
            "conditions": [{"type": kind, "status": "True", "lastTransitionTime": START} for kind in conditions],
            "containerStatuses": [
                {
                    "name": "base",
                    "image": image,
                    "imageID": image,
                    "ready": not over,
                    "restartCount": 0,
                    "started": True,
                    "state": state,
                }
            ],
            "startTime": START,
        }
        container = {"name": "base", "image": image, "command": ["sleep"], "args": ["3600"], "resources": {}}
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "uid": _id(name), "labels": labels},
            "spec": {"containers": [container], "nodeName": "node-1", "restartPolicy": "Never"},
            "status": status,
        }


class Client:
    """Client of a fake API in another process."""

    def __init__(self, kind: str, count: int) -> None:
        command = [sys.executable, __file__, kind, str(count)]
        self._process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self._process.stdout is not None
        self.address = f"127.0.0.1:{int(self._process.stdout.readline())}"

    def ask(self, what: str = "seen") -> dict[str, Any]:
        """Send a command; return counts of requests by kind, and the ends of apps."""
        with urlopen(f"http://{self.address}/bench/{what}", timeout=30) as answer:
            found: dict[str, Any] = json.load(answer)
            return found

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.wait()


@contextlib.contextmanager
def fake_api(kind: str, count: int) -> Iterator[Client]:
    """Start a fake API in another process."""
    with contextlib.closing(Client(kind, count)) as client:
        yield client


def _id(name: str) -> str:
    return hashlib.sha256(name.encode()).hexdigest()


async def main() -> None:
    """Serve until killed."""
    api = {"docker": Docker, "pods": Pods}[sys.argv[1]](int(sys.argv[2]))
    server = await asyncio.start_server(api.serve, "127.0.0.1", 0)
    print(server.sockets[0].getsockname()[1], flush=True)
    await server.serve_forever()


if __name__ == "__main__":
    asyncio.run(main())
