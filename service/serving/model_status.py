"""Why a model does not answer or learn."""

from collections.abc import Callable
from dataclasses import dataclass, field


@dataclass
class ModelStatus:
    """What keeps one model from answering or learning, and the records that were set aside."""

    store_failure: Callable[[], str] = str
    """Returns why the store could not be read last; or ''."""
    awaits_assignment: Callable[[], bool] = bool
    """Returns True while the group has not yet assigned this model's topic."""
    missing_resource: Callable[[], str] = str
    """Returns what somebody must make before this process can learn the model, such as its topic; or ''."""
    stopped: str | None = None
    """Why learning stopped, here or in the process that saved the newest snapshot."""
    unusable: str | None = None
    """Why the newest snapshot cannot answer: it is damaged, or another release's."""
    waits: str | None = None
    """Why learning waits or is in an odd order, while it is."""
    set_aside: dict[str, dict[str, str]] = field(default_factory=dict)
    """The last record of each reason that this process set aside: detail, topic, partition, offset."""

    @property
    def why_not(self) -> str:
        """Why the model cannot answer, while it cannot."""
        if why := self.stopped or self.unusable:
            return f"the model cannot answer: {why}"
        if failure := self.store_failure():
            return f"no snapshot could be read yet: {failure}"
        missing = self.missing_resource()
        return f"the model has no snapshot yet{': ' * bool(missing)}{missing}"
