"""Paths of the Kubernetes API, taken apart."""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True)
class Target:
    """What a path means."""

    group: str
    """Such as `/api/v1` or `/apis/coordination.k8s.io/v1`."""
    resource: str
    namespace: str = ""
    """Empty for cluster-wide objects, and for a collection over all namespaces."""
    name: str = ""
    subresource: str = ""

    @classmethod
    def parse(cls, path: str) -> "Target":
        parts = path.strip("/").split("/")
        head = 2 if parts[0] == "api" else 3
        group, rest = "/" + "/".join(parts[:head]), parts[head:]
        namespace = ""
        if rest[0] == "namespaces" and len(rest) > 2:
            namespace, rest = rest[1], rest[2:]
        resource, name, subresource = [*rest, "", ""][:3]
        return cls(group, resource, namespace, name, subresource)

    @property
    def collection(self) -> str:
        return f"{self.group}/{self.resource}"

    @property
    def key(self) -> tuple[str, str]:
        return self.namespace, self.name

    def named(self, name: str) -> "Target":
        return replace(self, name=name)

    def plain(self) -> "Target":
        return replace(self, subresource="")
