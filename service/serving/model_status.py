"""Why a model does not answer or learn."""

from collections.abc import Callable


class ModelStatus:
    """What keeps one model from answering or learning, and the records that were set aside."""

    def __init__(
        self,
        store_failure: Callable[[], str] = str,
        awaits_assignment: Callable[[], bool] = lambda: False,
        missing_resource: Callable[[], str] = str,
    ) -> None:
        self._store_failure = store_failure
        """Returns why the store could not be read last; or ''."""
        self.awaits_assignment = awaits_assignment
        """Returns True while the group has not yet assigned this model's topic."""
        self._missing_resource = missing_resource
        """Returns what somebody must make before this process can learn the model, such as its topic; or ''."""
        self.stopped: str | None = None
        """Why learning stopped, here or in the process that saved the newest snapshot."""
        self.unusable: str | None = None
        """Why the newest snapshot cannot answer: it is damaged, or another release's."""
        self.waits: str | None = None
        """Why learning waits or is in an odd order, while it is."""
        self.set_aside: dict[str, dict[str, str]] = {}
        """The last record of each reason that this process set aside: detail, topic, partition, offset."""

    @property
    def why_not(self) -> str:
        """Why the model cannot answer, while it cannot."""
        if why := self.stopped or self.unusable:
            return f"the model cannot answer: {why}"
        if failure := self._store_failure():
            return f"no snapshot could be read yet: {failure}"
        missing = self._missing_resource()
        return f"the model has no snapshot yet{': ' * bool(missing)}{missing}"
