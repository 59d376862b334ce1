"""TLS between a connection and its socket, by the standard library's own.

The event loop's own takes a connection in only when its handshake is over, keeps what nobody reads where no limit sees
it, and waits at the end for a client to say goodbye. Here a connection is one from its beginning, and what it has not
sent is in the socket's transport, as without TLS: so every limit of `connections` holds.
"""

import asyncio
import contextlib
import ssl
from typing import Any

READ_BYTES = 256 << 10
RECORD_BYTES = 16 << 10
MAX_VAIN_BYTES = 64 << 10
"""Received without a byte for HTTP: many times a handshake."""


class Encrypted(asyncio.Protocol):
    """A protocol to its socket, and to the connection within the transport: what it reads and writes is plain."""

    def __init__(self, within: Any, context: ssl.SSLContext) -> None:
        self._within, self._context = within, context
        self._incoming, self._outgoing = ssl.MemoryBIO(), ssl.MemoryBIO()
        self._shaking = True
        self._ended = False  # we have said so
        self._vain = 0

    # From the socket

    def connection_made(self, transport: Any) -> None:  # noqa: D102
        self._socket = transport
        self._tls = self._context.wrap_bio(self._incoming, self._outgoing, server_side=True)
        self._within.connection_made(self)

    def data_received(self, data: bytes) -> None:  # noqa: D102
        if self._ended:
            return
        self._incoming.write(data)
        self._vain += len(data)
        plain, more = list[bytes](), True
        try:
            if self._shaking:
                self._tls.do_handshake()
                self._shaking = False
            while more and (self._incoming.pending or self._tls.pending()):
                plain.append(self._tls.read(READ_BYTES))
                more = bool(plain[-1])
        except ssl.SSLWantReadError:
            pass
        except ssl.SSLError:  # no TLS, or none that we speak: what tells the client so is in _outgoing
            more = False
        self._flush()
        if any(plain):
            self._vain = 0
            self._within.data_received(b"".join(plain))
        if self._vain > MAX_VAIN_BYTES:
            self._socket.abort()
        elif not more:
            self.close()

    def eof_received(self) -> None:  # noqa: D102
        self._within.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:  # noqa: D102
        self._within.connection_lost(exc)

    def pause_writing(self) -> None:  # noqa: D102
        self._within.pause_writing()

    def resume_writing(self) -> None:  # noqa: D102
        self._within.resume_writing()

    # From the connection

    def get_extra_info(self, name: str) -> Any:  # noqa: D102
        return self._context if name == "sslcontext" else self._socket.get_extra_info(name)

    def write(self, data: bytes) -> None:
        """Whole, as its socket takes it; before the handshake is over nobody could read it."""
        if self._shaking or self._ended or self._socket.is_closing():
            return
        whole, sealed = memoryview(data), list[bytes]()
        for begin in range(0, len(data), RECORD_BYTES):  # one at a time: the buffer between never shrinks
            self._tls.write(whole[begin : begin + RECORD_BYTES])
            sealed.append(self._outgoing.read())
        self._socket.write(b"".join(sealed))

    def write_eof(self) -> None:
        """Say that no more comes, and throw away what does."""
        self._say_end()
        self._socket.write_eof()

    def close(self) -> None:
        """When all is sent. A client need not say goodbye: each answer says how long it is."""
        if not self._socket.is_closing():
            self._say_end()
            self._socket.close()

    def abort(self) -> None:  # noqa: D102
        self._socket.abort()

    def is_closing(self) -> bool:  # noqa: D102
        closing: bool = self._socket.is_closing()
        return closing

    def get_write_buffer_size(self) -> int:  # noqa: D102
        size: int = self._socket.get_write_buffer_size()
        return size

    def pause_reading(self) -> None:  # noqa: D102
        self._socket.pause_reading()

    def resume_reading(self) -> None:  # noqa: D102
        self._socket.resume_reading()

    def _say_end(self) -> None:
        if not self._ended:
            self._ended = True
            # It raises where the client has not said so yet, or the handshake is not over.
            with contextlib.suppress(ssl.SSLError):
                self._tls.unwrap()
            self._flush()

    def _flush(self) -> None:
        if self._outgoing.pending:
            self._socket.write(self._outgoing.read())
