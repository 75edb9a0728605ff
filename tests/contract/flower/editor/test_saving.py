"""The form creates and updates a schedule, or names the field that is wrong."""

import json

import pytest

from celery_dynbeat import Every
from tests.support.editor_form import (
    PREVIEW,
    SAVE,
    edits,
    form_in,
    open_form,
    save,
)


def test_only_edited_fields_are_saved(pages, mine, digest):
    answer = save(pages, open_form(pages, "digest"), description="for all", reason="ticket 12")

    [change] = edits(mine)
    assert answer.status == 303
    assert dict(change.after) == {"description": "for all", "version": 2}
    assert (change.actor, change.reason) == ("alice", "ticket 12")
    assert mine.get("digest").next_run_at == digest.next_run_at


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
@pytest.mark.parametrize("path", [SAVE, PREVIEW])
def test_a_huge_form_is_refused(pages, path):
    assert pages.post(path, {"rule": "x" * 1_000_001}).status == 413


def test_the_largest_allowed_arguments_can_be_edited(pages, mine):
    large = {"a": '"' * 31_000, "b": [[1] * 100] * 8}
    mine.create("large", task="t", trigger=Every(60), kwargs=large)

    answer = save(pages, open_form(pages, "large"), description="x")

    assert answer.status == 303
    assert mine.get("large").kwargs == large
