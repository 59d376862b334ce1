"""Ports of servers that are started beside each other, by processes that do not know of each other."""

import random
import subprocess
import sys

from service.embedded.servers import free_port

ANOTHER = "import random; from service.embedded.servers import free_port; random.seed(7); print(free_port())"


def test_a_port_that_is_given_is_given_to_nobody_else() -> None:
    """Though nothing listens on it yet, and the other process has the same numbers in mind."""
    state = random.getstate()
    random.seed(7)
    first = free_port()
    random.seed(7)
    second = free_port()
    random.setstate(state)
    third = int(subprocess.run([sys.executable, "-c", ANOTHER], capture_output=True, text=True, check=True).stdout)
    assert len({first, second, third}) == 3
