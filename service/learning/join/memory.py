"""The remembered records of each id, and what a new one means for them, compiled.

Items are slots of arrays. The items of an id are a list in their order: time, rank of the partition, offset. Its events
form chains: each lies within two windows, or the span of `once` if that is longer, after the one before it. Only the
first event of a chain, its root, is held; the others are repeated. A label belongs to a chain if it lies within a
window of one of its events, so from a window before the root to a window after the last event: to one chain at most.

All of this is a function of the remembered records, the time up to which windows are closed, and the time up to which
events were dropped for want of room. So it can be rebuilt from the log, whatever the order of reading.
"""

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from service.learning.jit import compiled
from service.learning.join.heaps import comes_before, pop, push

NEVER, FOREVER = -(1 << 60), 1 << 60
"""A time before and a time after all others, in milliseconds."""
EVENT, LABELLED, LABEL, WITHDRAWAL, OTHER = range(5)
"""Kinds of records: an event without a label or with one, a label, a label that is null, and all others."""
FREE, ASIDE, HELD, WAITING, ATTACHED, LEARNED, SETTLED = range(7)
"""States of items. A label waits for an event of its id, or is attached to a held event. An event that was learned when
its label came is LEARNED as long as it is remembered."""
LABEL_OUTCOMES = "joined", "late", "second", "unknown", "withdrawn", "labels_dropped"
OUTCOMES = (
    *LABEL_OUTCOMES, "expired", "repeated", "as_label", "events_withdrawn", "dropped", "set_aside", "forgotten",
)  # fmt: skip
"""What is counted: of labels, of events, and from "set_aside" on of records that are far ahead."""
(
    JOINED, LATE, SECOND, UNKNOWN, LABEL_WITHDRAWN, LABEL_DROPPED, EXPIRED, REPEATED, AS_LABEL, WITHDRAWN, DROPPED,
    SET_ASIDE, FORGOTTEN, RECORDS, FIRST_DELAY,
) = range(len(OUTCOMES) + 2)  # fmt: skip
DELAY_SECONDS = (1, 10, 60, 600, 3600, 6 * 3600, 86_400, 7 * 86_400)
"""Bounds of the histogram of the times from events to their labels. It is counted from FIRST_DELAY on."""
_DELAYS = np.array(DELAY_SECONDS, np.int64) * 1000
COUNTS = (*OUTCOMES, "records", *(f"delay_{seconds}" for seconds in DELAY_SECONDS), "delay_+Inf")
"""All that is counted: outcomes, applied records, and labels by the seconds after their events. Each label counts for
the smallest delay that it does not exceed."""
DUE, DOOMED, FAR = range(3)
"""Heaps: times after which an event's window, or the wait of a label, is over; times after which items are forgotten;
and the times of items that are set aside."""
(
    STREAM_TIME, CLOSED, DROPPED_UNTIL, LABEL_TIME, ROOM, UNUSED, FREED, OUT, STAGE, TARGET, CLOSES, REBUILDING,
    STATE_SIZE,
) = range(3, 16)  # fmt: skip
"""Members of `Memory.state` after the sizes of the heaps: times in milliseconds, the number of held and waiting items,
the first slot to use and the first one that may be used from the next call on, the number of events in `out`, how far
the next record is applied, the time up to which it closes windows, whether it closes any, and whether the memory is
being rebuilt."""
WINDOW, GAP, REACH, STEP, HORIZON, HAS_DEFAULT, DEFAULT_LABEL, WAITS_FOR_LABELS, MAX_HELD, JOINS = range(10)
"""Members of `Memory.rules`: times in milliseconds (GAP is the largest one between two events of a chain, REACH that
between a remembered record and the closed time), flags, a label, a number of items, and whether events are joined with
labels: if not, only repeated ones are found."""
FIRST_LABEL_RANK = 1 << 20
"""From this rank on, all records of a partition are labels."""
TAIL = 10
"""Neighbours of a partition that a jump of stream time needs."""
NEW, CLOSING, APPLIED = range(3)
"""How far a record is applied: not at all, its time has passed, or only memory is still to be cut."""
MAX_FORGOTTEN = 10_000
"""Items that are forgotten at once: more of them would hold the event loop."""
ITEM = np.dtype([
    ("first_hash", np.uint64), ("second_hash", np.uint64), ("time", np.int64), ("offset", np.int64),
    ("label", np.float64), ("partition", np.int32), ("next", np.int32), ("kind", np.int8), ("state", np.int8),
])  # fmt: skip
"""A remembered record. `next` is the next item of its bucket, or the next free slot; -1 for none. Stored slots have 32
bits, to save memory; functions get them with 64, so that each is compiled once."""
PARTITION = np.dtype([("rank", np.int64), ("label_time", np.int64)])
"""A partition: its place in the order of partitions; its label time, NEVER if it had fewer than two labels, FOREVER if
it is left out."""
ENTRY = np.dtype([("time", np.int64), ("slot", np.int32)])
LEFT = np.dtype([("slot", np.int32), ("label", np.float64)])
"""An event that is not held any more, and the label to learn, or NaN."""


class Memory(NamedTuple):
    """Everything that a join remembers. The arrays of records have the types ITEM, PARTITION, ENTRY and LEFT."""

    rules: NDArray[np.int64]
    state: NDArray[np.int64]
    counts: NDArray[np.int64]
    """The numbers of COUNTS."""
    tails: NDArray[np.int64]
    """The last TAIL timestamps of each partition, then the last two of its labels; NEVER before the first ones."""
    partitions: Any
    items: Any
    table: NDArray[np.int32]
    """The first item of each bucket of ids with the same last bits of the first hash; -1 if there is none."""
    heaps: Any
    out: Any
    """Events that left, in order."""


@compiled
def bucket_of(m: Any, slot: int) -> Any:
    """The index in the table of the list that has the items of this item's id."""
    return np.int64(m.items[slot].first_hash & np.uint64(len(m.table) - 1))


@compiled
def is_same_id(m: Any, slot: int, other: int) -> Any:
    """Whether two items have the same id."""
    one, two = m.items[slot], m.items[other]
    return one.first_hash == two.first_hash and one.second_hash == two.second_hash


@compiled
def first_of(m: Any, slot: int) -> Any:
    """The first item of the id of this item, which is linked."""
    at = np.int64(m.table[bucket_of(m, slot)])
    while not is_same_id(m, at, slot):
        at = m.items[at].next
    return at


@compiled
def following(m: Any, slot: int) -> Any:
    """The next item of the same id, -1 after the last one."""
    after = np.int64(m.items[slot].next)
    return after if after >= 0 and is_same_id(m, after, slot) else -1


@compiled
def link(m: Any, slot: int) -> None:
    """Put an item into the list of its bucket, in order among the items of its id."""
    items, bucket = m.items, bucket_of(m, slot)
    at, before = np.int64(m.table[bucket]), np.int64(-1)
    while at >= 0 and not is_same_id(m, at, slot):
        before, at = at, items[at].next
    while at >= 0 and is_same_id(m, at, slot) and comes_before(m, items[at].time, at, items[slot].time, slot):
        before, at = at, items[at].next
    items[slot].next = at
    if before >= 0:
        items[before].next = slot
    else:
        m.table[bucket] = slot


@compiled
def unlink(m: Any, slot: int) -> None:
    """Remove an item from the list of its bucket."""
    items, bucket = m.items, bucket_of(m, slot)
    at, before = np.int64(m.table[bucket]), np.int64(-1)
    while at != slot:
        before, at = at, items[at].next
    if before >= 0:
        items[before].next = items[slot].next
    else:
        m.table[bucket] = items[slot].next


@compiled
def move_table(table: Any, m: Any) -> None:
    """Put the items of a table into the empty one of a memory."""
    for first in table:
        at = np.int64(first)
        while at >= 0:
            slot, at = at, m.items[at].next
            link(m, slot)


@compiled
def free(m: Any, slot: int) -> None:
    """Give a slot back. It is used again by a later call of `apply_records` only, which adds FREED to UNUSED."""
    m.items[slot].state = FREE
    m.items[slot].next = m.state[FREED]
    m.state[FREED] = slot


@compiled
def oldest_offsets(m: Any, with_aside: bool) -> Any:
    """The smallest offset of an item of each partition, FOREVER if there is none; set-aside ones only `with_aside`."""
    oldest = np.full(len(m.partitions), FOREVER)
    for i in range(len(m.items)):
        if m.items[i].state > (FREE if with_aside else ASIDE):
            partition = m.items[i].partition
            oldest[partition] = min(oldest[partition], m.items[i].offset)
    return oldest


@compiled
def count(m: Any, outcome: int) -> None:
    """Count an outcome, unless it was counted before the memory was lost."""
    m.counts[outcome] += 1 - m.state[REBUILDING]


@compiled
def set_state(m: Any, slot: int, state: int) -> None:
    """Change the state of an item, and the number of items that are held or wait."""
    m.state[ROOM] += int(state in (HELD, WAITING)) - int(m.items[slot].state in (HELD, WAITING))
    m.items[slot].state = state


@compiled
def leave(m: Any, slot: int, label: float, state: int) -> None:
    """Report that an event is not held any more, and is to be learned with this label unless it is NaN."""
    m.out[m.state[OUT]].slot, m.out[m.state[OUT]].label = slot, label
    m.state[OUT] += 1
    set_state(m, slot, state)


@compiled
def join_label(m: Any, slot: int, label: int) -> None:
    """Count the label of an event that is learned, and its delay."""
    delay = max(m.items[label].time - m.items[slot].time, 0)
    m.counts[JOINED] += 1
    m.counts[FIRST_DELAY + np.searchsorted(_DELAYS, delay)] += 1


@compiled
def counts_for(m: Any, root: int, label: int) -> bool:
    """Whether a label of a chain decides about its root."""
    near = abs(m.items[label].time - m.items[root].time) <= m.rules[WINDOW]
    return not m.rules[HAS_DEFAULT] or m.items[label].kind == WITHDRAWAL or near


@compiled
def update(m: Any, slot: int, fresh: int) -> None:
    """Decide about the items of an item's id, after `fresh` was added; -1 if none was."""
    items, window, at, known_until = m.items, m.rules[WINDOW], first_of(m, slot), NEVER
    root = at
    while at >= 0:
        while root >= 0 and items[root].kind > LABELLED:
            root = following(m, root)
        last, later = root, root
        while later >= 0:
            if items[later].kind <= LABELLED:
                if items[later].time - items[last].time > m.rules[GAP]:
                    break
                last = later
            later = following(m, later)
        while at >= 0 and (root < 0 or items[at].time < items[root].time - window):
            decide_alone(m, at, known_until, fresh)
            at = following(m, at)
        if root >= 0:
            known_until = items[last].time + 2 * window
            at = decide_chain(m, at, root, items[last].time + window, fresh)
        root = later


@compiled
def decide_alone(m: Any, slot: int, known_until: int, fresh: int) -> None:
    """Decide about a label that belongs to no event. It is late, not unknown, up to the time `known_until`."""
    time, window = m.items[slot].time, m.rules[WINDOW]
    if slot != fresh and m.items[slot].state != WAITING:
        return
    if time + window <= m.state[DROPPED_UNTIL]:
        count(m, LABEL_DROPPED)
        set_state(m, slot, SETTLED)
    elif time + 2 * window < m.state[CLOSED]:
        count(m, LATE if slot != fresh and time <= known_until else UNKNOWN)
        set_state(m, slot, SETTLED)
    else:
        set_state(m, slot, WAITING)


@compiled
def decide_chain(m: Any, begin: int, root: int, end: int, fresh: int) -> int:
    """Decide about a chain and its labels: the items from `begin` up to the time `end`; returns the item after them."""
    items, has_default = m.items, m.rules[HAS_DEFAULT]
    has_label, deciding, withdrawn, was_learned = False, -1, False, m.state[REBUILDING] > 0
    at = begin
    while at >= 0 and items[at].time <= end:
        if items[at].kind != EVENT and counts_for(m, root, at):
            has_label = True
            withdrawn |= items[at].kind == WITHDRAWAL
            if deciding < 0 and (at == fresh or items[at].state in (WAITING, ATTACHED, HELD)):
                deciding = at
        was_learned |= items[at].state == LEARNED
        at = following(m, at)
    if items[root].kind == LABELLED and not has_default:
        deciding = root
    fate, used = -1, -1
    if items[root].time + m.rules[WINDOW] < m.state[CLOSED]:
        fate = JOINED if has_default and items[root].state == HELD else EXPIRED
    elif items[root].time <= m.state[DROPPED_UNTIL]:
        fate = DROPPED
    elif withdrawn:
        fate = WITHDRAWN
    elif has_label and not has_default:
        fate = JOINED
    if fate < 0:
        set_state(m, root, HELD)
    elif root == fresh or items[root].state == HELD:
        if fate != JOINED:
            leave(m, root, np.nan, SETTLED)
            count(m, fate)
        elif was_learned or (deciding < 0 and not has_default):
            leave(m, root, np.nan, LEARNED)
            count(m, REPEATED)
        else:
            used = deciding
            leave(m, root, items[used].label if used >= 0 else float(m.rules[DEFAULT_LABEL]), LEARNED)
            if used >= 0 and used != root:
                join_label(m, root, used)
    at = begin
    while at >= 0 and items[at].time <= end:
        if at != root:
            decide_member(m, at, root, fate, used, fresh)
        at = following(m, at)
    return at


@compiled
def decide_member(m: Any, slot: int, root: int, fate: int, used: int, fresh: int) -> None:
    """Decide about a repeated event or a label in the chain of `root`, which has this fate; -1 if it is held."""
    state, kind = m.items[slot].state, m.items[slot].kind
    is_new = slot == fresh or state == HELD
    if kind <= LABELLED:
        if is_new:
            leave(m, slot, np.nan, SETTLED)
            count(m, REPEATED if kind == EVENT else AS_LABEL)
        elif state == LEARNED:
            set_state(m, slot, SETTLED)  # an earlier event is the root now
        if kind == EVENT:
            return
    if not (is_new or state in (WAITING, ATTACHED)):
        return
    if fate < 0 and counts_for(m, root, slot):
        set_state(m, slot, ATTACHED)
        return
    set_state(m, slot, SETTLED)
    if slot == used:
        return
    if fate < 0 or fate == EXPIRED:
        count(m, LATE)
    elif fate == JOINED:
        count(m, SECOND)
    else:
        count(m, LABEL_WITHDRAWN if fate == WITHDRAWN else LABEL_DROPPED)


@compiled
def close_windows(m: Any, limit: int) -> bool:
    """Close the windows that are over at the time TARGET, one after the other, in the order of their ends.

    Returns False if `limit` events have left before all are closed.
    """
    while m.state[DUE] and m.heaps[DUE, 0].time < m.state[TARGET]:
        if m.state[OUT] >= limit:
            return False
        m.state[CLOSED] = m.heaps[DUE, 0].time + 1
        slot = pop(m, DUE)
        if m.items[slot].state in (HELD, WAITING):
            update(m, slot, -1)
        push(m, DOOMED, m.items[slot].time + m.rules[REACH], slot)
    m.state[CLOSED] = m.state[TARGET]
    return True


@compiled
def take(m: Any, slot: int) -> None:
    """Remember a record, or set it aside if it is far ahead of stream time, or count it if it is too old."""
    items, window = m.items, m.rules[WINDOW]
    is_event, time = items[slot].kind <= LABELLED, items[slot].time
    if time > m.state[STREAM_TIME] + m.rules[HORIZON]:
        if m.state[STREAM_TIME] > NEVER:
            count(m, SET_ASIDE)
        push(m, FAR, time, slot)
    elif time < m.state[CLOSED] - m.rules[REACH]:
        count(m, EXPIRED if is_event else UNKNOWN)
        if is_event:
            leave(m, slot, np.nan, SETTLED)
        free(m, slot)
    elif m.rules[JOINS]:
        link(m, slot)
        push(m, DUE, time + (1 if is_event else 2) * window, slot)
        update(m, slot, slot)
    else:
        link(m, slot)
        push(m, DOOMED, time + m.rules[REACH], slot)
        leave(m, slot, label_unless_repeated(m, slot), SETTLED)


@compiled
def label_unless_repeated(m: Any, slot: int) -> float:
    """The label of a new event; NaN if it is repeated, or too old to know."""
    time, at = m.items[slot].time, first_of(m, slot)
    if time < m.state[CLOSED] - m.rules[GAP]:
        count(m, EXPIRED)
        return np.nan
    while at >= 0:
        if at != slot and abs(m.items[at].time - time) <= m.rules[GAP]:
            count(m, REPEATED)
            return np.nan
        at = following(m, at)
    return np.nan if m.state[REBUILDING] else m.items[slot].label


@compiled
def cut(m: Any) -> bool:
    """Forget items that are too old for a new record to need them, and set-aside records older than all others.

    Returns False if there are more than MAX_FORGOTTEN.
    """
    for _ in range(MAX_FORGOTTEN):
        if not m.state[DOOMED] or m.heaps[DOOMED, 0].time >= m.state[CLOSED]:
            break
        slot = pop(m, DOOMED)
        unlink(m, slot)
        free(m, slot)
    else:
        return False
    if m.state[FAR] and m.state[CLOSES]:
        forget_far(m)
    return True


@compiled
def forget_far(m: Any) -> None:
    """Forget the items that are set aside and older than all others of their partition."""
    oldest, far, m.state[FAR] = oldest_offsets(m, False), m.state[FAR], 0
    for i in range(far):
        time, slot = m.heaps[FAR, i].time, np.int64(m.heaps[FAR, i].slot)
        if m.items[slot].offset < oldest[m.items[slot].partition]:
            count(m, FORGOTTEN)
            if m.items[slot].kind <= LABELLED:
                leave(m, slot, np.nan, SETTLED)
            free(m, slot)
        else:
            push(m, FAR, time, slot)


@compiled
def make_room(m: Any) -> None:
    """Drop the oldest held events and waiting labels until at most `max_held` are left."""
    items, window = m.items, m.rules[WINDOW]
    while m.state[ROOM] > m.rules[MAX_HELD]:
        time = m.heaps[DUE, 0].time - window
        while m.state[DUE] and m.heaps[DUE, 0].time - window <= time:
            slot = pop(m, DUE)
            if items[slot].state in (HELD, WAITING):
                m.state[DROPPED_UNTIL] = time
                update(m, slot, -1)
            push(m, DOOMED, items[slot].time + m.rules[REACH], slot)


@compiled
def pass_time(m: Any, partition: int, time: int, is_label: bool) -> None:
    """Move stream time, label time and the time up to which windows are closed on by a record's timestamp."""
    tail, state = m.tails[partition, :TAIL], m.state
    for i in range(TAIL - 1):
        tail[i] = tail[i + 1]
    tail[-1] = time
    reached = min(tail[-1], tail[-2])
    if reached > state[STREAM_TIME] + m.rules[WINDOW]:
        reached = tail.min()
    state[STREAM_TIME] = max(state[STREAM_TIME], reached)
    if is_label or m.partitions[partition].rank >= FIRST_LABEL_RANK:
        pass_label_time(m, partition, time)
    target = state[STREAM_TIME]
    if m.rules[WAITS_FOR_LABELS]:
        target = min(target, state[LABEL_TIME])
    state[TARGET] = max(state[CLOSED], target - target % m.rules[STEP])
    state[CLOSES] = state[TARGET] > state[CLOSED]


@compiled
def pass_label_time(m: Any, partition: int, time: int) -> None:
    """Move the label time of a partition on by a label's timestamp, and the smallest one of all partitions."""
    tail, own = m.tails[partition, TAIL:], m.partitions[partition]
    tail[0], tail[1] = tail[1], time
    if own.label_time == FOREVER:
        tail[0], own.label_time = NEVER, NEVER
    own.label_time = max(own.label_time, min(tail[0], tail[1]))
    find_label_time(m)


@compiled
def find_label_time(m: Any) -> None:
    """Set label time to the smallest one of all partitions that have one; NEVER if none has."""
    smallest = NEVER
    for i in range(len(m.partitions)):
        time = m.partitions[i].label_time
        if time > NEVER and (smallest == NEVER or time < smallest):
            smallest = time
    m.state[LABEL_TIME] = smallest


@compiled
def apply_records(m: Any, records: Any, begin: int, limit: int, slots: Any) -> int:
    """Apply records from `begin` on; returns the index of the first one that is not applied.

    It stops when `limit` events have left or many items were forgotten, perhaps amid a record, and before a record for
    which there is no slot. `slots` gets the slot of each event, else -1.
    """
    state, items = m.state, m.items
    while state[FREED] >= 0:
        slot = state[FREED]
        state[FREED] = items[slot].next
        items[slot].next, state[UNUSED] = state[UNUSED], slot
    for i in range(begin, len(records)):
        kind = records[i].kind
        if state[STAGE] == NEW:
            if state[UNUSED] < 0:
                return i
            if not state[REBUILDING]:
                pass_time(m, records[i].partition, records[i].time, kind in (LABEL, WITHDRAWAL))
            state[STAGE] = CLOSING
        if state[STAGE] == CLOSING:
            if not state[REBUILDING]:
                if not close_windows(m, limit):
                    return i
                # The records that were set aside and that stream time has come near enough to, in order.
                while state[FAR] and m.heaps[FAR, 0].time <= state[STREAM_TIME] + m.rules[HORIZON]:
                    take(m, pop(m, FAR))
            slots[i] = -1
            if kind != OTHER:
                slot = state[UNUSED]
                state[UNUSED] = items[slot].next
                items[slot] = records[i]
                if kind <= LABELLED:
                    slots[i] = slot
                take(m, slot)
            state[STAGE] = APPLIED
        if not state[REBUILDING]:
            if not cut(m):
                return i
            make_room(m)
            m.counts[RECORDS] += 1
        state[STAGE] = NEW
        if state[OUT] >= limit:
            return i + 1
    return len(records)
