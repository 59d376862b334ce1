"""Every error that a user can meet, by whose fault it is.

PerceptronError
├── ConfigurationError    the settings: nothing was started, change them
│   └── IdentityChanged   the settings no longer mean what the stored model learned
├── DataError             the log or the store holds something that must not be learned or served
│   ├── OutOfOrder        records do not go on where the model stopped
│   ├── LogLost           the log no longer has the next record
│   │   └── LogGap        its batches do not follow on each other, and nothing explains that
│   ├── AnotherCluster    the stored model was learned from another Kafka cluster
│   ├── Diverged          the weights grow beyond all bounds
│   ├── SnapshotDamaged   a stored snapshot does not match its own digests
│   └── SnapshotForeign   a stored snapshot is whole, and another release's
├── DependencyError       Kafka or Redis did not answer, or refused
│   └── Unauthorised      a user of Kafka's lacks a right
├── Stuck                 ours or a client library's: there is work and nothing moves; a fresh process goes on
├── Rejected              one event or request that breaks the format (never ends a process)
├── UnknownModel          a request is for a model that is not there
└── Unanswerable          a model that is there and cannot answer now

Each message is one line that says what was found and what to do.
"""

import os
from collections.abc import Iterable, Iterator


class PerceptronError(Exception):
    """The root; `exit_code` is what the command ends with when nothing handles it."""

    exit_code = 1


class ConfigurationError(PerceptronError):
    """A setting is missing, malformed or contradicts another; found before anything connects."""

    exit_code = 2


class IdentityChanged(ConfigurationError):
    """The stored model was learned under settings that give its events another meaning."""


class DataError(PerceptronError):
    """The log or the store holds something that must not be learned or served."""


class OutOfOrder(DataError):
    """Records were offered whose first offset is not the one after the last record learned."""


class LogLost(DataError):
    """The log begins after, or ends before, the next record to learn."""


class LogGap(LogLost):
    """Offsets are missing, or stand twice, that no marker, aborted transaction or compaction explains."""


class AnotherCluster(DataError):
    """The stored model was learned from another Kafka cluster, so that it may be somebody else's."""


class Diverged(DataError):
    """A model whose weights grow beyond all bounds: it learns nothing more, and does not answer. `why` says at what."""

    def __init__(self, model: str, why: str) -> None:
        super().__init__(
            f"model {model} diverged: {why}; the last version kept from before the growth answers, or none. Begin anew "
            f"with a smaller eta or scaled features after `perceptron reset -t {model} --yes`, or leave the events out "
            f"with `perceptron rollback -t {model} --to VERSION --resume-at P:OFFSET --yes`"
        )


class SnapshotDamaged(DataError):
    """A head or blob in the store is missing or does not match its digest."""


class SnapshotForeign(DataError):
    """A head in the store matches its digest and is another release's: a newer one's, or one of another fold."""


class DependencyError(PerceptronError):
    """Kafka or Redis cannot be reached, timed out, or refused a command. `dependency` is `kafka` or `redis`."""

    exit_code = 3

    def __init__(self, detail: str, dependency: str = "") -> None:
        super().__init__(detail)
        self.dependency = dependency


class Unauthorised(DependencyError):
    """A user of Kafka's lacks a right."""


class Stuck(PerceptronError):
    """Kafka answers, but for long the client brought none of its records or answers; or it ended what awaits it."""


class Rejected(PerceptronError):
    """An event or request that breaks the format.

    `reason` is one of `learning.events.REASONS`, the message one line for a person,
    `pointer` a JSON pointer to the member at fault.
    """

    def __init__(self, reason: str, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.reason, self.detail, self.pointer = reason, detail, pointer


class UnknownModel(PerceptronError):
    """A request is for a model that is not there."""

    def __init__(self) -> None:
        super().__init__("there is no model of this name; GET /v1/models lists them")


class UnknownCandidate(PerceptronError):
    """A request is for a candidate that its model has not."""

    def __init__(self, known: Iterable[str]) -> None:
        super().__init__(f"?candidate: the model has none of this name, it has {', '.join(known) or 'none'}")


class Unanswerable(PerceptronError):
    """A model is there and cannot answer now."""


def led_to(error: BaseException | None) -> Iterator[BaseException]:
    """It and what led to it, the newest first: clients raise their own on top of what the system says."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def os_cause(error: OSError) -> str:
    """Why the operating system refused, in its own words, or TLS: event loops and clients wrap them in others."""
    from ssl import SSLError  # learning, which imports this file, works where there are no sockets

    if isinstance(error, SSLError):  # whose number is OpenSSL's, and would be read as another error
        detail = getattr(error, "verify_message", "")
        return f"TLS: {(error.reason or 'failed').lower().replace('_', ' ')}{detail and f': {detail}'}"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
