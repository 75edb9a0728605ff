"""No owner waits behind all the runs of another."""

from collections import Counter
from datetime import timedelta

import pytest

from celery_dynbeat import Once
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import START, application

DUE = START + timedelta(minutes=1)
BATCH = 20


def due(owner, count, *, at=DUE):
    return [
        {"owner": owner, "name": f"n{number}", "task": "t", "trigger": Once(at)}
        for number in range(count)
    ]


@pytest.fixture
def dynbeat(database_url, clock):
    with application(database_url, clock=clock, batch_size=BATCH) as made:
        made.context.prepare()
        yield made


def passes(beat, count):
    """Return the owners of what each of the next passes sends."""
    shares = []
    for _ in range(count):
        before = len(beat.publisher.sent)
        beat.tick()
        shares.append(Counter(run.owner for run in beat.publisher.sent[before:]))
    return shares


def test_the_others_come_after_one_batch_of_the_one_who_has_much(dynbeat, clock):
    beat = ManualBeat(dynbeat)
    dynbeat.schedules.create_many(due("one", 200))
    dynbeat.schedules.create_many([each for n in range(8) for each in due(f"other:{n}", 1)])
    clock.move_to(DUE)

    first, second, *rest = passes(beat, 12)

    assert first == {"one": BATCH}
    assert {owner: second[owner] for owner in second if owner != "one"} == {
        f"other:{n}": 1 for n in range(8)
    }
    assert second["one"] == BATCH - 8
    assert sum(sum(share.values()) for share in rest) == 200 - 2 * BATCH + 8


def test_the_one_who_has_much_keeps_half_while_the_others_keep_coming(dynbeat, clock):
    beat = ManualBeat(dynbeat)
    dynbeat.schedules.create_many(due("one", 200))
    many = [
        each for n in range(100) for each in due(f"other:{n}", 1, at=DUE + timedelta(seconds=1))
    ]
    dynbeat.schedules.create_many(many)
    clock.move_to(DUE + timedelta(seconds=1))

    shares = passes(beat, 6)

    assert [share["one"] for share in shares] == [BATCH] + [BATCH // 2] * 5


def test_when_nothing_waits_the_oldest_come_first_whoever_they_belong_to(dynbeat, clock):
    beat = ManualBeat(dynbeat)
    dynbeat.schedules.create_many(due("one", BATCH - 1))
    dynbeat.schedules.create_many(due("other", 1, at=DUE - timedelta(seconds=1)))
    clock.move_to(DUE)

    passes(beat, 1)

    assert beat.publisher.sent[0].owner == "other"
    assert len(beat.publisher.sent) == BATCH
