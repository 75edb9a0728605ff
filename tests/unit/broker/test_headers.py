"""Message headers cannot bypass the guard."""

import pytest
from celery.app.task import Context

from celery_dynbeat.broker import headers

NAMES = sorted(value for name, value in vars(headers).items() if name.startswith("HEADER_"))


@pytest.mark.parametrize("header", [*NAMES, "dynbeat_admitted"])
def test_no_message_header_counts_as_the_guards_attempt(header):
    # Celery sets each header as an attribute of the request.
    request = Context({header: 0, "headers": {header: 0}})

    assert headers.admitted_attempt(request) is None


def test_a_retry_names_the_attempt_that_the_guard_set():
    request = Context({"headers": {headers.HEADER_ATTEMPT: 0}})

    headers.admit(request, 1)

    assert (headers.admitted_attempt(request), headers.attempt_of(request)) == (1, 1)


@pytest.mark.parametrize("header", [*NAMES, "dynbeat_admitted", "retries", "id", "task"])
def test_the_headers_that_the_guard_reads_are_reserved(header):
    assert headers.is_reserved(header)
