"""The assignor gives whole models to members, evenly, and moves few of them."""

from collections import Counter
from typing import Any

import pytest
from aiokafka.coordinator.protocol import ConsumerProtocolMemberMetadata
from hypothesis import given
from hypothesis import strategies as st

from service.streaming.kafka.membership.assignor import Claim, Unit, newest_holders, spread, whole_topics

units = st.sets(st.sampled_from([(f"t{i}",) for i in range(10)] + [("t10", "t11"), ("t12", "t13")]), max_size=12)


@given(units, st.integers(1, 5))
def test_every_unit_goes_to_one_member_evenly_and_stays(names: set[Unit], members: int) -> None:
    possible = {f"m{i}": set(names) for i in range(members)}
    owners = spread(names, possible, {})
    assert set(owners) == names
    loads = Counter(owners.values())
    assert max(loads.values(), default=0) - min((loads[m] for m in possible), default=0) <= 1
    held = {m: {topic for unit, owner in owners.items() if owner == m for topic in unit} for m in possible}
    assert spread(names, possible, held) == owners
    # One more member takes its share, and every unit that it does not take stays.
    more = possible | {"m9": set(names)}
    new_owners = spread(names, more, held)
    loads = Counter(new_owners.values())
    assert max(loads.values(), default=0) - min((loads[m] for m in more), default=0) <= 1
    assert sum(new_owners[unit] != owners[unit] for unit in names) == loads["m9"]


def test_the_latest_claim_of_a_topic_counts() -> None:
    """A member that was away still claims its topics; the member that has taken them over keeps them."""
    claims = {"a": Claim.decode(b"100.0\nt1\nt2", []), "b": Claim.decode(b"200.5\nt1", []), "c": Claim.decode(b"", [])}
    assert newest_holders(claims) == {"a": {"t2"}, "b": {"t1"}, "c": set()}


class Topics:
    """The cluster as a group's leader sees it: each topic has two partitions."""

    def partitions_for_topic(self, _: str) -> set[int]:
        return {0, 1}


def assign(**members: Any) -> dict[str, tuple[set[str], list[str]]]:
    """Each member's topics and the models that it lacks; a member is its models, or a list of topics for 0.3."""
    metadata = {}
    for name, models in members.items():
        subscribed = sorted(
            {topic for topics in models.values() for topic in topics} if type(models) is dict else models
        )
        own = whole_topics(models).metadata(subscribed) if type(models) is dict else None
        metadata[name] = own or ConsumerProtocolMemberMetadata(0, subscribed, b"0.000")
    answer = {}
    for name, assignment in whole_topics({}).assign(Topics(), metadata).items():
        assignor: Any = whole_topics({})
        assignor.on_assignment(assignment)
        assert all(partitions == [0, 1] for _, partitions in assignment.assignment)
        answer[name] = {topic for topic, _ in assignment.assignment}, list(assignor.lacking)
    return answer


CHURN, BOTH = {"churn": ["churn"]}, {"churn": ["churn"], "v2": ["churn"]}


@pytest.mark.parametrize(
    ("members", "expected"),
    [
        ({"a": CHURN, "b": BOTH}, {"a": (set(), ["v2"]), "b": ({"churn"}, [])}),
        ({"a": ["churn"], "b": BOTH}, {"a": (set(), ["v2"]), "b": ({"churn"}, [])}),
        ({"a": {"ctr": ["views", "clicks"]}, "b": {}}, {"a": ({"views", "clicks"}, []), "b": (set(), [])}),
        ({"a": ["x", "y"], "b": ["x", "y", "z"]}, {"a": ({"x"}, []), "b": ({"y", "z"}, [])}),
    ],
)
def test_a_member_gets_all_topics_of_models_that_it_knows(members: Any, expected: Any) -> None:
    """Models that share a topic are learned by one member, and one that lacks some of them hears which."""
    assert assign(**members) == expected
