"""Deliveries to real servers."""

import logging
import sys
from datetime import timedelta
from logging.handlers import BufferingHandler

import pytest

from celery_dynbeat.alerts.digest import Digest
from celery_dynbeat.alerts.sending import NOT_INSTALLED, TIMED_OUT, deliver
from tests.support.sinks import HttpSink, hanging_server

# The plug-ins of Apprise import deprecated modules of Python.
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning")

MESSAGE = Digest(
    title="[shop] dígest of user:42 is failing",
    body="KeyError: 'x'",
    type="failure",
    fields={"application": "shop", "total": 1, "alerts": [{"kind": "failing"}]},
)
SECRETS = ("hunter2-secret", "token-4711-secret")


def send(url, *, timeout=timedelta(seconds=60)):
    return deliver(url, MESSAGE, timeout)


def test_a_message_reaches_a_webhook_with_its_fields():
    with HttpSink().serving() as sink:
        assert send(sink.url) is None

    (body,) = sink.bodies
    assert (body["title"], body["message"], body["type"]) == (
        MESSAGE.title,
        MESSAGE.body,
        "failure",
    )
    assert body["alert"] == MESSAGE.fields


@pytest.fixture
def log(caplog):
    """Return a handler of the root logger that keeps the records of all levels.

    Not that of ``caplog``, which pytest also adds to loggers that do not propagate.
    """
    handler = BufferingHandler(1_000)
    caplog.set_level(1)
    logging.getLogger().addHandler(handler)
    yield handler
    logging.getLogger().removeHandler(handler)


@pytest.mark.parametrize("status", [200, 401])
def test_no_error_no_output_and_no_log_record_contains_a_part_of_the_url(status, capfd, log):
    answering = HttpSink()
    answering.status = status
    with answering.serving():
        error = send(answering.url)
    logging.getLogger("urllib3.connectionpool").debug("of another thread")

    assert status == 200 or "401" in error
    messages = [record.getMessage() for record in log.buffer]
    captured = f"{error} {capfd.readouterr()} {messages}"
    assert not any(secret in captured for secret in SECRETS)
    assert "of another thread" in messages


def test_a_redirect_is_not_followed():
    with HttpSink().serving() as target, HttpSink().serving() as first:
        first.status, first.location = 307, f"http://127.0.0.1:{target.port}/internal"
        error = send(first.url)

    assert error is not None
    assert target.received == []


def test_a_server_that_does_not_answer_is_left_behind():
    with hanging_server() as port:
        assert send(f"json://127.0.0.1:{port}", timeout=timedelta(seconds=1)) == TIMED_OUT


def test_a_missing_package_is_named_with_the_extra(monkeypatch):
    monkeypatch.setitem(sys.modules, "apprise", None)

    assert send("json://127.0.0.1") == NOT_INSTALLED
