"""Estimates of the runs to come, compared with the number that each kind of schedule has."""

from datetime import timedelta
from itertools import count
from math import sqrt
from random import Random
from statistics import fmean

import pytest
from sqlalchemy import insert
from sqlalchemy.orm import Session

from celery_dynbeat.db.models import Schedule
from celery_dynbeat.insights.statistics.histogram import bins_of
from celery_dynbeat.insights.statistics.planned_estimate import (
    SAMPLE_SIZE,
    _standard_error,
    estimate_planned,
)
from celery_dynbeat.insights.statistics.timeline import timeline
from celery_dynbeat.store.schedules import planned_runs
from celery_dynbeat.store.schedules.schedule_filters import ScheduleFilter
from tests.support.applications import START
from tests.support.suites import one_database

HOUR, MINUTE = timedelta(hours=1), timedelta(minutes=1)
UNTIL = START + HOUR
#: The runs of each kind of schedule in the hour.
MINUTELY, DAILY, LATER = ("PT1M", 60), ("P1D", 1), ("P1D", 0)
DRAWS = 30


def kinds(blocks):
    return [kind for kind, number in blocks for _ in range(number)]


def shuffled(*blocks):
    population = kinds(blocks)
    Random(1).shuffle(population)  # noqa: S311
    return [(*kind, "o", n) for n, kind in enumerate(population, 1)]


def in_bursts(*blocks):
    """Give ids with gaps of a million, and one kind of schedule in each block."""
    ids = (start + n for start in count(1, 1_000_000) for n in range(700))
    population = [kind for _ in range(3) for kind in kinds(blocks)]
    return [(*kind, "o", n) for kind, n in zip(population, ids, strict=False)]


def of_owners(*blocks):
    return [
        (*each[:2], "big" if each[3] % 2 else f"o{each[3]}", each[3]) for each in shuffled(*blocks)
    ]


POPULATIONS = {
    "every minute and daily": shuffled((MINUTELY, 1_000), (DAILY, 4_000), (LATER, 1_000)),
    "few every minute": shuffled((MINUTELY, 60), (DAILY, 4_000)),
    "bursts of ids": in_bursts((MINUTELY, 300), (DAILY, 1_200), (LATER, 500)),
    "an owner with half of the rows": of_owners((MINUTELY, 1_000), (DAILY, 4_000), (LATER, 1_000)),
}


@pytest.fixture(params=POPULATIONS)
def population(request, dynbeat):
    """Write the schedules of a population, and give them."""
    rows = []
    for spec, runs, owner, row_id in POPULATIONS[request.param]:
        at = START + (row_id % 59 + 1) * MINUTE if runs == 1 else START + MINUTE
        at = at if runs else UNTIL + HOUR
        rows.append(
            {"id": row_id, "owner": owner, "name": f"n{row_id}", "task": "t"}
            | {"trigger_kind": "every", "trigger_spec": spec, "anchor_at": START}
            | {"next_run_at": at, "next_fire_at": at, "created_at": START}
        )
    with Session(dynbeat.context.database.engine) as session:
        session.execute(insert(Schedule), rows)
        session.commit()
    return POPULATIONS[request.param]


@pytest.fixture(params=["counted", "drawn by id"])
def way(request, monkeypatch):
    if request.param == "drawn by id":
        for limit in ("MAX_COUNTED", "MAX_SCANNED"):
            monkeypatch.setattr(planned_runs, limit, 1_000)
    return request.param


def draw(dynbeat, seed, *, until=UNTIL, owner=None):
    with Session(dynbeat.context.database.engine) as session:
        matching = ScheduleFilter(owner=owner)
        return planned_runs.sample(
            session,
            matching=matching,
            until=until,
            size=SAMPLE_SIZE,
            rng=Random(seed),  # noqa: S311
        )


@one_database
@pytest.mark.usefixtures("way")
def test_estimates_are_without_bias_and_as_far_off_as_theory_says(dynbeat, population):
    owner = next((whose for _, _, whose, _ in population if whose == "big"), None)
    runs_of = {row_id: runs for _, runs, whose, row_id in population if owner in {None, whose}}
    truth = sum(runs_of.values())
    errors, expected = [], []
    for seed in range(DRAWS):
        sample = draw(dynbeat, seed, owner=owner)
        totals = [sum(runs_of[row.id] for row in each) for each in sample.draws]
        errors.append(fmean(totals) * sample.frame - truth)
        expected.append(_standard_error(totals, sample.frame))

    theory = sqrt(fmean(each**2 for each in expected))
    assert abs(fmean(errors)) < 4 * theory / sqrt(DRAWS)
    measured = sqrt(fmean(each**2 for each in errors))
    # Draws are spread over all ids. So they are better than theory if neighbours are alike.
    least = 0.1 if population is POPULATIONS["bursts of ids"] else 0.6
    assert least < measured / theory < 1.4
    assert sum(abs(error) > 2 * theory for error in errors) <= DRAWS / 6


@pytest.mark.usefixtures("way")
def test_the_runs_of_an_hour_are_estimated_with_their_error(dynbeat, population):
    truth = sum(runs for _, runs, _, _ in population)
    schedules = sum(runs > 0 for _, runs, _, _ in population)

    found = timeline(dynbeat.context, since=START, until=UNTIL, now=START)

    estimate = found.planned_estimate
    assert abs(estimate.runs - truth) <= 2 * estimate.error
    assert 0 < estimate.error < truth
    assert estimate.schedules == pytest.approx(schedules, rel=0.25)
    assert SAMPLE_SIZE / 2 < estimate.sampled < 2 * SAMPLE_SIZE
    assert sum(each.planned for each in found.bins) == pytest.approx(estimate.runs, rel=0.02)
    assert f"about {estimate.runs:,} runs (plus or minus {estimate.error:,})" in str(estimate)


@pytest.mark.usefixtures("population")
def test_a_window_in_which_few_schedules_run_has_no_estimate_from_intervals(dynbeat, monkeypatch):
    monkeypatch.setattr(planned_runs, "MAX_COUNTED", -1)

    assert draw(dynbeat, 1, until=START + MINUTE / 2) is None


def test_all_of_a_few_schedules_are_no_estimate(dynbeat, mine):
    for n in range(12):
        mine.create(f"n{n}", task="t", trigger=timedelta(minutes=1))
    bins = bins_of(START, UNTIL)

    def estimate(session):
        matching = ScheduleFilter()
        return estimate_planned(dynbeat.context, session, matching, bins, now=START)

    found = dynbeat.context.database.read(estimate)

    assert found.estimate is None
    assert sum(each.planned for each in found.counts) == 12 * 59
