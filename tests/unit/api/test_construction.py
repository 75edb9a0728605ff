"""``Dynbeat`` refuses wrong arguments when it is created."""

import subprocess
import sys

import pytest
from celery import Celery

from celery_dynbeat import ConfigurationError, Dynbeat


def test_the_application_is_a_celery_application():
    with pytest.raises(ConfigurationError, match=r"app = 'proj': must be the Celery application"):
        Dynbeat("proj")


def test_current_session_is_a_function():
    app = Celery("proj", set_as_current=False)

    with pytest.raises(ConfigurationError, match=r"current_session = 'default': must be a functi"):
        Dynbeat(app, current_session="default")


def test_current_session_returns_a_session():
    app = Celery("proj", set_as_current=False)
    app.conf.dynbeat_database_url = "sqlite://"
    dynbeat = Dynbeat(app, current_session=lambda: 5)

    with pytest.raises(ConfigurationError, match=r"current_session returned 5: must be a sqlal"):
        dynbeat.schedules.list()


def test_asynchronous_calls_need_no_greenlet():
    code = (
        "import asyncio, sys; sys.modules['greenlet'] = None\n"
        "from celery import Celery\n"
        "from celery_dynbeat import AsyncDynbeat\n"
        "app = Celery('p', broker='memory://')\n"
        "app.conf.update(dynbeat_database_url='sqlite://')\n"
        "print(asyncio.run(AsyncDynbeat(app).schedules.count()).count)"
    )
    command = [sys.executable, "-c", code]
    ended = subprocess.run(command, capture_output=True, text=True, check=False)

    assert (ended.stdout, ended.stderr) == ("0\n", "")
