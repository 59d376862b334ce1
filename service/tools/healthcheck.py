"""`perceptron healthcheck`: whether a running service is alive, or ready."""

import typer

from service.errors import DependencyError, PerceptronError
from service.settings.load import Settings
from service.tools.client import request_json, service_url, trusted_context


def check_health(settings: Settings, url: str | None, ready: bool) -> None:
    """Ask a service whether it is alive, or ready; raises PerceptronError, which is exit 1, when it is not."""
    try:
        request_json(f"{service_url(settings, url)}/{'readyz' if ready else 'livez'}", trusted_context(settings, url))
    except DependencyError as error:
        raise PerceptronError(str(error)) from None
    typer.echo("ready" if ready else "alive")
