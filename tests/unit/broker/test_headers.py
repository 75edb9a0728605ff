"""What the headers of a message may do to the guard, and what they may not."""

import pytest
from celery.app.task import Context

from celery_dynbeat.broker import headers

NAMES = sorted(value for name, value in vars(headers).items() if name.startswith("HEADER_"))


@pytest.mark.parametrize("header", [*NAMES, "dynbeat_admitted"])
def test_no_header_of_a_message_passes_for_its_admission(header):
    # Celery makes an attribute of the request of each of them.
    request = Context({header: 0, "headers": {header: 0}})

    assert headers.admitted_attempt(request) is None


def test_an_admission_is_what_a_retry_follows():
    request = Context({"headers": {headers.HEADER_ATTEMPT: 0}})

    headers.admit(request, 1)

    assert (headers.admitted_attempt(request), headers.attempt_of(request)) == (1, 1)


@pytest.mark.parametrize("header", [*NAMES, "dynbeat_admitted", "retries", "id", "task"])
def test_what_the_guard_looks_at_is_nobody_elses_to_write(header):
    assert headers.is_reserved(header)
