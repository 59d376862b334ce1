"""`perceptron inspect` and `perceptron reset`: a stored model, looked at and forgotten."""

import asyncio
from typing import Any

import msgspec
import typer
from rich.console import Console
from rich.table import Table

from service.errors import ConfigurationError, DataError
from service.serving.app import describe
from service.serving.models import Answering, Model
from service.settings import Settings
from service.snapshots.keeper import fetch
from service.snapshots.store import RedisStore

TOP = 10


def inspect_model(settings: Settings, name: str, *, as_json: bool) -> None:
    """Print a model's newest snapshot."""
    answering = asyncio.run(_fetch(settings, name))
    columns, w = answering.learner.columns, answering.learner.weights
    largest = answering.learner.largest(TOP)
    weights: list[dict[str, Any]] = [{"name": columns.name_of(c), "weight": float(w[c])} for c in largest]
    about = describe(Model(name), answering)
    if as_json:
        typer.echo(msgspec.json.encode({**about, "bias": float(w[0]), "largest_weights": weights}))
        return
    console = Console()
    table = Table(show_header=False, box=None)
    identity = about["identity"]
    accuracy = ", ".join(f"{k} {v:.4f}" for k, v in about["accuracy"].items() if v is not None) or "no events yet"
    rows = {
        "model": name,
        "rule": f"{identity.rule}, eta {identity.eta:g}, features {identity.features}",
        "version": f"{about['version']}, saved {about['saved_at']}",
        "events": f"{about['events']:,}",
        "mistakes": f"{about['mistakes']:,} ({about['wrong_predictions']:,} wrong predictions)",
        "accuracy": accuracy,
        "rejected": ", ".join(f"{k} {v:,}" for k, v in sorted(about["rejected"].items())) or "none",
        "covered": ", ".join(
            f"partition {p}: " + " ".join(f"{a:,} to {b:,}" for a, b in ranges)
            for p, ranges in about["covered"].items()
        ),
        "columns": f"{about['columns']:,}",
        "squared norm": f"{about['squared_norm']:g} of at most {about['squared_norm_limit']:g}",
        "state digest": about["state_digest"],
    }
    for key, value in rows.items():
        table.add_row(f"[bold]{key}", str(value))
    console.print(table)
    weights_table = Table("name", "weight", box=None, title=f"bias {w[0]:g}; largest weights", title_justify="left")
    for row in weights:
        weights_table.add_row(row["name"], f"{row['weight']:g}")
    console.print(weights_table, markup=False) if weights else None


async def _fetch(settings: Settings, name: str) -> Answering:
    store = RedisStore(settings.redis.url)
    try:
        found = await fetch(store, name, asyncio.to_thread, settings.of(name).options())
        if found is None:
            known = ", ".join(await store.models()) or "none"
            raise DataError(f"model {name} has no snapshot in Redis at {store.address}; it has: {known}")
        return Answering(found.learner, found.head, found.digest)
    finally:
        await store.close()


def reset_model(settings: Settings, name: str, yes: bool) -> None:
    """Delete a model's snapshot and kept versions, if `yes`."""
    asyncio.run(_reset(settings, name, yes))


async def _reset(settings: Settings, name: str, yes: bool) -> None:
    store = RedisStore(settings.redis.url)
    try:
        if not await store.digest(name):
            raise DataError(f"model {name} has no snapshot in Redis at {store.address}: there is nothing to reset")
        if not yes:
            raise ConfigurationError(f"this forgets everything that model {name} has learned: say --yes to do it")
        await store.delete(name)
        typer.echo(
            f"model {name} is forgotten: a running learner begins it anew at the log's start, "
            "one that is started where --start-at says"
        )
    finally:
        await store.close()
