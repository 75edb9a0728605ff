"""Spans have no texts of exceptions, which can contain arguments of a task."""

from datetime import UTC, datetime

import pytest

from celery_dynbeat.broker.publisher import PublishResult, unsent
from celery_dynbeat.common.errors import DispatchError
from celery_dynbeat.tracing.attributes import outcome_attributes

SECRET = "secret of a user"


def test_the_status_of_a_message_that_was_not_sent_has_no_text_of_an_error():
    published = PublishResult(
        refused={"a": DispatchError(SECRET)},
        delayed={"b": datetime(2026, 1, 1, tzinfo=UTC)},
        declined={"c": SECRET},
        unknown={"d"},
    )

    shown = unsent(published)

    assert shown.keys() == {"a", "b", "c", "d"}
    assert SECRET not in " ".join(shown.values())


@pytest.mark.parametrize(
    ("error", "shown"),
    [("KeyError: 'x'", "KeyError"), (SECRET, None), ("", None), (f"{SECRET}: x", None)],
)
def test_the_type_of_an_error_is_a_name(error, shown):
    attributes = outcome_attributes("r", status="failed", attempt=1, error=error)

    assert attributes.get("error.type") == shown
