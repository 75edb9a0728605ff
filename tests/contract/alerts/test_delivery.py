"""Deliveries to real servers, in a child process."""

import logging
import os
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta

import pytest

from celery_dynbeat.alerts.content import Content, Example, only_example
from celery_dynbeat.alerts.deliver import NICENESS, without_secrets
from celery_dynbeat.alerts.delivery import DeliveryError, deliver
from celery_dynbeat.common.alert_kinds import AlertKind, Severity, Unsent
from tests.support.sinks import (
    HttpSink,
    MailSink,
    hanging_server,
    listening,
    mail_url,
    seconds_until_closed,
)

TIMEOUT = timedelta(seconds=3)
SECRETS = ("hunter2-secret", "token-4711-secret")
ALERT = Content(
    severity=Severity.ERROR,
    groups=[
        only_example(
            AlertKind.FAILED,
            Unsent.OPENED,
            Example(
                owner="user:42",
                name="dígest",
                task="mail.send",
                since="2026-11-22T09:00:00Z",
                ended=None,
                run_id=None,
                value=None,
                facts=1,
                detail="KeyError: 'x'",
            ),
        )
    ],
)


def send(*urls, templates=None):
    return deliver(
        ALERT,
        urls,
        application="shop",
        flower_url="https://flower.example.com",
        templates=templates,
        timeout=TIMEOUT,
    )


@pytest.fixture
def http_sink():
    with HttpSink().serving() as sink:
        yield sink


@pytest.fixture
def mail_sink():
    with MailSink().serving() as sink:
        yield sink


@pytest.mark.slow
def test_a_message_reaches_a_mail_server_and_a_webhook(http_sink, mail_sink):
    delivered = send(mail_sink.url, http_sink.url)

    assert list(delivered.errors) == [None, None]
    (mail,), (body,) = mail_sink.mails, http_sink.bodies
    assert mail["Subject"] == body["title"] == delivered.title == "[shop] dígest of user:42 failed"
    assert mail["To"] == "ops@example.com"
    assert "KeyError: 'x'" in body["message"]
    assert body["type"] == "failure"
    (cause,) = body["alert"]["groups"][0]["causes"]
    assert (cause["task"], cause["error"], cause["count"]) == ("mail.send", "KeyError: 'x'", 1)
    (shown,) = cause["examples"]
    assert (shown["owner"], shown["name"]) == ("user:42", "dígest")
    assert shown["urls"] == {
        "schedule": "https://flower.example.com/dynbeat/schedule?owner=user%3A42&name=d%C3%ADgest",
        "run": None,
        "explain": "celery -A shop dynbeat explain --owner=user:42 -- 'dígest'",
    }
    text = mail.get_body(("plain", "html")).get_content()
    assert "dígest of user:42" in text


@pytest.mark.slow
def test_each_url_has_its_own_result(http_sink):
    refusing = HttpSink()
    refusing.status = 403
    with refusing.serving(), hanging_server() as port:
        delivered = send(refusing.url, mail_url(port), http_sink.url, "nonsense://x")

    refused, hanging, accepted, unknown = delivered.errors
    assert "403" in refused
    assert hanging == "no answer in time"
    assert accepted is None
    assert "does not understand" in unknown
    assert len(http_sink.bodies) == 1


@pytest.mark.slow
def test_no_error_and_no_log_contains_a_part_of_the_url(caplog, capfd):
    caplog.set_level(logging.DEBUG)
    refusing = HttpSink()
    refusing.status = 401
    with refusing.serving():
        delivered = send(refusing.url, "slack://hunter2-secret/token-4711-secret/x")

    printed = f"{capfd.readouterr()} {caplog.text} {delivered.errors}"
    assert all(delivered.errors)
    assert not any(secret in printed for secret in SECRETS)


@pytest.mark.slow
def test_a_server_that_does_not_answer_costs_the_timeout():
    with listening() as server, ThreadPoolExecutor() as pool:
        # From the connection on: the child has a low priority, and its imports take long on a busy
        # machine.
        open_for = pool.submit(seconds_until_closed, server)
        delivered = send(mail_url(server.getsockname()[1]))

        assert list(delivered.errors) == ["no answer in time"]
        # Apprise itself would wait 15 s for each answer of a mail server.
        assert open_for.result(timeout=5) < 14


@pytest.mark.slow
def test_a_template_that_fails_sends_nothing(http_sink, tmp_path):
    (tmp_path / "title.txt.j2").write_text("{{ nothing.at.all }}")

    with pytest.raises(DeliveryError, match="the template failed: UndefinedError: 'nothing'"):
        send(http_sink.url, templates=str(tmp_path))
    assert http_sink.bodies == []


@pytest.mark.slow
def test_a_missing_package_is_named_with_the_extra(monkeypatch, tmp_path):
    (tmp_path / "jinja2.py").write_text("raise ModuleNotFoundError(\"No module named 'jinja2'\")")
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    with pytest.raises(DeliveryError, match=r"jinja2.*install celery-dynbeat\[alerts\]"):
        send("json://127.0.0.1")


def test_this_process_imports_neither_library():
    script = (
        "import sys, celery_dynbeat.alerts.messages;"
        "assert not {'apprise', 'jinja2'} & set(sys.modules)"
    )
    subprocess.run([sys.executable, "-c", script], check=True, timeout=60)


def test_a_short_password_is_removed_from_an_error_in_each_form():
    url = "mailto://bob:pw12@example.com/?key=ab1"
    text = "AUTH Ym9iOnB3MTI= refused for bob with pw12 and ab1"

    assert without_secrets(text, url) == "AUTH ***= refused for *** with *** and ***"


@pytest.mark.slow
def test_what_a_plug_in_prints_or_raises_is_no_part_of_an_error(monkeypatch, tmp_path):
    (tmp_path / "apprise.py").write_text(
        "print('token-4711-secret')\nraise ValueError('token-4711-secret')"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert list(send("json://127.0.0.1/token-4711-secret").errors) == ["ValueError"]


@pytest.mark.slow
def test_a_delivery_has_a_lower_priority_than_beat(monkeypatch, tmp_path):
    file = tmp_path / "niceness"
    (tmp_path / "apprise.py").write_text(
        f"import os\nopen({str(file)!r}, 'w').write(str(os.nice(0)))\nraise ValueError"
    )
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    send("json://127.0.0.1")

    assert int(file.read_text()) == min(os.nice(0) + NICENESS, 19)


@pytest.mark.parametrize(
    "text",
    [
        "login of user with hunter2-secret refused",
        "POST /token-4711-secret/x",
        "hunter2%2Dsecret",
        "HUNTER2-SECRET",
    ],
)
def test_parts_of_the_url_are_removed_from_an_error(text):
    url = "json://user:hunter2%2Dsecret@example.com/token-4711-secret"

    assert "secret" not in without_secrets(text, url).lower()


STUB = """
import time
from types import SimpleNamespace

NotifyFormat = SimpleNamespace(TEXT="text")


class Apprise:
    @staticmethod
    def instantiate(url):
        return SimpleNamespace(url=url)

    def add(self, service):
        self.url = service.url

    def notify(self, **_):
        if self.url == "hang://x":
            time.sleep(600)
        return SimpleNamespace(results=[True])
"""


@pytest.mark.slow
def test_a_plug_in_that_ignores_the_time_limit_hides_no_other_result(monkeypatch, tmp_path):
    (tmp_path / "apprise.py").write_text(STUB)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert list(send("hang://x", "ok://x").errors) == ["no answer in time", None]


@pytest.mark.slow
def test_a_delivery_that_is_killed_keeps_the_results_until_then(monkeypatch, tmp_path):
    # The second result comes after the line of the first one, and ends the process.
    ended = """
import json, os, threading
printed = threading.Event()
dumps = json.dumps

def spy(line):
    if line.get("url") == 0:
        printed.set()
    elif line.get("url") == 1:
        os.kill(os.getpid(), 9)
    return dumps(line)

json.dumps = spy
"""
    stub = STUB.replace("time.sleep(600)", "printed.wait()") + ended
    (tmp_path / "apprise.py").write_text(stub)
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))

    assert list(send("ok://x", "hang://x").errors) == [None, "exit status -9"]
