"""Every error that a user can meet, by what is at fault.

PerceptronError
├── ConfigurationError    the settings: nothing was started, change them
│   └── IdentityChanged   the settings give events another meaning than the stored model's
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
├── Stuck                 our code or a client library: there is work and nothing moves; a fresh process goes on
├── Rejected              one event or request that breaks the format (never ends a process)
├── UnknownModel          a request is for a model that is not there
└── Unanswerable          a model that is there and cannot answer now

Each message is one line that says what is wrong and what to do.
"""

import os
from collections.abc import Iterable, Iterator


class PerceptronError(Exception):
    """The root. The command ends with `exit_code` if nothing handles the error."""

    exit_code = 1


class ConfigurationError(PerceptronError):
    """A setting is missing, malformed or contradicts another."""

    exit_code = 2


class IdentityChanged(ConfigurationError):
    """The stored model was learned under settings that give its events another meaning."""


class DataError(PerceptronError):
    """The log or the store holds something that must not be learned or served."""


class OutOfOrder(DataError):
    """The first offset of the records is not the one after the last record learned."""


class LogLost(DataError):
    """The log begins after, or ends before, the next record to learn."""


class LogGap(LogLost):
    """Offsets are missing or there twice, and no marker, aborted transaction or compaction explains it."""


class AnotherCluster(DataError):
    """The stored model was learned from another Kafka cluster, so that it may be somebody else's."""


class Diverged(DataError):
    """The weights of a model grow beyond all bounds: it learns nothing more, and does not answer.

    `why` names the event or the norm.
    """

    def __init__(self, model: str, why: str) -> None:
        super().__init__(
            f"model {model} diverged: {why}; the last version kept from before the growth answers, or none. Begin anew "
            f"with a smaller eta or scaled features after `perceptron reset -t {model} --yes`, or leave the events out "
            f"with `perceptron rollback -t {model} --to VERSION --resume-at P:OFFSET --yes`"
        )


class SnapshotDamaged(DataError):
    """A head or blob in the store is missing or does not match its digest."""


class SnapshotForeign(DataError):
    """A head in the store matches its digest and was written by a newer release, or by one of another fold."""


class DependencyError(PerceptronError):
    """Kafka or Redis cannot be reached, timed out, or refused a command. `dependency` is `kafka` or `redis`."""

    exit_code = 3

    def __init__(self, detail: str, dependency: str = "") -> None:
        super().__init__(detail)
        self.dependency = dependency


class Unauthorised(DependencyError):
    """A user of Kafka's lacks a right."""


class Stuck(PerceptronError):
    """Kafka answers, but the client has delivered nothing for a long time, or has cancelled a task of ours."""


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
    """A request is for a candidate that its model does not have."""

    def __init__(self, known: Iterable[str]) -> None:
        super().__init__(f"?candidate: the model has none of this name, it has {', '.join(known) or 'none'}")


class Unanswerable(PerceptronError):
    """A model is there and cannot answer now."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors that led to it, the newest first: clients raise theirs on top of the system's."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def os_cause(error: OSError) -> str:
    """Why the operating system or TLS refused, in its own words, without those of event loops and clients."""
    from ssl import SSLError  # learning imports this file, and works without sockets

    if isinstance(error, SSLError):  # its number is OpenSSL's, and would be taken for another error
        detail = getattr(error, "verify_message", "")
        return f"TLS: {(error.reason or 'failed').lower().replace('_', ' ')}{detail and f': {detail}'}"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
