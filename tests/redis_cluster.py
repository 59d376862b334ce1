"""A Redis Cluster of three real servers, each with a third of the slots."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import pairwise
from pathlib import Path

from service.embedded.servers import Server, free_port, start_redis
from tests.conftest import wait
from tests.faults.sentinel import execute

SLOTS = [0, 5461, 10_922, 16_384]
"""The first slot of each node, and the number of slots."""


@contextmanager
def redis_cluster(folder: Path) -> Iterator[list[Server]]:
    """A context with a running cluster, which has its data in `folder`."""
    nodes = list[Server]()
    with ExitStack() as stack:
        for first, following in pairwise(SLOTS):
            (own := folder / str(first)).mkdir()
            bus = str(free_port())
            node = stack.enter_context(start_redis(own, None, "--cluster-enabled", "yes", "--cluster-port", bus))
            nodes.append(node)
            execute(node, "CLUSTER ADDSLOTSRANGE", f"{first}", f"{following - 1}")
            execute(node, "CLUSTER SET-CONFIG-EPOCH", f"{len(nodes)}")
            execute(nodes[0], "CLUSTER MEET", "127.0.0.1", f"{node.port}", bus)
        wait(lambda: all({"ok", "3"} <= {*execute(node, "CLUSTER INFO").values()} for node in nodes), "all are joined")
        yield nodes


def move_slot(nodes: list[Server], key: str) -> None:
    """Move the slot of a key, and this key, to another node. Clients that ask the old one are answered MOVED."""
    slot = execute(nodes[0], "CLUSTER KEYSLOT", key)
    owner = sum(slot >= first for first in SLOTS[1:3])
    old, new = nodes[owner], nodes[owner - 1]
    old_id, new_id = (execute(node, "CLUSTER MYID") for node in (old, new))
    execute(new, "CLUSTER SETSLOT", f"{slot}", "IMPORTING", old_id)
    execute(old, "CLUSTER SETSLOT", f"{slot}", "MIGRATING", new_id)
    execute(old, "MIGRATE", "127.0.0.1", f"{new.port}", key, "0", "5000")
    for node in new, old:
        execute(node, "CLUSTER SETSLOT", f"{slot}", "NODE", new_id)
