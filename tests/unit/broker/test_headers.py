"""Message headers cannot bypass the guard."""

from datetime import UTC, datetime, timedelta

import pytest
from celery.app.task import Context

from celery_dynbeat import broker

NAMES = sorted(value for name, value in vars(broker).items() if name.startswith("HEADER_"))


@pytest.mark.parametrize("header", [*NAMES, "dynbeat_admitted"])
def test_no_message_header_counts_as_the_guards_attempt(header):
    # Celery sets each header as an attribute of the request.
    request = Context({header: 0, "headers": {header: 0}})

    assert broker.admitted_attempt(request) is None


def test_a_retry_names_the_attempt_that_the_guard_set():
    request = Context({"headers": {broker.HEADER_ATTEMPT: 0}})

    broker.admit(request, 1)

    assert (broker.admitted_attempt(request), broker.attempt_of(request)) == (1, 1)


@pytest.mark.parametrize("header", [*NAMES, "dynbeat_admitted", "retries", "id", "task"])
def test_the_headers_that_the_guard_reads_are_reserved(header):
    assert broker.is_reserved(header)


NOW = datetime(2026, 11, 22, 9, tzinfo=UTC)


def retry_at(policy, *, retries=0, **others):
    given = {broker.HEADER_RETRY: policy, **others}
    return broker.retry_at_of(Context({"headers": given, "retries": retries}), now=NOW)


def test_the_policy_in_the_headers_decides_about_a_retry():
    assert retry_at('{"max_retries": 1, "backoff": 5}') == NOW + timedelta(seconds=5)
    assert retry_at('{"max_retries": 1, "backoff": 5}', retries=1) is None


@pytest.mark.parametrize(
    "policy",
    [
        *(
            None,
            5,
            {"max_retries": 3},
            "",
            "3",
            "[]",
            "{",
            "null",
            '{"max_retries": 101}',
            '{"max_retries": "3"}',
        ),
        *(
            '{"max_retries": 1, "backoff": 1e999}',
            '{"backoff": 5}',
            "[" * 200,
            " " * 300 + '{"max_retries": 3}',
        ),
        *('{"max_retries": 1, "other": 2}', '{"max_retries": ' + "9" * 240 + "}"),
    ],
)
def test_a_malformed_policy_counts_as_missing(policy):
    assert retry_at(policy) is None


@pytest.mark.parametrize("retries", ["1", -1, 2**40, True, 1.5])
def test_a_malformed_count_of_retries_makes_no_retry(retries):
    assert retry_at('{"max_retries": 100}', retries=retries) is None


def test_a_malformed_next_fire_time_bounds_nothing():
    policy = '{"max_retries": 1, "backoff": 5, "until_next_fire": true}'
    early, malformed = (NOW + timedelta(seconds=1)).isoformat(), "soon"

    assert retry_at(policy, **{broker.HEADER_NEXT_FIRE_AT: early}) is None
    assert retry_at(policy, **{broker.HEADER_NEXT_FIRE_AT: malformed}) is not None


def test_a_task_that_replaced_itself_is_not_retried():
    assert retry_at('{"max_retries": 1}', **{broker.HEADER_REPLACES: True}) is None
