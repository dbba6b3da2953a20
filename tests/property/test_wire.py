"""What is written is what is read, whatever the values; and nothing that is read crashes."""

import contextlib

from hypothesis import given
from hypothesis import strategies as st

from gpushare.errors import WireError
from gpushare.identity import NodeName
from gpushare.model.gpu import NodeInventory
from gpushare.model.ledger import Allocation
from gpushare.wire import allocations as allocations_wire
from gpushare.wire import fields as fields_wire
from gpushare.wire import inventory
from testing.builders import make_ref
from tests.property.strategies import allocations, inventories

json_values = st.recursive(
    st.none() | st.booleans() | st.integers(-(10**9), 10**9) | st.text(max_size=8),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["version", "minReader", "gpus", "unitMiB", "uuid", "index", "node", "containers", "kind"]),
            inner,
            max_size=6,
        )
    ),
    max_leaves=12,
)


@given(inventories())
def test_an_inventory_survives_the_annotation(value: NodeInventory) -> None:
    assert inventory.decode(inventory.encode(value), NodeName("node-a")) == value


@given(allocations)
def test_an_allocation_survives_the_annotation(value: Allocation) -> None:
    assert allocations_wire.decode(allocations_wire.encode(value), make_ref()) == value


in_the_right_places = st.dictionaries(st.sampled_from(["gpus", "unitMiB", "node", "containers"]), json_values)


@given(st.text(max_size=60) | in_the_right_places.map(lambda value: fields_wire.dump_json({"version": 1, **value})))
def test_garbage_is_a_wire_error(text: str) -> None:
    with contextlib.suppress(WireError):
        inventory.decode(text, NodeName("n"))
    with contextlib.suppress(WireError):
        allocations_wire.decode(text, make_ref())
