"""The names of tables belong to the process. A test that chooses others restores them."""

import pytest

from celery_dynbeat import db
from celery_dynbeat.db import TableNames, models


@pytest.fixture
def other_names(monkeypatch):
    """Return a function that chooses names for this process until the end of the test."""
    monkeypatch.setattr(db, "_chosen", None)
    yield lambda **given: models.use_names(TableNames(**given))
    monkeypatch.setattr(db, "_chosen", None)
    models.use_names(TableNames())
