"""Measure an edit that makes a schedule due, from its commit to the message in the broker.

Each edit changes one of a million schedules while beat is idle. The baselines are F3 and the
publishing of one message. The three alternate, so that noise affects them equally.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from benchmarks.baselines import notify
from benchmarks.baselines.publishing import Message, Sender, sender
from benchmarks.bench import Bench
from benchmarks.bulk_schedules import fill
from benchmarks.figures import at_most
from benchmarks.lag_statistics import histogram, percentile
from benchmarks.message_receiver import MessageReceiver, message_receiver
from benchmarks.processes import BEAT_STARTED, beat
from benchmarks.services import Site
from benchmarks.workloads import TASK
from celery_dynbeat import Dynbeat, Every, Once
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.db.models import Run

SCHEDULES, MIN_SCHEDULES = 1_000_000, 1_000
EDITS, ROUNDS = 200, 4
OWNER = "editor"
#: Seconds before each edit, in which beat falls asleep again; F3 pauses as long.
PAUSE = (0.03, 0.08)
#: The commit waits until the new fire time has passed.
LEAD = timedelta(milliseconds=100)
ARRIVAL_TIMEOUT = 30.0
MUST, AIM = 5, 2


@dataclass(slots=True)
class Times:
    """Seconds of each edit, of each round trip of F3, and of each single publish."""

    edits: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)
    publishing: list[float] = field(default_factory=list)


def run(bench: Bench) -> None:
    """Measure in alternating rounds and report medians and 99th percentiles in milliseconds."""
    count = bench.size(EDITS, minimum=ROUNDS * 5) // ROUNDS
    times = Times()
    with bench.site() as site, _edits(bench, site) as editor:
        for _ in bench.track(range(ROUNDS), "change"):
            times.trips += notify.measure(site, count=count, pause=sum(PAUSE) / 2)
            times.edits += editor.edit(count)
            times.publishing += editor.publish(count)
        editor.check(len(times.edits))
    _report(bench, times)


def _report(bench: Bench, times: Times) -> None:
    published = percentile(times.publishing, 0.5)
    bench.report("change", "one publish", value=published * 1_000, unit="ms")
    for share in (0.5, 0.99):
        value, baseline = percentile(times.edits, share), percentile(times.trips, share)
        bounds = {"must": at_most(MUST), "aim": at_most(AIM)} if share > 0.5 else {}
        bench.report(
            "change",
            f"p{share * 100:g} of commit to message",
            value=value * 1_000,
            unit="ms",
            baseline=baseline * 1_000,
            baseline_name=f"{notify.NAME}, p{share * 100:g}",
            compared=(value - published) / baseline,
            note="compared: without the median of one publish",
            **bounds,
        )
    milliseconds = {name: [each * 1_000 for each in getattr(times, name)] for name in SERIES}
    bench.series("change histogram", {name: histogram(milliseconds[name]) for name in SERIES})


SERIES: Sequence[str] = ("edits", "trips", "publishing")


class _Editor:
    """Makes one-off schedules due, one by one."""

    def __init__(self, dynbeat: Dynbeat, receiver: MessageReceiver, bare: Sender) -> None:
        self._dynbeat = dynbeat
        self._mine = dynbeat.schedules.for_owner(OWNER)
        self._receiver = receiver
        self._bare = bare
        self._number = 0

    def edit(self, count: int) -> Sequence[float]:
        """Return the seconds from the commit of each edit to its message."""
        return [self._edit() for _ in range(count)]

    def _edit(self) -> float:
        time.sleep(random.uniform(*PAUSE))
        context, name = self._dynbeat.context, str(self._number)
        self._number += 1
        due_at = context.clock.now() + LEAD
        with Session(context.database.engine) as session:
            self._mine.bound(session=session).update(name, trigger=Once(due_at))
            time.sleep(max(0.0, (due_at - context.clock.now()).total_seconds()))
            started_at = time.perf_counter()
            session.commit()
            return self._receiver.wait(within=ARRIVAL_TIMEOUT) - started_at

    def publish(self, count: int) -> Sequence[float]:
        """Return the seconds from the publish of each message to its arrival."""
        seconds = []
        for _ in range(count):
            message = Message(new_run_id(datetime.now(UTC)), TASK, {})
            started_at = time.perf_counter()
            self._bare.send([message])
            seconds.append(self._receiver.wait(within=ARRIVAL_TIMEOUT) - started_at)
        return seconds

    def check(self, count: int) -> None:
        """AssertionError unless each edit has one run and the queue is empty."""
        time.sleep(max(PAUSE))
        query = select(
            func.count(), func.count(Run.schedule_id.distinct()), func.count(Run.sent_at)
        )
        with self._dynbeat.context.database.engine.connect() as connection:
            counts = tuple(connection.execute(query).one())
        assert counts == (count, count, count), f"{counts} runs, schedules, sent, of {count} edits"
        assert not self._receiver.count(), "more messages than edits"


@contextmanager
def _edits(bench: Bench, site: Site) -> Iterator[_Editor]:
    with (
        site.application() as dynbeat,
        message_receiver(site.broker_url) as receiver,
        sender(site.broker_url) as bare,
    ):
        fill(dynbeat.context.database.engine, bench.size(SCHEDULES, minimum=MIN_SCHEDULES))
        names = range(bench.size(EDITS, minimum=ROUNDS * 5))
        daily = Every(timedelta(days=1))
        dynbeat.schedules.create_many(
            {"owner": OWNER, "name": str(name), "task": TASK, "trigger": daily} for name in names
        )
        with beat(site.config()) as process:
            process.wait_for_log(BEAT_STARTED)
            yield _Editor(dynbeat, receiver, bare)
