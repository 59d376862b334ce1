"""`perceptron promote`: let a model answer under another name."""

import typer

from service.errors import ConfigurationError
from service.settings.load import Settings
from service.settings.model import TOPIC_NAME, is_topic
from service.tools.stored.newest_snapshot import not_stored


async def promote_model(settings: Settings, name: str, alias: str) -> None:
    """Store an alias of a model, or remove it if both names are equal. Running services use it within two seconds."""
    if not is_topic(alias):
        raise ConfigurationError(f"--as: '{alias}' cannot be a model's name: it is not a {TOPIC_NAME}")
    async with settings.redis.store() as store:
        (digest,), aliases = await store.look([name])
        if name != alias and name in aliases:
            raise ConfigurationError(f"{name} is an alias of model {aliases[name]}: promote that model")
        if name != alias and digest == "":
            raise await not_stored(store, name)
        await store.set_alias(alias, name)
    typer.echo(f"model {name} answers for {alias} now" if name != alias else f"{name} is no alias any more")
