"""Every error that a user can meet, by what is at fault.

PerceptronError
├── ConfigurationError    the settings: nothing was started, change them
│   └── IdentityChanged   under these settings events mean something else than under the stored model's
├── DataError             the log or the store holds something that must not be learned or served
│   ├── OutOfOrder        records do not continue where the model stopped
│   ├── LogLost           the log no longer has the next record
│   │   └── LogGap        batches of the log do not follow each other, and nothing explains why
│   ├── AnotherCluster    the stored model was learned from another Kafka cluster
│   ├── Diverged          the weights grow without limit
│   ├── SnapshotDamaged   a stored snapshot does not match its own digests
│   └── SnapshotForeign   a stored snapshot is intact, but was written by another release
├── DependencyError       Kafka or Redis did not answer, or refused
│   └── Unauthorised      the Kafka user lacks a right
├── Stuck                 our code or a client library makes no progress; a fresh process continues
├── Rejected              one event or request breaks the format (never ends a process)
├── BadRecords            some records of a request break the format
├── NotFound              a request names or needs what does not exist
│   ├── UnknownModel      … a model
│   └── UnknownCandidate  … a candidate of its model
└── Unanswerable          a model exists but cannot answer now

Each message is one line that says what is wrong and what to do.
"""

import os
from collections.abc import Iterable, Iterator, Sequence


class PerceptronError(Exception):
    """The root. The command ends with `exit_code` if nothing handles the error."""

    exit_code = 1


class ConfigurationError(PerceptronError, ValueError):
    """A setting is missing, malformed or contradicts another.

    As a ValueError it is one of the setting that is being validated, for pydantic.
    """

    exit_code = 2


class IdentityChanged(ConfigurationError):
    """The stored model was learned under settings by which its events mean something else."""


class DataError(PerceptronError):
    """The log or the store holds something that must not be learned or served."""


class OutOfOrder(DataError):
    """The first record is not the one after the last record learned."""


class LogLost(DataError):
    """The log begins after, or ends before, the next record to learn."""


class LogGap(LogLost):
    """Offsets are missing or occur twice, and no marker, aborted transaction or compaction explains it."""


class AnotherCluster(DataError):
    """The stored model was learned from another Kafka cluster, so it may be somebody else's."""


class Diverged(DataError):
    """The weights of a model grow without limit: it stops learning and does not answer.

    `why` names the event or the norm.
    """

    def __init__(self, model: str, why: str) -> None:
        super().__init__(
            f"model {model} diverged: {why}; the last version kept from before the growth answers, or none. Start from "
            f"scratch with a smaller eta or scaled features after `perceptron reset -m {model} --yes`, or leave the "
            f"events out with `perceptron rollback -m {model} --to VERSION --resume-at P:OFFSET --yes`"
        )


class SnapshotDamaged(DataError):
    """A head or blob in the store is missing or does not match its digest."""


class SnapshotForeign(DataError):
    """A head in the store matches its digest, but a newer release or one with another fold wrote it."""


class DependencyError(PerceptronError):
    """Kafka, Redis or the service cannot be reached or refuses. `dependency` is `kafka`, `redis`, or '' in commands."""

    exit_code = 3

    def __init__(self, detail: str, dependency: str = "") -> None:
        super().__init__(detail)
        self.dependency = dependency


class Unauthorised(DependencyError):
    """The Kafka user lacks a right."""


class Stuck(PerceptronError):
    """Kafka answers, but the client has delivered nothing for a long time, or has cancelled one of our tasks."""


class Rejected(PerceptronError):
    """An event or request that breaks the format.

    `reason` is one of `events.read_events.REASONS`, the message is one line for a person, and `pointer` is a JSON
    pointer to the member at fault.
    """

    def __init__(self, reason: str, detail: str, pointer: str = "") -> None:
        super().__init__(detail)
        self.reason, self.detail, self.pointer = reason, detail, pointer


class BadRecords(PerceptronError):
    """Some records of a request break the format: the first one's fault is the message."""

    def __init__(self, faults: Sequence[Rejected]) -> None:
        super().__init__(f"{faults[0]}{f' (and {len(faults) - 1:,} more)' if len(faults) > 1 else ''}")
        self.faults = faults


class NotFound(PerceptronError):
    """A request names or needs what does not exist."""


class UnknownModel(NotFound):
    """A request names a model that does not exist."""

    def __init__(self) -> None:
        super().__init__("there is no model of this name; GET /v1/models lists them")


class UnknownCandidate(NotFound):
    """A request names a candidate that its model does not have."""

    def __init__(self, candidates: Iterable[str]) -> None:
        super().__init__(f"?candidate: the model has no such candidate; it has {', '.join(candidates) or 'none'}")


class Unanswerable(PerceptronError):
    """A model exists but cannot answer now."""


def causes(error: BaseException | None) -> Iterator[BaseException]:
    """An error and the errors that caused it, newest first: client libraries wrap the system's errors."""
    while error is not None:
        yield error
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)


def os_cause(error: OSError) -> str:
    """Why the operating system or TLS refused, in its own words, without what event loops and clients add."""
    from ssl import SSLError  # not at the top: learning imports this module, and works without sockets

    if isinstance(error, SSLError):  # its errno is an OpenSSL number, not the system's
        detail = getattr(error, "verify_message", "")
        return f"TLS: {(error.reason or 'failed').lower().replace('_', ' ')}{detail and f': {detail}'}"
    return os.strerror(error.errno) if error.errno and error.errno > 0 else error.strerror or str(error)
