"""Runs where KubeSpawner is installed (see ``notebooks``): makes pods of servers, or spawns them as JupyterHub does.

Standard input and the last line of standard output are JSON.
"""

import asyncio
import json
import os
import sys
from types import SimpleNamespace
from typing import Any

from jupyterhub.objects import Hub, Server
from kubernetes_asyncio.client import ApiClient
from kubespawner import KubeSpawner
from traitlets.config import Config

Json = dict[str, Any]


def spawner(settings: Json, server: Json, number: int) -> Any:
    """One server's; a user as JupyterHub's own object has it, as far as KubeSpawner looks."""
    user = SimpleNamespace(
        name=server["user"], escaped_name=server["user"], id=number, url=f"/user/{server['user']}/", server=Server()
    )
    orm = SimpleNamespace(name=server.get("name", ""), server=None, state=None)
    config = Config({"KubeSpawner": settings})
    found = KubeSpawner(
        config=config, hub=Hub(), user=user, orm_spawner=orm, api_token="secret", oauth_client_id="unused"
    )
    found.user_options = {"profile": server["profile"]}
    return found


async def manifest(one: Any) -> Json:
    """The pod that it would create."""
    await one.load_user_options()
    pod: Json = ApiClient().sanitize_for_serialization(await one.get_pod_manifest())
    return pod


async def spawned(one: Any) -> Json:
    """What became of it, and what the spawning user saw meanwhile."""
    started = one.start()
    seen = [event["message"] async for event in one.progress()]
    try:
        where = await started
    except Exception as error:  # noqa: BLE001 - whatever it is, the test that asked wants to see it
        await one.stop(now=True)
        return {"pod": one.pod_name, "failed": str(error), "seen": seen}
    return {"pod": one.pod_name, "url": where if isinstance(where, str) else list(where), "seen": seen}


async def main() -> None:
    """Answer the question on standard input."""
    question = json.load(sys.stdin)
    spawners = [spawner(question["settings"], server, i) for i, server in enumerate(question["servers"])]
    work = manifest if question["what"] == "pods" else spawned
    answers = await asyncio.gather(*(work(one) for one in spawners))
    print(json.dumps(answers), flush=True)
    os._exit(0)  # its watches would keep the process; JupyterHub ends them with itself


asyncio.run(main())
