"""Assigns whole topics to members: evenly, and to the previous member as far as that stays even.

A topic is one model, and a model has one learner, so a topic's partitions are never split between members.
"""

import time
from collections.abc import Iterable, Mapping
from typing import Any

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

VERSION = 0


def spread(topics: Iterable[str], members: Mapping[str, set[str]], held: Mapping[str, set[str]]) -> dict[str, str]:
    """Topic -> member. `members` maps a member to the topics it subscribes to, `held` to the topics it has now.

    Pure and deterministic. In order of name, each topic goes to its holder while that has less than its even share,
    else to the subscribed member with the fewest topics.
    """
    chosen: dict[str, str] = {}
    load = dict.fromkeys(sorted(members), 0)
    requested = sorted(t for t in topics if any(t in subscribed for subscribed in members.values()))
    share, extra = divmod(len(requested), len(members) or 1)
    for topic in requested:
        holder = next((m for m in load if topic in held.get(m, ()) and topic in members[m]), None)
        if holder is None or load[holder] >= share + (extra > 0):
            continue
        extra -= load[holder] == share
        load[holder] += 1
        chosen[topic] = holder
    for topic in requested:
        if topic not in chosen:
            member = min((m for m in load if topic in members[m]), key=lambda m: (load[m], m))
            load[member] += 1
            chosen[topic] = member
    return chosen


def newest_claims(claims: Mapping[str, bytes]) -> dict[str, set[str]]:
    """Member -> topics it holds. A claim is the time of its assignment and the topics, a line each.

    If two members claim a topic, the later one has it: a member that was away still claims what it had.
    """
    holders: dict[str, str] = {}
    lines = {member: claim.decode().split("\n") for member, claim in claims.items()}
    for member in sorted(lines, key=lambda m: (float(lines[m][0] or 0), m)):
        holders.update(dict.fromkeys(lines[member][1:], member))
    return {member: {topic for topic, holder in holders.items() if holder == member} for member in claims}


def whole_topics() -> type[AbstractPartitionAssignor]:
    """A new assignor class for one consumer: aiokafka calls class methods, and each member has its own state."""

    class WholeTopics(AbstractPartitionAssignor):
        """Gives each whole topic to one member, if possible the one that has it."""

        name = "perceptron-whole-topics"
        held: frozenset[str] = frozenset()
        since = 0.0

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> Any:
            """The subscription of this member and the topics that it holds, for the group's leader."""
            claim = "\n".join([f"{cls.since:.3f}", *sorted(cls.held)])
            return ConsumerProtocolMemberMetadata(VERSION, sorted(topics), claim.encode())

        @classmethod
        def assign(cls, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
            """The partitions of each member. aiokafka calls this only on the group's leader."""
            subscribed = {member: set(m.subscription) for member, m in members.items()}
            held = newest_claims({member: m.user_data or b"" for member, m in members.items()})
            partitions = {t: cluster.partitions_for_topic(t) for t in set().union(*subscribed.values())}
            chosen = spread((t for t, p in partitions.items() if p), subscribed, held)
            return {
                member: ConsumerProtocolMemberAssignment(
                    VERSION, [(t, sorted(partitions[t])) for t, m in chosen.items() if m == member], b""
                )
                for member in members
            }

        @classmethod
        def on_assignment(cls, assignment: Any) -> None:
            """Remember what this member holds, for the next rebalance."""
            cls.held = frozenset(topic for topic, _ in assignment.assignment)
            cls.since = time.time()

    return WholeTopics
