"""A Redis Cluster of three real servers, each with a third of the slots."""

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

from redis import Redis

from service.embedded.servers import Server, free_port, start_redis
from tests.conftest import wait

SLOTS = 16_384


def execute(server: Server, *command: Any) -> Any:
    """Send a command to one node; returns the answer as text."""
    with Redis(port=server.port, decode_responses=True) as client:
        return client.execute_command(*command)


def _is_complete(server: Server) -> bool:
    info = execute(server, "CLUSTER INFO")
    return bool(info["cluster_state"] == "ok" and info["cluster_known_nodes"] == "3")


@contextmanager
def redis_cluster(folder: Path) -> Iterator[list[Server]]:
    """A context with a running cluster, which has its data in `folder`."""
    with ExitStack() as stack:
        buses, nodes = [free_port() for _ in range(3)], list[Server]()
        for number, bus in enumerate(buses):
            (own := folder / str(number)).mkdir()
            flags = "--cluster-enabled", "yes", "--cluster-port", str(bus)
            nodes.append(node := stack.enter_context(start_redis(own, None, *flags)))
            first, last = (SLOTS * each // 3 for each in (number, number + 1))
            execute(node, "CLUSTER ADDSLOTSRANGE", first, last - 1)
            execute(node, "CLUSTER SET-CONFIG-EPOCH", number + 1)
            execute(node, "CLUSTER MEET", "127.0.0.1", nodes[0].port, buses[0])
        wait(lambda: all(map(_is_complete, nodes)), "the nodes know each other")
        yield nodes


def move_slot(nodes: list[Server], key: str) -> None:
    """Move the slot of a key, and this key, to another node. Clients that ask the old one are answered MOVED."""
    slot = execute(nodes[0], "CLUSTER KEYSLOT", key)
    old = nodes[next(i for i in range(3) if slot < SLOTS * (i + 1) // 3)]
    new = nodes[nodes.index(old) - 1]
    new_id, old_id = (execute(node, "CLUSTER MYID") for node in (new, old))
    execute(new, "CLUSTER SETSLOT", slot, "IMPORTING", old_id)
    execute(old, "CLUSTER SETSLOT", slot, "MIGRATING", new_id)
    execute(old, "MIGRATE", "127.0.0.1", new.port, key, 0, 5000)
    for node in (new, old):
        execute(node, "CLUSTER SETSLOT", slot, "NODE", new_id)
