"""A real Prometheus that scrapes services, with a client, for the tests of the dashboard and of the alerts."""

import subprocess
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx
import yaml

from service.embedded import servers
from tests.conftest import Running, program, wait


class Prometheus:
    """A client of a running Prometheus."""

    since = 0.0
    """The start of the time range of queries, in seconds since 1970, if a test sets it."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http

    def ready(self) -> bool:
        try:
            return self._http.get("/-/ready").status_code == 200
        except httpx.TransportError:
            return False

    def ask(self, path: str, **parameters: str | float) -> Any:
        body = self._http.get(f"/api/v1{path}", params=parameters).json()
        assert body["status"] == "success", (parameters, body)
        assert "warnings" not in body, (parameters, body)
        return body["data"]

    def value(self, query: str) -> float | None:
        """The current value of a series."""
        samples = self.ask("/query", query=query)["result"]
        return float(samples[0]["value"][1]) if samples else None


@contextmanager
def scraping(
    folder: Path, services: Iterable[Running], rules: str = "", every: str = "1s", lookback: str = "5m"
) -> Iterator[Prometheus]:
    """Run a Prometheus that scrapes these services and evaluates rules, both at the interval `every`."""
    address = f"127.0.0.1:{servers.free_port()}"
    config, log = folder / "prometheus.yml", folder / "prometheus.log"
    targets = [{"targets": [f"127.0.0.1:{service.port}" for service in services]}]
    intervals = {"scrape_interval": every, "scrape_timeout": every, "evaluation_interval": every}
    jobs = [{"job_name": "perceptron", "static_configs": targets}]
    (folder / "rules.yml").write_text(rules)
    config.write_text(yaml.safe_dump({"global": intervals, "rule_files": ["rules.yml"], "scrape_configs": jobs}))
    command = [program("prometheus"), f"--config.file={config}", f"--storage.tsdb.path={folder / 'tsdb'}"]
    command += [f"--web.listen-address={address}", "--log.level=warn", f"--query.lookback-delta={lookback}"]
    with log.open("w") as out, httpx.Client(base_url=f"http://{address}", timeout=30) as http:
        prometheus = Prometheus(http)
        process = subprocess.Popen(command, stdout=out, stderr=out)
        try:
            wait(prometheus.ready, "Prometheus is ready")
            wait(lambda: prometheus.value("up"), "Prometheus has scraped a service")
            yield prometheus
        finally:
            process.terminate()
            process.wait(60)
