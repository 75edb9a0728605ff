"""Measure one beat and two beats on 50,000 schedules of 10,000 owners, due at one instant.

Baselines are F1 and F2. The serial bound is the rate of a process that only does F2 and then F1
for each batch.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import bursts
from benchmarks.baselines import claiming, publishing
from benchmarks.bench import Bench
from benchmarks.bursts import Burst
from benchmarks.figures import at_least
from celery_dynbeat.beat.refused import BATCH_SIZE

SCHEDULES = 50_000
ROUNDS = 3
SHARE_OF_SERIAL, SHARE_OF_SLOWER = 0.75, 0.9


@dataclass(frozen=True, slots=True)
class Round:
    """One round: F1 in messages and F2 in rows a second (None: not PostgreSQL), two bursts."""

    published: float
    claimed: float | None
    one: Burst
    two: Burst


def run(bench: Bench) -> None:
    """Measure in alternating rounds and report the medians."""
    with bench.site() as site:
        f1_name = publishing.baseline_name(site)
    rounds = [_round(bench) for _ in bench.track(range(ROUNDS), "burst")]
    published = statistics.median(each.published for each in rounds)
    bench.report("burst", f"F1: {f1_name}", value=published, unit="messages/s")
    claimed = _claimed(rounds)
    if claimed is not None:
        bench.report("burst", f"F2: {claiming.NAME}", value=claimed, unit="rows/s")
    _report_one(bench, rounds, published=published, claimed=claimed)
    _report_two(bench, rounds)
    bench.series("burst timeline", _timeline(rounds[-1]))


def _round(bench: Bench) -> Round:
    count = bench.size(SCHEDULES)
    with bench.site() as site:
        published = publishing.measure(site, count=count)
    claimed = None
    if bench.services.database == "postgresql":
        with bench.site() as site:
            claimed = claiming.measure(site, count=count)
    with bench.site() as site:
        one = bursts.measure(site, schedules=count)
    with bench.site() as site:
        two = bursts.measure(site, schedules=count, beats=2)
    return Round(published, claimed, one, two)


def _claimed(rounds: Sequence[Round]) -> float | None:
    rates = [each.claimed for each in rounds if each.claimed is not None]
    return statistics.median(rates) if rates else None


def _report_one(
    bench: Bench, rounds: Sequence[Round], *, published: float, claimed: float | None
) -> None:
    messages = statistics.median(each.one.messages_per_second for each in rounds)
    rows = statistics.median(each.one.rows_per_second for each in rounds)
    seconds = statistics.median(each.one.seconds for each in rounds)
    note = f"batches of {BATCH_SIZE}"
    by_messages: dict[str, Any] = {}
    by_rows: dict[str, Any] = {}
    if claimed is not None:
        serial = _serial(published, claimed)
        by_messages = {"baseline": serial, "baseline_name": "serial bound of F1 and F2"}
        by_rows = {**by_messages, "compared": rows / serial}
        aim = at_least(round(SHARE_OF_SLOWER * min(published, claimed) / serial, 2))
        by_messages |= {
            "compared": messages / serial,
            "must": at_least(SHARE_OF_SERIAL),
            "aim": aim,
        }
        _report_slower(bench, messages, min(published, claimed))
    bench.report("burst", "one beat", value=messages, unit="messages/s", note=note, **by_messages)
    bench.report("burst", "one beat, by sent_at", value=rows, unit="rows/s", note=note, **by_rows)
    bench.report("burst", "one beat, due to last message", value=seconds, unit="s", note=note)


def _serial(published: float, claimed: float) -> float:
    return 1 / (1 / published + 1 / claimed)


def _report_slower(bench: Bench, messages: float, slower: float) -> None:
    bench.report(
        "burst",
        "one beat, if claim and publish overlapped",
        value=messages,
        unit="messages/s",
        baseline=slower,
        baseline_name="the slower of F1 and F2",
        compared=messages / slower,
    )


def _report_two(bench: Bench, rounds: Sequence[Round]) -> None:
    one = statistics.median(each.one.messages_per_second for each in rounds)
    two = statistics.median(each.two.messages_per_second for each in rounds)
    bench.report(
        "burst",
        "two beats",
        value=two,
        unit="messages/s",
        baseline=one,
        baseline_name="one beat",
        compared=two / one,
        must=at_least(1.0),
        aim=at_least(1.6),
        note="none lost, none doubled",
    )


def _timeline(last: Round) -> dict[str, object]:
    """Return the messages in the queue by seconds since the burst was due, in the last round."""
    serial = None if last.claimed is None else _serial(last.published, last.claimed)
    return {
        "one beat": last.one.messages,
        "two beats": last.two.messages,
        "serial bound": serial,
        "count": last.one.count,
    }
