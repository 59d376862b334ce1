"""The assignor gives whole topics to members, evenly, and moves few of them."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from service.streaming.kafka.membership.assignor import newest_claims, spread

topics = st.sets(st.sampled_from([f"t{i}" for i in range(12)]), max_size=12)


@given(topics, st.integers(1, 5))
def test_every_topic_goes_to_one_member_evenly_and_stays(names: set[str], members: int) -> None:
    subscriptions = {f"m{i}": set(names) for i in range(members)}
    owners = spread(names, subscriptions, {})
    assert set(owners) == names
    loads = Counter(owners.values())
    assert max(loads.values(), default=0) - min((loads[m] for m in subscriptions), default=0) <= 1
    assignment = {m: {t for t, owner in owners.items() if owner == m} for m in subscriptions}
    assert spread(names, subscriptions, assignment) == owners
    # One more member takes its share, and every topic that it does not take stays.
    new_subscriptions = subscriptions | {"m9": set(names)}
    new_owners = spread(names, new_subscriptions, assignment)
    loads = Counter(new_owners.values())
    assert max(loads.values(), default=0) - min((loads[m] for m in new_subscriptions), default=0) <= 1
    assert sum(new_owners[t] != owners[t] for t in names) == loads["m9"]


def test_a_topic_goes_only_to_members_that_want_it() -> None:
    members = {"a": {"x"}, "b": {"x", "y", "z"}}
    owners = spread(["x", "y", "z", "unwanted"], members, {"a": {"y"}})
    assert owners == {"x": "a", "y": "b", "z": "b"}


def test_the_latest_claim_of_a_topic_counts() -> None:
    """A member that was away still claims its topics; the member that has taken them over keeps them."""
    claims = {"a": b"100.0\nt1\nt2", "b": b"200.5\nt1", "c": b""}
    assert newest_claims(claims) == {"a": {"t2"}, "b": {"t1"}, "c": set()}
