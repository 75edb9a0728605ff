"""The schedule pages in a thread of the test process, on SQLite."""

from contextlib import ExitStack

import pytest

from tests.support.flower_pages import flower_pages


@pytest.fixture
def serve(dynbeat):
    """Return a function that serves the pages with options of Flower."""
    with ExitStack() as stack:

        def served(**options):
            return stack.enter_context(flower_pages(dynbeat, **options))

        yield served


@pytest.fixture
def pages(serve):
    """Return a client of the user alice, who may change schedules."""
    client = serve(basic_auth=["alice:secret"])
    client.user, client.password = "alice", "secret"
    return client
