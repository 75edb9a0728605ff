"""What a publisher refuses before it speaks to any broker."""

import pytest
from celery import Celery

from celery_dynbeat import DispatchError
from celery_dynbeat.publish import Publisher


def test_a_broker_without_broadcasts_cannot_end_runs_and_says_so():
    app = Celery(broker="sqla+sqlite:///:memory:", set_as_current=False)

    with pytest.raises(DispatchError, match="cancel_previous"):
        Publisher(app).terminate(["019e0000-0000-7000-8000-000000000001"])
