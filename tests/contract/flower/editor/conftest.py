"""An owner in Seoul with a schedule."""

import pytest

from celery_dynbeat import Cron
from tests.support.editor_form import OWNER


@pytest.fixture
def mine(dynbeat):
    owner = dynbeat.schedules.for_owner(OWNER)
    owner.set_timezone("Asia/Seoul")
    return owner


@pytest.fixture
def digest(mine):
    return mine.create(
        "digest",
        task="mail.digest",
        trigger=Cron("0 9 * * mon-fri"),
        kwargs={"user_id": 42},
        options={"queue": "mail", "headers": {"a": "b"}},
        overlap="skip",
    )
