"""A Prometheus server that scrapes the endpoints of a test."""

import json
from collections.abc import Sequence
from http import HTTPStatus
from http.client import HTTPConnection, HTTPException
from pathlib import Path
from typing import ClassVar
from urllib.parse import urlencode

from tests.support.servers.base import Server
from tests.support.servers.machine import find_program


class PrometheusServer(Server):
    """A server that scrapes ``targets`` (job -> host:port) each second."""

    name: ClassVar[str] = "prometheus"
    targets: dict[str, str]

    @property
    def url(self) -> str:
        """The URL of the server."""
        return f"http://127.0.0.1:{self.port}"

    def find_programs(self) -> None:
        """Find prometheus."""
        self._prometheus = find_program("prometheus", package="prometheus")

    def configure(self) -> None:
        """Write the configuration. JSON is YAML."""
        jobs = [
            {"job_name": job, "static_configs": [{"targets": [target]}]}
            for job, target in self.targets.items()
        ]
        settings = {"global": {"scrape_interval": "1s"}, "scrape_configs": jobs}
        (self.folder / "prometheus.yml").write_text(json.dumps(settings))

    def command(self) -> Sequence[str | Path]:
        """Return prometheus in the foreground."""
        return [
            self._prometheus,
            f"--config.file={self.folder / 'prometheus.yml'}",
            f"--storage.tsdb.path={self.folder / 'data'}",
            f"--web.listen-address=127.0.0.1:{self.port}",
            "--log.level=warn",
        ]

    def answers(self) -> bool:
        """Return whether the server is ready for queries."""
        try:
            self._get("/-/ready")
        except (OSError, HTTPException):
            return False
        return True

    def query(self, expression: str) -> dict[str, float]:
        """Return the value of each series of an expression, by the values of its labels."""
        found = json.loads(self._get(f"/api/v1/query?{urlencode({'query': expression})}"))
        return {
            ",".join(each["metric"][name] for name in sorted(each["metric"])): float(
                each["value"][1]
            )
            for each in found["data"]["result"]
        }

    def _get(self, path: str) -> bytes:
        connection = HTTPConnection("127.0.0.1", self.port, timeout=10)
        try:
            connection.request("GET", path)
            answer = connection.getresponse()
            if answer.status != HTTPStatus.OK:
                raise HTTPException(answer.reason)
            return answer.read()
        finally:
            connection.close()
