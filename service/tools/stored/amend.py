"""`perceptron amend` and `perceptron join`: change a stored model."""

import asyncio
import time
from collections.abc import Callable

import typer

from service.errors import ConfigurationError, DataError
from service.learning.best import MAX_COMPARED
from service.learning.learner import Learner
from service.settings.load import Settings
from service.snapshots.keeper import Keeper
from service.snapshots.rollback import TRIES
from service.tools.stored.newest_snapshot import not_stored


class _Clock:
    """Time in a command, where no requests wait for a turn of the event loop."""

    now, time, sleep = staticmethod(time.monotonic), staticmethod(time.time), staticmethod(asyncio.sleep)


async def amend_model(settings: Settings, name: str, yes: bool) -> None:
    """Give a model the identity of its settings, if `yes`; raises ConfigurationError if that cannot be amended."""
    identity = settings.model_settings(name).identity()

    def amend(learner: Learner) -> str:
        if not (changes := "; ".join(identity.differences(learner.identity))):
            return ""
        learner.amend(identity)
        if not yes:
            raise ConfigurationError(f"this changes model {name} from now on ({changes}): say --yes to do it")
        return f"is amended ({changes}); restart each learner that has the old settings"

    await _change(settings, name, amend, "has these settings already: there is nothing to amend")


async def resume_closing(settings: Settings, name: str, _: bool) -> None:
    """Let windows close without the partitions whose labels are silent, until their next label."""
    join = settings.model_settings(name).join
    if join is None or join.max_silence is None:
        raise ConfigurationError(f"model {name} has no join with max_silence: its windows do not wait for labels")

    def resume(learner: Learner) -> str:
        silent = ", ".join(map(str, learner.join.resume())) if learner.join else ""
        return silent and f"goes on without labels of partition {silent}, until their next one"

    await _change(settings, name, resume, "has no silent partition of labels")


async def drop_held(settings: Settings, name: str, yes: bool) -> None:
    """Forget all events that wait for their labels, if `yes`: they are never learned."""

    def drop(learner: Learner) -> str:
        if learner.join is None:
            raise ConfigurationError(f"model {name} has no join")
        held = learner.join.drop(learner.next)
        if not yes:
            raise ConfigurationError(f"this forgets {held:,} events of model {name} that wait: say --yes to do it")
        learner.main.counts.join = learner.join.counts
        return f"has forgotten {held:,} events that waited for their labels"

    await _change(settings, name, drop)


async def _change(settings: Settings, name: str, change: Callable[[Learner], str], no_change: str = "") -> None:
    """Save a model after `change`, as the child of its newest snapshot, and keep this version; print the outcome.

    `change` returns what happened to the model. If that is empty, nothing is saved, and `no_change` is printed. Raises
    DataError if a learner saves in between, TRIES times.
    """
    options, keep = settings.model_settings(name).options(), settings.snapshots.keep
    options = options._replace(window=max(options.window, MAX_COMPARED))  # all flags that `best` compares stay stored
    async with settings.redis.store() as store:
        keeper = Keeper(name, store, _Clock(), asyncio.to_thread, options, keep_every=0.0, keep=keep)
        for _ in range(TRIES):
            learner = await keeper.restore()
            if learner is None or keeper.head is None:
                raise await not_stored(store, name)
            if not (outcome := change(learner)):
                return typer.echo(f"model {name} {no_change}")
            if saved := await keeper.save(learner, {}, keeper.head.source):
                following = ", ".join(f"{partition}:{offset}" for partition, offset in learner.next.items())
                return typer.echo(
                    f"model {name} {outcome}: this is version {saved.head.version} now, and learning goes on at "
                    f"{following}"
                )
    raise DataError(f"model {name} moved on meanwhile, {TRIES} times: try again")
