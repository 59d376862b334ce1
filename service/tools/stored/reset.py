"""`perceptron reset`: forget a model."""

import msgspec
import typer

from service.errors import ConfigurationError, DataError
from service.settings.load import Settings
from service.snapshots.ports import before_reset
from service.snapshots.rollback import current_head
from service.tools.stored.newest_snapshot import not_stored


async def reset_model(settings: Settings, name: str, yes: bool, keep_answering: bool) -> None:
    """Delete a model's snapshot and kept versions, if `yes`.

    If settings are given that differ from those of the stored model, only a learner that has them begins it again.
    With `keep_answering` the last version answers until the model has been learned up to the end of its log.
    """
    identity = settings.model_settings(name).identity()
    async with settings.redis.store() as store:
        (digest,), aliases = await store.look([name])
        alias = aliases.get(name)
        # After a reset under other settings there is no snapshot, but an identity, which can be reset too.
        if digest == "" and ((keep_answering and not alias) or not await store.required_identity(name)):
            raise await not_stored(store, name)
        if not yes:
            raise ConfigurationError(f"this forgets everything that model {name} has learned: say --yes to do it")
        if keep_answering and alias not in {None, before_reset(name)}:
            raise ConfigurationError(f"--keep-answering: model {alias} answers for {name}, whatever {name} has learned")
        differences = ""
        try:
            if (stored := await current_head(store, name)) and settings.mentions(name):
                differences = "; ".join(identity.differences(stored[0].identity))
        except DataError:  # a damaged model can be forgotten
            if keep_answering:
                raise
        if alias == before_reset(name) and not keep_answering:
            await store.set_alias(name, name)
        await store.reset(name, msgspec.json.encode(identity) if differences else b"", keep_answering and not alias)
    typer.echo(
        f"model {name} is forgotten: a running learner learns it again from the start of its topic, "
        "and a learner that starts later begins where --start-at says"
    )
    if differences:
        typer.echo(f"only a learner with these settings begins it again: {differences}")
    if keep_answering:
        typer.echo("its last version answers until it has been learned up to the end")
