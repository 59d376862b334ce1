"""The assignor gives whole topics to members, evenly, and moves few of them."""

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from service.streaming.kafka.membership.assignor import newest_claims, spread

topics = st.sets(st.sampled_from([f"t{i}" for i in range(12)]), max_size=12)


@given(topics, st.integers(1, 5))
def test_every_topic_goes_to_one_member_evenly_and_stays(names: set[str], members: int) -> None:
    subscribed = {f"m{i}": set(names) for i in range(members)}
    first = spread(names, subscribed, {})
    assert set(first) == names
    loads = Counter(first.values())
    assert max(loads.values(), default=0) - min((loads[m] for m in subscribed), default=0) <= 1
    held = {m: {t for t, owner in first.items() if owner == m} for m in subscribed}
    assert spread(names, subscribed, held) == first
    # One more member takes its share, and every topic that it does not take stays.
    more = subscribed | {"m9": set(names)}
    second = spread(names, more, held)
    loads = Counter(second.values())
    assert max(loads.values(), default=0) - min((loads[m] for m in more), default=0) <= 1
    assert sum(second[t] != first[t] for t in names) == loads["m9"]


def test_a_topic_goes_only_to_members_that_want_it() -> None:
    members = {"a": {"x"}, "b": {"x", "y", "z"}}
    chosen = spread(["x", "y", "z", "unwanted"], members, {"a": {"y"}})
    assert chosen == {"x": "a", "y": "b", "z": "b"}


def test_of_two_that_claim_a_topic_the_later_one_has_it() -> None:
    """A member that was away still claims its topics; the member that has taken them over keeps them."""
    claims = {"a": b"100.0\nt1\nt2", "b": b"200.5\nt1", "c": b""}
    assert newest_claims(claims) == {"a": {"t2"}, "b": {"t1"}, "c": set()}
