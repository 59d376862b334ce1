"""`perceptron amend`: change the settings of a stored model."""

import asyncio
import time

import typer

from service.errors import ConfigurationError, DataError
from service.settings.load import Settings
from service.snapshots.keeper import Keeper
from service.snapshots.rollback import TRIES
from service.tools.stored.newest_snapshot import not_stored


class _Clock:
    """Time in a command, where no requests wait for a turn of the event loop."""

    now, time, sleep = staticmethod(time.monotonic), staticmethod(time.time), staticmethod(asyncio.sleep)


async def amend_model(settings: Settings, name: str, yes: bool) -> None:
    """Save a model with the identity of its settings, if `yes`, as the child of its newest snapshot.

    Raises ConfigurationError if a setting differs that cannot be amended, and DataError if a learner saves in between,
    TRIES times.
    """
    model, keep = settings.model_settings(name), settings.snapshots.keep
    async with settings.redis.store() as store:
        keeper = Keeper(name, store, _Clock(), asyncio.to_thread, model.options(), keep_every=0.0, keep=keep)
        for _ in range(TRIES):
            learner = await keeper.restore()
            if learner is None or keeper.head is None:
                raise await not_stored(store, name)
            changes = "; ".join(model.identity().differences(learner.identity))
            if not changes:
                typer.echo(f"model {name} has these settings already: there is nothing to amend")
                return
            learner.amend(model.identity())
            if not yes:
                raise ConfigurationError(f"this changes model {name} from now on ({changes}): say --yes to do it")
            if saved := await keeper.save(learner, {}, keeper.head.source):
                following = ", ".join(f"{partition}:{offset}" for partition, offset in learner.next.items())
                typer.echo(
                    f"model {name} is amended ({changes}), which is version {saved.head.version} now: learning goes on "
                    f"at {following}; restart each learner that has the old settings"
                )
                return
    raise DataError(f"model {name} moved on meanwhile, {TRIES} times: try again")
