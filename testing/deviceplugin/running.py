"""The plugin's kubelet side in a thread, with what it needs around it."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from deviceplugin import resources
from deviceplugin.decide import Accept, Decision
from deviceplugin.handover import choice
from deviceplugin.handover.choice import HandOverChoice
from deviceplugin.inventory import InventoryFeed
from deviceplugin.resources import Resource
from deviceplugin.server import Registrar
from gpushare.model.gpu import HandOver, NodeInventory
from gpushare.runtime.clock import SystemClock
from gpushare.runtime.process import Part
from testing.builders import make_inventory

EVERYTHING = resources.offered(percent=True, whole_gpus=True)


def start_all(_resource: Resource, _device_ids: Sequence[str]) -> Decision:
    """Lets everything start."""
    return Accept(())


def no_devices(resource: Resource, _device_ids: Sequence[str]) -> Any:
    return choice.respond(HandOverChoice(way=HandOver.ENVVAR, reason=""), "", resource.prefix)


def feed_with(inventory: NodeInventory | None = None) -> InventoryFeed:
    feed = InventoryFeed()
    feed.post(inventory or make_inventory(4, 4))
    return feed


@contextmanager
def running(**fields: Any) -> Iterator[Registrar]:
    """Args: fields: of the Registrar, beside sensible defaults."""
    with running_all(fields.pop("resource", resources.MEMORY), **fields) as (registrar,):
        yield registrar


@contextmanager
def running_all(*offered: Resource, **fields: Any) -> Iterator[list[Registrar]]:
    """A link for each resource. Args: fields: of all of them, beside sensible defaults."""
    defaults = {"feed": feed_with(), "start_check": start_all, "answer": no_devices, "clock": SystemClock()}
    given: dict[str, Any] = defaults | fields
    registrars = [Registrar(resource=resource, **given) for resource in offered]
    with in_threads(*(registrar.run for registrar in registrars)):
        yield registrars


@contextmanager
def in_threads(*parts: Part, wake: Callable[[], None] = lambda: None) -> Iterator[None]:
    """Parts of the plugin while a test acts. Args: wake: called after the stop is set."""
    stop = threading.Event()
    threads = [threading.Thread(target=part, args=(stop,)) for part in parts]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        wake()
        for thread in threads:
            thread.join()
