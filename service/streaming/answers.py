"""What a broker answers, each answer read straight into memory of its own.

The client's stream copies a fetch four times before a record of it is looked at, which is a fifth of what it costs to
learn one.
"""

import asyncio
import weakref
from struct import Struct
from typing import Any

import numpy as np

SIZE_BYTES = 4
"""Before each answer, which is no shorter."""
LONGEST_TEXT = 32767
"""In bytes, of Kafka's strings. What is longer is records."""


class Answers(asyncio.BufferedProtocol):
    """Takes the place of the protocol of a connection that is made, and hands it all but data."""

    def __init__(self, connection: Any, transport: Any) -> None:
        self._connection, self._transport = weakref.ref(connection), transport
        self._theirs = transport.get_protocol()
        self._size = self._into = memoryview(bytearray(SIZE_BYTES))
        self._at = 0
        transport.pause_reading()  # a loop chooses how it reads where it begins to
        transport.set_protocol(self)
        transport.resume_reading()

    def get_buffer(self, sizehint: int) -> memoryview:  # noqa: ARG002 - a loop's guess
        """Where the next bytes are wanted."""
        return self._into[self._at :]

    def buffer_updated(self, nbytes: int) -> None:
        """So many of them have come."""
        self._at += nbytes
        connection = self._connection()
        if self._at < len(self._into) or connection is None or not connection.connected():
            return
        came, self._at = self._into, 0
        try:
            if came is self._size:
                size = int.from_bytes(came, signed=True)
                if size < SIZE_BYTES:
                    raise ConnectionError(f"an answer of {size} bytes is none")
                self._into = np.empty(size, np.uint8).data
            else:
                self._into = self._size
                connection._handle_frame(came.toreadonly())
        except Exception as error:  # who reads for the client raises it, which closes the connection
            self._transport.pause_reading()
            connection._reader.set_exception(error)

    def eof_received(self) -> bool | None:
        """As theirs."""
        ended: bool | None = self._theirs.eof_received()
        return ended

    def connection_lost(self, exc: Exception | None) -> None:
        """As theirs."""
        self._theirs.connection_lost(exc)

    def pause_writing(self) -> None:
        """As theirs."""
        self._theirs.pause_writing()

    def resume_writing(self) -> None:
        """As theirs."""
        self._theirs.resume_writing()


class Body:
    """An answer as the client's parsers read it."""

    def __init__(self, answer: memoryview) -> None:
        self._answer, self._at = answer, 0

    def read(self, size: int) -> bytes | memoryview:
        """The next bytes. Records that are most of an answer stay where they are; others would hold on to the rest."""
        part = self._answer[self._at : self._at + size]
        self._at += len(part)
        return part if len(part) > max(LONGEST_TEXT, len(self._answer) // 2) else bytes(part)

    def unpack(self, form: Struct) -> tuple[Any, ...]:
        """The next bytes as numbers of this form; raises struct.error where they are fewer."""
        numbers = form.unpack_from(self._answer, self._at)
        self._at += form.size
        return numbers
