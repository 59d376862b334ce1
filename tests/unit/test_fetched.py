"""An answer to a fetch is what the client's own schema reads of it."""

from typing import Any

import pytest
from aiokafka.protocol.fetch import FetchResponse_v4, FetchResponse_v11
from hypothesis import given
from hypothesis import strategies as st

from service.streaming.answers import Body
from service.streaming.fetched import fetched

SHORT, INT, LONG = (st.integers(-(1 << bits - 1), (1 << bits - 1) - 1) for bits in (16, 32, 64))
ABORTED = st.none() | st.lists(st.tuples(LONG, LONG), max_size=3)
PARTITION = st.tuples(INT, SHORT, LONG, LONG, LONG, ABORTED, INT, st.none() | st.binary())
TOPIC = st.tuples(st.text(max_size=9), st.lists(PARTITION, max_size=3))
ANSWER = st.builds(FetchResponse_v11, INT, SHORT, INT, st.lists(TOPIC, max_size=3))


@given(ANSWER)
def test_it_is_what_the_schema_reads(answer: Any) -> None:
    encoded = answer.encode()
    body = Body(memoryview(encoded))
    assert fetched(FetchResponse_v11, body) == FetchResponse_v11.decode(encoded)
    assert body.read(1) == b""


def test_none_that_is_cut_is_read() -> None:
    encoded = FetchResponse_v11(0, 0, 0, [("t", [(0, 0, 1, 2, 3, [(4, 5)], -1, b"records")])]).encode()
    for end in range(len(encoded)):
        with pytest.raises(Exception, match=r"requires a buffer of|bytes too soon"):
            fetched(FetchResponse_v11, Body(memoryview(encoded[:end])))


def test_an_older_version_is_the_schemas() -> None:
    answer = FetchResponse_v4(0, [("t", [(0, 0, 9, 9, [], b"records")])])
    assert fetched(FetchResponse_v4, Body(memoryview(answer.encode()))) == answer
