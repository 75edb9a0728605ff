"""The names of tables belong to the process. A test that chooses others restores them."""

import pytest

from celery_dynbeat.db import models, names
from celery_dynbeat.db.names import TableNames


@pytest.fixture
def other_names(monkeypatch):
    """Return a function that chooses names for this process until the end of the test."""
    monkeypatch.setattr(names, "_chosen", None)
    yield lambda **given: models.use_names(TableNames(**given))
    monkeypatch.setattr(names, "_chosen", None)
    models.use_names(TableNames())
