"""Binary heaps of slots, ordered by a time, then by the place of the slot's record in the log.

A memory has several: `m.heaps[heap]` has the entries of one, and `m.state[heap]` their number.
"""

from typing import Any

import numpy as np

from service.learning.jit import compiled


@compiled
def comes_before(m: Any, time: int, slot: int, other_time: int, other: int) -> Any:
    """Whether a slot comes before another: by these times, then by rank of the partition, then by offset."""
    if time != other_time:
        return time < other_time
    item, other_item = m.items[slot], m.items[other]
    rank, other_rank = m.partitions[item.partition].rank, m.partitions[other_item.partition].rank
    return rank < other_rank or (rank == other_rank and item.offset < other_item.offset)


@compiled
def push(m: Any, heap: int, time: int, slot: int) -> None:
    """Add a slot to a heap."""
    entries, i = m.heaps[heap], m.state[heap]
    m.state[heap] += 1
    while i > 0:
        parent = (i - 1) >> 1
        if not comes_before(m, time, slot, entries[parent].time, entries[parent].slot):
            break
        entries[i].time, entries[i].slot = entries[parent].time, entries[parent].slot
        i = parent
    entries[i].time, entries[i].slot = time, slot


@compiled
def pop(m: Any, heap: int) -> Any:
    """Remove the first slot of a heap; returns it."""
    m.state[heap] -= 1
    entries, size, i = m.heaps[heap], m.state[heap], 0
    first, time, slot = np.int64(entries[0].slot), entries[size].time, np.int64(entries[size].slot)
    while True:
        child = 2 * i + 1
        if child >= size:
            break
        right = child + 1
        if right < size and comes_before(
            m, entries[right].time, entries[right].slot, entries[child].time, entries[child].slot
        ):
            child = right
        if not comes_before(m, entries[child].time, entries[child].slot, time, slot):
            break
        entries[i].time, entries[i].slot = entries[child].time, entries[child].slot
        i = child
    entries[i].time, entries[i].slot = time, slot
    return first
