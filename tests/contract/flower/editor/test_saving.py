"""The form creates and updates a schedule, or names the field that is wrong."""

import json
from datetime import date, timedelta
from urllib.parse import urlencode

import pytest

from celery_dynbeat import Cron, Every, Once, Retry, RRule
from tests.support.applications import START, application
from tests.support.editor_form import (
    NEW,
    OWNER,
    PREVIEW,
    SAVE,
    edits,
    form_in,
    open_form,
    save,
)
from tests.support.flower_pages import flower_pages


def test_a_form_creates_a_schedule_with_each_field(pages, mine):
    form = form_in(pages.get(NEW))

    answer = save(
        pages,
        form,
        owner=OWNER,
        name="digest",
        task="mail.digest",
        rule="0 9 * * mon-fri",
        args="[1]",
        kwargs='{"a": "b"}',
        queue="mail",
        priority="5",
        description="two\r\nlines",
        tags="vip\r\n mail ",
        window="1m",
        max_runs="9",
        start_at="2026-11-30T09:00",
        end_at="2027-01-01T00:00Z",
        overlap="skip",
        catch_up="none",
        catch_up_window="1h",
        max_run_time="5m",
        on_lost="rerun",
        expires_after="90",
        pause_after_failures="3",
        retry="2, backoff=5m",
        paused="yes",
        reason="new",
    )

    info = mine.get("digest")
    page = f"/dynbeat/schedule?{urlencode({'owner': OWNER, 'name': 'digest'})}"
    assert (answer.status, answer.location) == (303, page)
    assert (info.task, info.given_trigger) == ("mail.digest", Cron("0 9 * * mon-fri"))
    assert (info.args, info.kwargs) == ([1], {"a": "b"})
    assert info.options == {"queue": "mail", "priority": 5}
    assert (info.description, info.tags) == ("two\nlines", ["mail", "vip"])
    # A time without an offset is on the clock of the owner: nine o'clock in Seoul.
    assert info.start_at.isoformat() == "2026-11-30T00:00:00+00:00"
    assert info.end_at.isoformat() == "2027-01-01T00:00:00+00:00"
    assert (info.window, info.max_runs) == (timedelta(minutes=1), 9)
    assert (info.catch_up, info.catch_up_window) == ("none", timedelta(hours=1))
    assert (info.overlap, info.max_run_time) == ("skip", timedelta(minutes=5))
    assert (info.on_lost, info.expires_after) == ("rerun", timedelta(seconds=90))
    assert (info.pause_after_failures, info.enabled) == (3, False)
    assert info.retry == Retry(max_retries=2, backoff=300)
    [change] = mine.changes("digest")
    assert (change.action, change.actor, change.reason) == ("create", "alice", "new")


def test_only_edited_fields_are_saved(pages, mine, digest):
    answer = save(pages, open_form(pages, "digest"), description="for all", reason="ticket 12")

    [change] = edits(mine)
    assert answer.status == 303
    assert dict(change.after) == {"description": "for all", "version": 2}
    assert (change.actor, change.reason) == ("alice", "ticket 12")
    assert mine.get("digest").next_run_at == digest.next_run_at


@pytest.mark.usefixtures("digest")
def test_queue_and_priority_keep_the_other_options(pages, mine):
    save(pages, open_form(pages, "digest"), queue="", priority="7")

    assert mine.get("digest").options == {"priority": 7, "headers": {"a": "b"}}


@pytest.mark.usefixtures("digest")
def test_an_empty_policy_returns_to_the_default(pages, mine):
    form = open_form(pages, "digest")
    assert form.values["overlap"] == "skip"

    save(pages, form, overlap="")

    assert mine.get("digest").overlap is None


@pytest.mark.parametrize(
    ("fields", "place", "words"),
    [
        ({"rule": "99 9 * * *"}, "rule", "99"),
        ({"rule": ""}, "rule", "the rule is empty"),
        ({"rule": "CRON_TZ=Asia/Seol 0 9 * * *"}, "rule", "did you mean 'Asia/Seoul'"),
        ({"rule": "TZ=UTC 5m"}, "rule", "does not depend on a time zone"),
        ({"args": "[1,"}, "args", "line 1, column 4"),
        ({"args": "{}"}, "args", "is not a JSON array"),
        ({"kwargs": '{"a": 1, "a": 2}'}, "kwargs", "'a' occurs twice"),
        ({"kwargs": '{"a": NaN}'}, "kwargs", "must be plain JSON"),
        ({"kwargs": "[" * 200_000}, "kwargs", "nested too deeply"),
        ({"args": json.dumps(["x" * 70_000])}, "args", "dynbeat_max_payload_bytes"),
        ({"task": " "}, "task", "must not be empty"),
        ({"priority": "300"}, "priority", "from 0 to 255"),
        ({"priority": "1_0"}, "priority", "not a whole number"),
        ({"window": "fast"}, "window", "is not a duration"),
        ({"max_runs": "0"}, "max_runs", "whole number from 1"),
        ({"start_at": "soon"}, "start_at", "is not a time"),
        ({"start_at": "2030-01-01T00:00Z", "end_at": "2029-01-01T00:00Z"}, "end_at", "before"),
        ({"overlap": "sometimes"}, "overlap", "must be one of"),
        ({"tags": "x" * 65}, "tags", "64 characters"),
        ({"description": "x" * 1025}, "description", "1024"),
        ({"queue": "x" * 256}, "queue", "255"),
        ({"reason": "x" * 1025}, "reason", "1024"),
    ],
)
def test_an_invalid_field_is_named_and_nothing_is_written(
    pages, mine, digest, fields, place, words
):
    form = open_form(pages, "digest")

    answer = save(pages, form, **{"tags": "typed", **fields})

    shown = form_in(answer)
    assert (answer.status, list(shown.errors)) == (422, [place])
    assert words in shown.errors[place]
    # What was typed is still there.
    typed = {**form.values, "tags": "typed", **fields}
    assert {**shown.values, "_xsrf": ""} == {**typed, "_xsrf": ""}
    assert mine.get("digest") == digest
    assert edits(mine) == []


@pytest.mark.usefixtures("digest")
def test_each_invalid_field_has_its_error(pages):
    answer = save(pages, open_form(pages, "digest"), args="{", window="x", rule="x", max_runs="-1")

    assert sorted(form_in(answer).errors) == ["args", "max_runs", "rule", "window"]


@pytest.mark.usefixtures("digest")
def test_a_name_that_exists_is_an_error_of_its_field(pages):
    form = form_in(pages.get(NEW))

    answer = save(pages, form, owner=OWNER, name="digest", task="t", rule="5m")

    assert "already has a schedule named 'digest'" in form_in(answer).errors["name"]
    assert answer.status == 422


@pytest.mark.usefixtures("digest")
def test_an_instant_that_has_a_run_is_an_error_of_the_rule(pages, mine):
    run = mine.run_now("digest")

    form = open_form(pages, "digest")
    answer = save(pages, form, rule=run.fire_at.isoformat(), tags="typed")

    shown = form_in(answer)
    assert (answer.status, list(shown.errors)) == (422, ["rule"])
    assert "already has its run" in shown.errors["rule"]
    assert shown.values["tags"] == "typed"


def test_limits_of_owners_are_errors_of_their_fields(sqlite_url, clock):
    of_owners = {"*": {"max_schedules": 1, "allowed_tasks": ["mail.*"]}}
    limits = {"owner_limits": of_owners, "min_interval": 60}
    login = {"basic_auth": ["alice:secret"]}
    with (
        application(sqlite_url, clock=clock, **limits) as dynbeat,
        flower_pages(dynbeat, **login) as pages,
    ):
        dynbeat.context.prepare()
        pages.user, pages.password = "alice", "secret"
        form = form_in(pages.get(NEW))
        fields = {"owner": OWNER, "name": "a", "task": "mail.digest", "rule": "5m"}

        assert list(form_in(save(pages, form, **{**fields, "task": "os.exec"})).errors) == ["task"]
        assert list(form_in(save(pages, form, **{**fields, "rule": "5s"})).errors) == ["rule"]
        assert save(pages, form, **fields).status == 303
        refused = save(pages, form, **{**fields, "name": "b"})
        assert "dynbeat_owner_limits: max_schedules" in form_in(refused).errors["owner"]


@pytest.mark.usefixtures("digest")
@pytest.mark.parametrize("path", [SAVE, PREVIEW])
def test_a_huge_form_is_refused(pages, path):
    assert pages.post(path, {"rule": "x" * 1_000_001}).status == 413


@pytest.mark.usefixtures("digest")
@pytest.mark.parametrize(
    ("typed", "trigger"),
    [
        ("5m", Every(300)),
        ("P1M", Every(months=1)),
        ("2026-12-24T18:00", Once(START.replace(month=12, day=24, hour=9))),
        ("in 2h", Once(START + timedelta(hours=2))),
        ("FREQ=WEEKLY;BYDAY=MO", RRule("FREQ=WEEKLY;BYDAY=MO")),
        ("@daily", Cron("@daily")),
        ("0 9 * * * except 2026-12-25", Cron("0 9 * * *").excluding(date(2026, 12, 25))),
    ],
)
def test_a_rule_is_typed_as_text(pages, mine, typed, trigger):
    answer = save(pages, open_form(pages, "digest"), rule=typed)

    assert answer.status == 303, form_in(answer).errors
    assert mine.get("digest").given_trigger == trigger


def test_the_largest_allowed_arguments_can_be_edited(pages, mine):
    large = {"a": '"' * 31_000, "b": [[1] * 100] * 8}
    mine.create("large", task="t", trigger=Every(60), kwargs=large)

    answer = save(pages, open_form(pages, "large"), description="x")

    assert answer.status == 303
    assert mine.get("large").kwargs == large
