"""A name server for the pods of the test cluster: Services and headless endpoints, nothing else.

Runs by itself, with the standard library only:
``python dns.py ADDRESS SERVER CA CERTIFICATE KEY``. It keeps a watch on Services and Endpoints and answers A queries
for ``<service>.<namespace>.svc.cluster.local``; every other name does not exist. No query leaves the machine.
"""

import http.client
import json
import socketserver
import ssl
import struct
import sys
import threading
import time
import urllib.parse
from collections.abc import Iterator
from typing import Any

DOMAIN = ("svc", "cluster", "local")
TTL_S = 5
WATCH_S = 240
RETRY_S = 0.5

TYPE_A, TYPE_ANY, CLASS_IN = 1, 255, 1
OK, SERVER_FAILURE, NO_SUCH_NAME = 0, 2, 3


class Names:
    """What the cluster has names for; written by the watches, read by the servers."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, dict[tuple[str, str], Any]] = {}

    def replace(self, kind: str, objects: list[Any]) -> None:
        """Take over a complete list."""
        with self._lock:
            self._objects[kind] = {_key(item): item for item in objects}

    def change(self, kind: str, event: str, item: Any) -> None:
        """Take over one event of a watch."""
        with self._lock:
            if event == "DELETED":
                self._objects[kind].pop(_key(item), None)
            else:
                self._objects[kind][_key(item)] = item

    @property
    def complete(self) -> bool:
        """Whether both lists have arrived."""
        with self._lock:
            return {"services", "endpoints"} <= self._objects.keys()

    def addresses(self, labels: tuple[str, ...]) -> list[str] | None:
        """Return the addresses of a name, given as its labels, or nothing if there is no such name."""
        host, name, namespace, *domain = ("", *labels) if len(labels) == 5 else labels
        if tuple(domain) != DOMAIN:
            return None
        with self._lock:
            service = self._objects["services"].get((namespace, name))
            if service is None:
                return None
            cluster_ip = service["spec"].get("clusterIP")
            if cluster_ip and cluster_ip != "None":
                return None if host else [cluster_ip]
            endpoints = self._objects["endpoints"].get((namespace, name), {})
        ready = [endpoint for subset in endpoints.get("subsets") or [] for endpoint in subset.get("addresses") or []]
        ips = [endpoint["ip"] for endpoint in ready if not host or endpoint.get("hostname") == host]
        return None if host and not ips else ips


def _key(item: Any) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def answer(query: bytes, names: Names, limit: int) -> bytes:
    """Return the reply to one query message."""
    identity, flags = struct.unpack("!HH", query[:4])
    labels, kind, question = _question(query)
    code, addresses = OK, []
    if not names.complete:
        code = SERVER_FAILURE
    elif labels[-1:] != ("local",) or len(labels) not in (5, 6):
        code = NO_SUCH_NAME
    else:
        known = names.addresses(labels)
        code = NO_SUCH_NAME if known is None else OK
        addresses = known if known and kind in (TYPE_A, TYPE_ANY) else []
    records = [_record(address) for address in addresses]
    while sum(map(len, records)) + len(question) + 12 > limit:
        records.pop()
    # Response, authoritative; recursion desired is copied.
    reply_flags = 0x8480 | (flags & 0x0100) | code
    return struct.pack("!HHHHHH", identity, reply_flags, 1, len(records), 0, 0) + question + b"".join(records)


def _question(query: bytes) -> tuple[tuple[str, ...], int, bytes]:
    labels, position = [], 12
    while length := query[position]:
        labels.append(query[position + 1 : position + 1 + length].decode("ascii", "replace").lower())
        position += 1 + length
    (kind,) = struct.unpack("!H", query[position + 1 : position + 3])
    return tuple(labels), kind, query[12 : position + 5]


def _record(address: str) -> bytes:
    # 0xC00C points back at the name in the question.
    head = struct.pack("!HHHIH", 0xC00C, TYPE_A, CLASS_IN, TTL_S, 4)
    return head + bytes(int(part) for part in address.split("."))


class Watcher:
    """Keeps one kind of object current."""

    def __init__(self, server: str, context: ssl.SSLContext, names: Names) -> None:
        self._address = urllib.parse.urlsplit(server).netloc
        self._context = context
        self._names = names

    def run(self, kind: str) -> None:
        """List and watch forever."""
        while True:
            try:
                listed = json.loads(b"".join(self._get(f"/api/v1/{kind}")))
                self._names.replace(kind, listed["items"])
                self._watch(kind, listed["metadata"]["resourceVersion"])
            except (OSError, http.client.HTTPException, ValueError, KeyError) as error:
                print(f"{kind}: {error!r}; again in {RETRY_S} s", flush=True)
                time.sleep(RETRY_S)

    def _watch(self, kind: str, version: str) -> None:
        query = f"watch=1&resourceVersion={version}&timeoutSeconds={WATCH_S}"
        for line in self._get(f"/api/v1/{kind}?{query}"):
            event = json.loads(line)
            if event["type"] == "ERROR":
                raise ValueError(event["object"])
            self._names.change(kind, event["type"], event["object"])

    def _get(self, path: str) -> Iterator[bytes]:
        connection = http.client.HTTPSConnection(self._address, context=self._context, timeout=WATCH_S + 30)
        try:
            connection.request("GET", path, headers={"Accept": "application/json"})
            reply = connection.getresponse()
            if reply.status != 200:
                raise ValueError(f"{path}: HTTP {reply.status}")
            yield from reply
        finally:
            connection.close()


def serve(address: str, names: Names) -> None:
    """Answer on UDP and TCP port 53 forever."""

    class Datagram(socketserver.BaseRequestHandler):
        def handle(self) -> None:
            data, socket = self.request
            socket.sendto(answer(data, names, 512), self.client_address)

    class Stream(socketserver.StreamRequestHandler):
        timeout = 10

        def handle(self) -> None:
            (length,) = struct.unpack("!H", self.rfile.read(2))
            reply = answer(self.rfile.read(length), names, 65000)
            self.wfile.write(struct.pack("!H", len(reply)) + reply)

    socketserver.ThreadingTCPServer.allow_reuse_address = True
    stream = socketserver.ThreadingTCPServer((address, 53), Stream)
    threading.Thread(target=stream.serve_forever, daemon=True).start()
    socketserver.ThreadingUDPServer((address, 53), Datagram).serve_forever()


def main() -> None:
    """Run until killed."""
    address, server, authority, certificate, key = sys.argv[1:]
    context = ssl.create_default_context(cafile=authority)
    context.load_cert_chain(certificate, key)
    names = Names()
    for kind in ("services", "endpoints"):
        watcher = Watcher(server, context, names)
        threading.Thread(target=watcher.run, args=(kind,), daemon=True).start()
    serve(address, names)


if __name__ == "__main__":
    main()
