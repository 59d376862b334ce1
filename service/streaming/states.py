"""The states of the loop that learns a topic, and what moves it from one to another. `learn` has the steps."""

from collections.abc import Mapping
from enum import Enum


class State(Enum):
    """Where the loop is. It holds its model in all of them but STOPPED: where its head is current, it goes on."""

    WAITING = "the topic is not ours"
    RESTORING = "it is ours: the current head is read, or a first one written"
    LEARNING = "records are polled, learned and saved"
    STOPPED = "waiting does not mend it: the stored model is watched"
    ENDED = "the process is stopping"


TRANSITIONS: Mapping[State, Mapping[State, str]] = {
    State.WAITING: {
        State.RESTORING: "Kafka gave us the topic",
        State.ENDED: "the process is stopping",
    },
    State.RESTORING: {
        State.LEARNING: "log and settings fit the head; the log is sought to where it stops",
        State.WAITING: "the topic is lost, or the process is stopping",
        State.STOPPED: "the head cannot be read, or log or settings do not fit it",
    },
    State.LEARNING: {
        State.RESTORING: "the state was dropped (refused, replaced, recreated), or the log did not answer",
        State.WAITING: "the topic is lost, or the process is stopping",
        State.STOPPED: "the next record is gone or cannot be read, the model diverged, or its state is corrupt",
    },
    State.STOPPED: {
        State.STOPPED: "the stored model cannot be read any more, which is another reason",
        State.WAITING: "the stored model is another one, or may be readable again; or the topic is lost",
    },
}
"""What moves the loop from one state to another. Where Kafka or Redis does not answer, it stays and tries again."""
