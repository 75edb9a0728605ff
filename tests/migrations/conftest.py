"""An empty database of each kind, with the package's own engine."""

import pytest

from celery_dynbeat.db.engine import Database


@pytest.fixture
def database(database_url):
    made = Database(database_url)
    yield made
    made.dispose()
