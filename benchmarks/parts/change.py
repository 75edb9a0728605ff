"""An edit that makes a schedule due: the time from its commit to the message in the broker.

One of a million schedules is edited at a time, and beat is idle otherwise. The part also measures
F3 and the publishing of one message. The three take turns, so that noise affects all alike.
"""

import random
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from sqlalchemy import func, select
from sqlalchemy.orm import Session

from benchmarks.arrivals import Arrivals, arrivals
from benchmarks.bench import Bench
from benchmarks.figures import at_most
from benchmarks.floors import notify
from benchmarks.floors.publishing import Message, Sender, sender
from benchmarks.lags import histogram, percentile
from benchmarks.loading import fill
from benchmarks.loads import TASK
from benchmarks.processes import BEAT_STARTED, beat
from benchmarks.services import Site
from celery_dynbeat import Dynbeat, Every, Once
from celery_dynbeat.common.run_ids import new_run_id
from celery_dynbeat.db.models import Run

SCHEDULES, LEAST = 1_000_000, 1_000
EDITS, ROUNDS = 200, 4
OWNER = "editor"
#: Seconds before each edit, so that beat sleeps. Both sides of F3 sleep as well.
PAUSE = (0.03, 0.08)
#: The edit sets an instant that has passed when it is committed.
LEAD = timedelta(milliseconds=100)
ARRIVES_WITHIN = 30.0
MUST, AIM = 5, 2


@dataclass(slots=True)
class Times:
    """Seconds of each edit, of each round trip of F3, and of each published message."""

    edits: list[float] = field(default_factory=list)
    trips: list[float] = field(default_factory=list)
    publishing: list[float] = field(default_factory=list)


def run(bench: Bench) -> None:
    """Measure in turns, and report the 99th percentiles in milliseconds."""
    count = bench.size(EDITS, least=ROUNDS * 5) // ROUNDS
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
    bench.report("change", "one publish", ours=published * 1_000, unit="ms")
    for share in (0.5, 0.99):
        ours, floor = percentile(times.edits, share), percentile(times.trips, share)
        bounds = {"must": at_most(MUST), "aim": at_most(AIM)} if share > 0.5 else {}
        bench.report(
            "change",
            f"p{share * 100:g} of commit to message",
            ours=ours * 1_000,
            unit="ms",
            floor=floor * 1_000,
            against=f"{notify.AGAINST}, p{share * 100:g}",
            compared=(ours - published) / floor,
            note="compared: without the median of one publish",
            **bounds,
        )
    milliseconds = {name: [each * 1_000 for each in getattr(times, name)] for name in NAMES}
    bench.series("change histogram", {name: histogram(milliseconds[name]) for name in NAMES})


NAMES: Sequence[str] = ("edits", "trips", "publishing")


class _Editor:
    """Makes one-off schedules due, one at a time."""

    def __init__(self, dynbeat: Dynbeat, arrived: Arrivals, bare: Sender) -> None:
        self._dynbeat = dynbeat
        self._mine = dynbeat.schedules.for_owner(OWNER)
        self._arrived = arrived
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
            self._mine.update(name, trigger=Once(due_at), session=session)
            time.sleep(max(0.0, (due_at - context.clock.now()).total_seconds()))
            began = time.perf_counter()
            session.commit()
            return self._arrived.wait(within=ARRIVES_WITHIN) - began

    def publish(self, count: int) -> Sequence[float]:
        """Return the seconds from the publishing of each message to its arrival."""
        found = []
        for _ in range(count):
            message = Message(new_run_id(datetime.now(UTC)), TASK, {})
            began = time.perf_counter()
            self._bare.send([message])
            found.append(self._arrived.wait(within=ARRIVES_WITHIN) - began)
        return found

    def check(self, count: int) -> None:
        """Raise AssertionError unless each edit has one run and the queue is empty."""
        time.sleep(max(PAUSE))
        query = select(
            func.count(), func.count(Run.schedule_id.distinct()), func.count(Run.sent_at)
        )
        with self._dynbeat.context.database.engine.connect() as connection:
            found = tuple(connection.execute(query).one())
        assert found == (count, count, count), f"{found} runs, schedules, sent, of {count} edits"
        assert not self._arrived.count(), "messages that no edit waited for"


@contextmanager
def _edits(bench: Bench, site: Site) -> Iterator[_Editor]:
    with (
        site.application() as dynbeat,
        arrivals(site.broker_url) as arrived,
        sender(site.broker_url) as bare,
    ):
        fill(dynbeat.context.database.engine, bench.size(SCHEDULES, least=LEAST))
        names = range(bench.size(EDITS, least=ROUNDS * 5))
        daily = Every(timedelta(days=1))
        dynbeat.schedules.create_many(
            {"owner": OWNER, "name": str(name), "task": TASK, "trigger": daily} for name in names
        )
        with beat(site.config()) as process:
            process.wait_for_log(BEAT_STARTED)
            yield _Editor(dynbeat, arrived, bare)
