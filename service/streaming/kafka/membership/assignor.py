"""Assigns whole models to members: evenly, and to the previous member as far as that stays even.

A model has one learner, so one member gets all partitions of its topics. Models that share a topic go together.
"""

import time
from collections.abc import Collection, Iterable, Mapping
from typing import Any, NamedTuple, Self

from aiokafka.coordinator.assignors.abstract import AbstractPartitionAssignor
from aiokafka.coordinator.protocol import ConsumerProtocolMemberAssignment, ConsumerProtocolMemberMetadata

VERSION = 0
NAME = "perceptron-whole-topics"
Unit = tuple[str, ...]
"""The topics that one member must have together, in order."""
ModelTopics = tuple[str, Unit]
"""A model's name and its topics, in order."""


def units_of(models: Iterable[ModelTopics]) -> list[Unit]:
    """The topics of these models; topics that a model connects are one unit.

    >>> units_of([("a", ("x", "y")), ("b", ("z",)), ("c", ("y",))])
    [('x', 'y'), ('z',)]
    """
    units = list[set[str]]()
    for _, topics in models:
        connected = [unit for unit in units if not unit.isdisjoint(topics)]
        units = [unit for unit in units if unit.isdisjoint(topics)] + [set(topics).union(*connected)]
    return sorted(tuple(sorted(unit)) for unit in units)


def spread(units: Iterable[Unit], members: Mapping[str, set[Unit]], held: Mapping[str, set[str]]) -> dict[Unit, str]:
    """Unit -> member. `members` maps a member to the units it can have, `held` to the topics it has now.

    Pure and deterministic. In order of name, each unit goes to its holder while that has less than its even share,
    else to the member with the fewest units of those that can have it.
    """
    chosen: dict[Unit, str] = {}
    load = dict.fromkeys(sorted(members), 0)
    requested = sorted(unit for unit in units if any(unit in possible for possible in members.values()))
    share, extra = divmod(len(requested), len(members) or 1)
    for unit in requested:
        holder = next((m for m in load if unit in members[m] and not held.get(m, set()).isdisjoint(unit)), None)
        if holder is not None and load[holder] < share + (extra > 0):
            extra -= load[holder] == share
            load[holder] += 1
            chosen[unit] = holder
    for unit in requested:
        if unit not in chosen:
            member = min((m for m in load if unit in members[m]), key=lambda m: (load[m], m))
            load[member] += 1
            chosen[unit] = member
    return chosen


class Claim(NamedTuple):
    """The data that a member sends to the group's leader."""

    since: float = 0.0
    """When it got its topics, in seconds since 1970."""
    held: frozenset[str] = frozenset()
    """The topics that it has."""
    models: frozenset[ModelTopics] = frozenset()
    """The models of its settings."""

    def encode(self) -> bytes:
        """As bytes: the time, the topics that it has, and MODEL=TOPIC,…, a line each."""
        models = (f"{model}={','.join(topics)}" for model, topics in sorted(self.models))
        return "\n".join([f"{self.since:.3f}", *sorted(self.held), *models]).encode()

    @classmethod
    def decode(cls, data: bytes, subscription: Iterable[str]) -> Self:
        """The claim of a member with this subscription. A release that sends no models has one for each topic."""
        since, *lines = data.decode().split("\n")
        named = [line.split("=") for line in lines if "=" in line]
        models = [(model, tuple(topics.split(","))) for model, topics in named] or [(t, (t,)) for t in subscription]
        return cls(float(since or 0), frozenset(line for line in lines if "=" not in line), frozenset(models))


def newest_holders(claims: Mapping[str, Claim]) -> dict[str, set[str]]:
    """Member -> topics it holds.

    If two members claim a topic, the later one has it: a member that was away still claims what it had.
    """
    holders: dict[str, str] = {}
    for member in sorted(claims, key=lambda m: (claims[m].since, m)):
        holders.update(dict.fromkeys(claims[member].held, member))
    return {member: {topic for topic, holder in holders.items() if holder == member} for member in claims}


def whole_topics(models: Mapping[str, Iterable[str]]) -> type[AbstractPartitionAssignor]:
    """A new assignor class for one consumer with these models, which may become more.

    aiokafka calls class methods, and each member has its own state.
    """

    class WholeTopics(AbstractPartitionAssignor):
        """Gives each model's topics to one member, if possible the one that has them."""

        name = NAME
        claim = Claim()
        lacking: Collection[str] = ()
        """Models that other members learn from a topic of this member, which its settings lack."""
        is_foreign = False
        """Whether another assignor made the last assignment, such as a broker's for a group of the newer protocol."""

        @classmethod
        def metadata(cls, topics: Iterable[str]) -> Any:
            """The subscription of this member and its claim, for the group's leader."""
            own = frozenset((model, tuple(sorted(names))) for model, names in models.items())
            claim = Claim(cls.claim.since, cls.claim.held, own).encode()
            return ConsumerProtocolMemberMetadata(VERSION, sorted(topics), claim)

        @classmethod
        def assign(cls, cluster: Any, members: Mapping[str, Any]) -> dict[str, Any]:
            """The partitions of each member. aiokafka calls this only on the group's leader.

            A unit goes to a member that has the most of its models. Others hear which models they lack.
            """
            claims = {member: Claim.decode(m.user_data or b"", m.subscription) for member, m in members.items()}
            topics = {topic for m in members.values() for topic in m.subscription}
            partitions = {t: sorted(found) for t in topics if (found := cluster.partitions_for_topic(t))}
            known = {each for claim in claims.values() for each in claim.models if partitions.keys() >= set(each[1])}
            possible: dict[str, set[Unit]] = {member: set() for member in members}
            lacking: dict[str, set[str]] = {member: set() for member in members}
            units = units_of(known)
            for unit in units:
                learned = {model for model, names in known if not set(names).isdisjoint(unit)}
                missing = {
                    member: learned - {model for model, _ in claims[member].models}
                    for member, m in members.items()
                    if set(unit) <= set(m.subscription)
                }
                least = min(map(len, missing.values()), default=0)
                for member, names in missing.items():
                    (possible[member].add(unit) if len(names) == least else lacking[member].update(names))
            chosen = spread(units, possible, newest_holders(claims))
            return {
                member: ConsumerProtocolMemberAssignment(
                    VERSION,
                    [(t, partitions[t]) for unit, m in chosen.items() if m == member for t in unit],
                    "\n".join(sorted(lacking[member])).encode(),
                )
                for member in members
            }

        @classmethod
        def on_assignment(cls, assignment: Any) -> None:
            """Remember what this member holds, for the next rebalance, and which models it lacks."""
            cls.is_foreign = assignment.user_data is None
            cls.claim = Claim(time.time(), frozenset(topic for topic, _ in assignment.assignment))
            cls.lacking = (assignment.user_data or b"").decode().split()

    return WholeTopics
