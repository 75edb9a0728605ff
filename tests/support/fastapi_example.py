"""The users of the FastAPI example."""

import re
from collections.abc import Iterator
from contextlib import contextmanager

import httpx

from tests.support.example_sites import PASSWORDS, Site

_TOKEN = re.compile(r'name="csrf-token" content="([^"]+)"')


@contextmanager
def user_of(site: Site, name: str) -> Iterator[httpx.Client]:
    """Yield a client with the session of the user, which sends its token."""
    with site.client() as client:
        page = client.post("/login", data={"name": name, "password": PASSWORDS[name]})
        found = _TOKEN.search(page.text)
        assert found, page.text
        client.headers["X-CSRF-Token"] = found[1]
        yield client
