"""The FastAPI example, started as a user starts it, and its users."""

import os
import re
import sqlite3
import ssl
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from tests.support.servers.processes import OwnedProcess
from tests.support.waiting import wait_until

DEMO = Path(__file__).parents[2] / "examples" / "fastapi" / "demo.py"
PASSWORDS = {"alice": "wonderland", "bob": "builder"}
_TOKEN = re.compile(r'name="csrf-token" content="([^"]+)"')


class Site:
    """The running example: its address, and the file of its database."""

    def __init__(self, url: str, folder: Path) -> None:
        self.url = url
        self._folder = folder

    def client(self) -> httpx.Client:
        """Return a client without a session."""
        # A context without certificates: httpx would load those of the system, also for plain HTTP.
        plain = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
        return httpx.Client(base_url=self.url, follow_redirects=True, timeout=30, verify=plain)

    @contextmanager
    def user(self, name: str) -> Iterator[httpx.Client]:
        """Yield a client with the session of the user, which sends its token."""
        with self.client() as client:
            page = client.post("/login", data={"name": name, "password": PASSWORDS[name]})
            found = _TOKEN.search(page.text)
            assert found, page.text
            client.headers["X-CSRF-Token"] = found[1]
            yield client

    def rows(self, statement: str) -> list[Any]:
        """Return the rows of a query on the database of the example."""
        (file,) = self._folder.glob("dynbeat-fastapi-*/app.sqlite3")
        connection = sqlite3.connect(file, timeout=30)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


@contextmanager
def running_example(folder: Path) -> Iterator[Site]:
    """Yield the example in processes of its own, and end it as Ctrl-C does."""
    log = folder / "log"
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("DYNBEAT_")}
    process = OwnedProcess(
        [sys.executable, DEMO],
        folder=folder,
        log=log,
        environment={**environment, "TMPDIR": str(folder), "C_FORCE_ROOT": "1"},
    )

    def address() -> re.Match[str] | None:
        assert process.exit_status is None, log.read_text()
        return re.search(r"(http://127\.0\.0\.1:\d+)/\n", log.read_text())

    try:
        found: Any = wait_until(address, within=60)
        yield Site(found[1], folder)
    finally:
        if process.exit_status is None:
            process.terminate(within=30)
