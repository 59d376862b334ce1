"""What `serving/connections.py` knows of uvicorn's insides is as it was."""

import hashlib
import inspect

from uvicorn.protocols.http import flow_control, httptools_impl


def test_uvicorn_is_the_one_that_connections_lean_on() -> None:
    """If not: read what changed in these two files, see that tests/faults/test_clients.py passes, put in the digest."""
    text = inspect.getsource(httptools_impl) + inspect.getsource(flow_control)
    assert hashlib.sha256(text.encode()).hexdigest()[:16] == "ea814cf42e50628d"
