"""The HTTP side of a process, as its settings say: a socket, and what serves the application on it."""

import socket
from collections.abc import Callable

from service import __version__
from service.errors import ConfigurationError, os_cause
from service.monitoring.metrics import Metrics
from service.serving.http.app import create_app
from service.serving.http.auth import BearerTokens
from service.serving.http.limits import Connections, Limits
from service.serving.http.server import Server
from service.serving.models import Models
from service.serving.page.history import History
from service.settings.load import Settings
from service.snapshots.store import RedisStore

DESCRIPTORS, MODEL_DESCRIPTORS = 64, 8
"""Not for HTTP connections: the process needs them itself, and each model for Kafka and Redis. A request may too."""


def bind(host: str, port: int, reuse_port: bool = False) -> socket.socket:
    """A socket that is bound to this address, perhaps beside others; raises ConfigurationError."""
    if reuse_port and not hasattr(socket, "SO_REUSEPORT"):
        raise ConfigurationError("http.reuse_port: this system has no ports that processes share")
    listening = None
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listening = socket.socket(family, kind, protocol)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        if reuse_port:
            listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEPORT, 1)
        listening.bind(address)
    except OSError as error:
        if listening is not None:
            listening.close()
        raise ConfigurationError(f"http: cannot listen on {host}:{port}: {os_cause(error)}") from None
    return listening


def server(
    settings: Settings,
    models: Models,
    metrics: Metrics,
    store: RedisStore,
    history: History,
    ready: Callable[[], bool],
    stopping: Callable[[], bool],
    answer_seconds: int,
    warn: Callable[[str], object],
) -> Server:
    """What serves these models, and at the end waits so long for requests in flight."""
    http = settings.http
    limits = Limits(
        body_bytes=http.max_body_bytes,
        instances=http.max_instances,
        body_seconds=http.body_timeout,
        in_flight=http.max_in_flight,
        connections=http.max_connections,
        header_seconds=http.header_timeout,
        answer_seconds=http.answer_timeout,
        idle_seconds=http.idle_timeout,
    )
    files = http.token_file, http.metrics_token_file
    tokens, metrics_tokens = (BearerTokens(file, warn) if file else None for file in files)
    app = create_app(
        models,
        metrics,
        ready,
        stopping,
        store,
        limits,
        version=__version__,
        tokens=tokens,
        metrics_tokens=metrics_tokens,
        history=history,
        root_path=http.root_path,
        allowed_origins=http.allowed_origins,
    )
    connections = Connections(
        limits,
        lambda cause: metrics.ended.labels(cause).inc(),
        lambda: DESCRIPTORS + http.max_in_flight + MODEL_DESCRIPTORS * len(list(models)),
        stopping,
    )
    return Server(app, connections, answer_seconds, http.tls.context(warn) if http.tls else None)
