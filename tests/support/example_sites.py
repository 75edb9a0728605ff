"""An example with pages, started as a user starts it."""

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

EXAMPLES = Path(__file__).parents[2] / "examples"
PASSWORDS = {"alice": "wonderland", "bob": "builder", "root": "heron"}


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

    def rows(self, statement: str) -> list[Any]:
        """Return the rows of a query on the database of the example."""
        files = self._folder.glob("dynbeat-*/*.sqlite3")
        (file,) = (file for file in files if file.name != "broker.sqlite3")
        connection = sqlite3.connect(file, timeout=30)
        try:
            return connection.execute(statement).fetchall()
        finally:
            connection.close()


@contextmanager
def running_example(name: str, folder: Path) -> Iterator[Site]:
    """Yield the example of the folder ``name``, in processes that end with the block."""
    log = folder / "log"
    environment = {key: os.environ[key] for key in os.environ if not key.startswith("DYNBEAT_")}
    process = OwnedProcess(
        [sys.executable, EXAMPLES / name / "demo.py"],
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
