"""Flower's /metrics has the gauges of the database when they are configured."""

import threading

import pytest
from sqlalchemy import event

from celery_dynbeat.flower.application import is_enabled
from tests.support.applications import application


def gauges_in(answer):
    return {line.split()[2] for line in answer.text.splitlines() if "TYPE dynbeat_" in line}


def test_the_gauges_follow_flowers_own_metrics(serve, dynbeat):
    dynbeat.schedules.hold(reason="moving")

    answer = serve(dynbeat_metrics=True, basic_auth=["alice:secret"]).get("/metrics")

    assert answer.status == 200
    assert answer.headers["Content-Type"].startswith("text/plain")
    assert "flower_events" in answer.text
    assert "\ndynbeat_holds 1.0\n" in answer.text
    assert "dynbeat_database_scrape_success" in gauges_in(answer)


@pytest.mark.parametrize(
    ("settings", "option", "expected"),
    [
        ({}, False, False),
        ({}, True, True),
        ({"metrics": 0}, False, True),
    ],
)
def test_the_option_or_the_port_enables_them(settings, option, expected):
    with application("sqlite://", **settings) as dynbeat:
        assert is_enabled(dynbeat.context, option=option) is expected


def test_a_database_that_hangs_delays_no_page(serve, dynbeat):
    gate = threading.Event()
    event.listen(dynbeat.context.database.engine, "before_cursor_execute", lambda *_: gate.wait(30))
    pages = serve(dynbeat_metrics=True)
    answers = []
    scrape = threading.Thread(target=lambda: answers.append(pages.get("/metrics")))
    scrape.start()
    try:
        assert pages.get("/healthcheck").status == 200
        assert not answers
    finally:
        scrape.join(20)
        gate.set()

    assert "\ndynbeat_database_scrape_success 0.0\n" in answers[0].text
