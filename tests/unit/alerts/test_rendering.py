"""The text of a message: short, and safe with any name or error."""

import json
import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st
from jinja2 import UndefinedError

from celery_dynbeat.alerts.content import Cause, Content, Example, Group
from celery_dynbeat.alerts.deliver import render, shown
from celery_dynbeat.common.alert_kinds import AlertKind, Severity, Unsent

RUN_ID = "01a1ffea-b135-76a3-b9c5-3667a500c655"


def example(**changes):
    columns = {
        "owner": "user:42",
        "name": "digest",
        "task": "mail.send",
        "since": "2026-11-22T09:00:00Z",
        "ended": None,
        "run_id": RUN_ID,
        "value": None,
        "facts": 1,
        "detail": "ConnectionError: mail.example does not answer",
    }
    return Example(**{**columns, **changes})


def content(*groups, severity=Severity.ERROR):
    return Content(severity=severity, groups=groups)


def group(kind=AlertKind.FAILED, count=1, state=Unsent.OPENED, **changes):
    examples = [example(**changes) for _ in range(min(count, 10))]
    cause = Cause(task="mail.send", count=count, examples=examples)
    still_open = count if examples[0].still else 0
    return Group(kind=kind, state=state, count=count, still_open=still_open, causes=[cause])


def test_the_message_about_one_schedule_names_it_with_its_error():
    title, body = render(content(group(facts=3)), application="shop")

    assert title == "[shop] digest of user:42 failed"
    assert body == (
        "- digest of user:42, task mail.send\n"
        "  failed at 2026-11-22T09:00:00Z, 3 times\n"
        "  ConnectionError: mail.example does not answer\n"
        f"  run {RUN_ID}\n"
        "  celery -A shop dynbeat explain --owner=user:42 -- digest"
    )


def test_a_message_has_the_page_of_the_run_and_a_command_that_a_shell_reads():
    _, body = render(content(group(name="it's; rm -rf")), flower_url="https://f.example/flower")

    assert f"\n  https://f.example/flower/dynbeat/run/{RUN_ID}\n" in body
    command = body.splitlines()[-1].strip()
    assert shlex.split(command)[-2:] == ["--", "it's; rm -rf"]


def test_the_message_about_many_schedules_counts_them():
    title, body = render(content(group(count=5_000), group(AlertKind.QUARANTINED, 2)))

    assert title == "5,000 schedules failed, 2 schedules cannot run"
    assert body.count("- digest of user:42") == 12
    error = "ConnectionError: mail.example does not answer"
    assert f"5,000 schedules failed:\n5,000 of task mail.send: {error}. Examples:\n" in body
    assert f"2 schedules cannot run:\n2 of task mail.send: {error}:\n" in body
    # Once for each cause.
    assert body.count(error) == body.count("dynbeat explain") == 2


@pytest.mark.parametrize(
    ("kind", "value", "expected"),
    [
        (AlertKind.LATE, 95.0, "started late by 95 s at"),
        (AlertKind.SLOW, 7200.0, "ran slowly for 2 h at"),
        (AlertKind.SILENT, 180.0, "did not run for 3 min at"),
        (AlertKind.FREQUENT, 1200.0, "ran too often (1,200 runs) at"),
        (AlertKind.LOST, None, "lost a run at"),
        (AlertKind.PAUSED, None, "was paused at"),
        (AlertKind.BEATS_MISSING, 1.0, "beats are missing since"),
        (AlertKind.QUARANTINED, None, "cannot run since"),
    ],
)
def test_each_kind_says_how_bad_it_is(kind, value, expected):
    _, body = render(content(group(kind, value=value)))

    assert expected in body


def test_a_recovery_says_from_what_and_when():
    recovered = group(state=Unsent.RECOVERED, ended="2026-11-22T10:00:00Z", detail=None)
    title, body = render(content(recovered, severity=Severity.INFO))

    assert title == "digest of user:42 no longer fails"
    times = "2026-11-22T10:00:00Z; alert since 2026-11-22T09:00:00Z"
    assert f"no longer fails since {times}\n" in body


def test_a_recovery_names_what_still_fails():
    ended = {"state": Unsent.RECOVERED, "ended": "2026-11-22T10:00:00Z", "still": ["failed"]}
    one = group(AlertKind.LATE, **ended)
    title, body = render(content(one, severity=Severity.INFO))
    many, _ = render(content(group(AlertKind.LATE, 3, **ended), severity=Severity.INFO))

    assert title == "digest of user:42 is no longer late, but still fails"
    assert "it still fails" in body
    assert many == "3 schedules are no longer late (3 of them with other open alerts)"


@pytest.mark.parametrize(
    ("progress", "expected"),
    [
        ("not_sent", "is not sent yet, late by 95 s"),
        ("sent", "is sent and not started yet, late by 95 s"),
        ("sent_late", "was sent late by 95 s"),
        ("started", "started late by 95 s"),
    ],
)
def test_a_late_run_started_only_if_it_did(progress, expected):
    title, body = render(content(group(AlertKind.LATE, value=95.0, progress=progress)))

    assert title == "digest of user:42 is late"
    assert expected in body


def test_an_alert_about_nodes_names_no_schedule():
    nodes = group(AlertKind.WORKERS_MISSING, owner="", name="", task=None, run_id=None)
    title, body = render(content(nodes), application="shop", flower_url="https://f.example")

    assert title == "[shop] workers are missing"
    assert body == (
        "- workers are missing since 2026-11-22T09:00:00Z\n"
        "  ConnectionError: mail.example does not answer\n"
        "  https://f.example/dynbeat/nodes\n"
        "  celery -A shop dynbeat status"
    )


def test_the_application_itself_is_no_owner():
    title, body = render(content(group(owner="")))

    assert title == "digest failed"
    assert body.startswith("- digest, task mail.send\n")


@given(st.text(), st.text(), st.text())
def test_no_text_of_a_user_adds_a_line_or_a_control_character(owner, name, detail):
    title, body = render(content(group(owner=owner, name=name, detail=detail)))

    assert "\n" not in title
    assert len(body.splitlines()) <= 5
    assert not any(ord(character) < 32 and character != "\n" for character in body)


@pytest.mark.parametrize(
    "text",
    [
        "@channel",
        "a@everyone",
        "<!here>",
        "<@U123>",
        "*bold*",
        "[a](http://x)",
        "`code`",
        "https://evil",
    ],
)
def test_a_text_of_a_user_mentions_no_person_and_is_no_markup(text):
    marked = shown(text)

    assert text not in marked
    assert marked.replace("\u2060", "") == text


@pytest.mark.parametrize("text", ["send_mail", "celerybeat@host:9", "a_b@c.example", "items[0]"])
def test_a_word_stays_as_it_is(text):
    assert shown(text) == text


def test_a_long_error_is_shortened():
    assert len(shown("x" * 10_000)) == 300


def test_a_template_of_the_operator_replaces_ours(tmp_path):
    (tmp_path / "title.txt.j2").write_text("{{ content.total }} alerts, {{ content.severity }}")

    title, body = render(content(group(count=7)), folder=str(tmp_path))

    assert title == "7 alerts, error"
    assert body.startswith("7 schedules failed:")


def test_a_template_with_an_unknown_name_raises(tmp_path):
    (tmp_path / "body.txt.j2").write_text("{{ contents }}")

    with pytest.raises(UndefinedError, match="contents"):
        render(content(group()), folder=str(tmp_path))


def test_content_survives_json():
    before = content(group(count=3, value=2.5), group(AlertKind.LATE))

    after = Content.from_json(json.loads(json.dumps(before.to_json())))

    assert json.dumps(after.to_json()) == json.dumps(before.to_json())
    assert isinstance(after.groups[0].kind, AlertKind)
