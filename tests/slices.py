"""What Linux says of a process' slice: how long it may run before another gets its processor."""

import ctypes
import platform
import re
import struct

from service.process.scheduling import SLICE_NANOSECONDS

_GET_ATTRIBUTES = {"x86_64": 315, "aarch64": 275}
_ATTRIBUTES = struct.Struct("=IIQiIQQQ")
SHORT = SLICE_NANOSECONDS if tuple(map(int, re.findall(r"\d+", platform.release())[:2])) >= (6, 12) else 0
"""What one has that asked for short ones."""


def slice_of(process: int) -> int:
    """In nanoseconds; 0 where Linux, before 6.12, does not say."""
    found = ctypes.create_string_buffer(_ATTRIBUTES.size)
    assert ctypes.CDLL(None).syscall(_GET_ATTRIBUTES[platform.machine()], process, found, _ATTRIBUTES.size, 0) == 0
    return int(_ATTRIBUTES.unpack(found.raw)[5])
