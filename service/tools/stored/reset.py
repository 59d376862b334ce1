"""`perceptron reset`: forget a model."""

import typer

from service.errors import ConfigurationError, DataError
from service.settings.load import Settings


async def reset_model(settings: Settings, name: str, yes: bool) -> None:
    """Delete a model's snapshot and kept versions, if `yes`."""
    async with settings.redis.store() as store:
        if not await store.exists(name):
            raise DataError(f"model {name} has no snapshot in Redis at {store.address}: there is nothing to reset")
        if not yes:
            raise ConfigurationError(f"this forgets everything that model {name} has learned: say --yes to do it")
        await store.delete(name)
    typer.echo(
        f"model {name} is forgotten: a running learner learns it again from the start of its topic, "
        "and a learner that starts later begins where --start-at says"
    )
