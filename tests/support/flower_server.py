"""A real Flower process on an installation of the tests."""

import sys
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from pathlib import Path
from typing import ClassVar

from tests.support.pinned_packages import package_folder
from tests.support.processes import REPOSITORY
from tests.support.servers.base import Server
from tests.support.sites import Site

INSTALLED = "installed"
#: The supported versions: the two oldest, and the one that the tests install.
VERSIONS = ("2.0.1", "2.1.0", INSTALLED)
ANSWERS_WITHIN = 2


class FlowerServer(Server):
    """Flower with the pages of the package.

    ``basic_auth`` is ``"user:password"``. ``url_prefix`` has no slashes. ``version`` is a version
    of the package index, or the installed one.
    """

    name: ClassVar[str] = "flower"
    stops_within: ClassVar[float] = 5

    def __init__(
        self,
        site: Site,
        *arguments: str,
        basic_auth: str | None = None,
        url_prefix: str | None = None,
        version: str = INSTALLED,
    ) -> None:
        self.site = site
        self.prefix = f"/{url_prefix}" if url_prefix else ""
        self._package = None if version == INSTALLED else package_folder("flower", version)
        self._arguments = [*arguments, *_options(basic_auth, url_prefix)]
        super().__init__()

    @property
    def url(self) -> str:
        """The URL of the first page, with the prefix and without a slash at the end."""
        return f"http://127.0.0.1:{self.port}{self.prefix}"

    def find_programs(self) -> None:
        """Find nothing: Flower is a Python package of the development environment."""

    def command(self) -> Sequence[str | Path]:
        """Return the command that a user types, with a port of its own."""
        place = (f"--port={self.port}", "--address=127.0.0.1")
        celery = (sys.executable, "-m", "celery", "-A", "tests.support.proj")
        return [*celery, "dynbeat", "flower", *place, *self._arguments]

    def environment(self) -> Mapping[str, str]:
        """Return the configuration of the installation, and the packages of the version."""
        path = ":".join(str(folder) for folder in (self._package, REPOSITORY) if folder)
        return {**self.site.environment(), "PYTHONPATH": path, "PYTHONUNBUFFERED": "1"}

    def answers(self) -> bool:
        """Return whether Flower is ready. This page needs no login."""
        try:
            # A literal scheme and address: only the Flower of this test is queried.
            page = urllib.request.urlopen(f"{self.url}/healthcheck", timeout=ANSWERS_WITHIN)  # noqa: S310
            with page:
                return bool(page.status == HTTPStatus.OK)
        except (urllib.error.URLError, OSError):
            return False

    def text(self) -> str:
        """Return the log so far."""
        return self.log.read_text(errors="replace")


def _options(basic_auth: str | None, url_prefix: str | None) -> Sequence[str]:
    options = {
        "basic_auth": basic_auth,
        "url_prefix": url_prefix,
    }
    return [f"--{name}={value}" for name, value in options.items() if value]
