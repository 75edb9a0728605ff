"""50,000 schedules of 10,000 owners due at one instant: one beat and two beats, with F1 and F2.

The serial bound is the rate of a process that only runs F2 and then F1 for each batch.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from benchmarks import bursts
from benchmarks.bench import Bench
from benchmarks.bursts import Burst
from benchmarks.figures import at_least
from benchmarks.floors import claiming, publishing

SCHEDULES = 50_000
ROUNDS = 3
OF_SERIAL, OF_SLOWER = 0.75, 0.9


@dataclass(frozen=True, slots=True)
class Round:
    """One measurement of each: F1 in messages/s, F2 in rows/s (None: not PostgreSQL), and ours."""

    published: float
    claimed: float | None
    one: Burst
    two: Burst


def run(bench: Bench) -> None:
    """Measure in alternating rounds, and report the medians."""
    with bench.site() as site:
        against = publishing.against(site)
    rounds = [_round(bench) for _ in bench.track(range(ROUNDS), "burst")]
    published = statistics.median(each.published for each in rounds)
    bench.report("burst", f"F1: {against}", ours=published, unit="messages/s")
    claimed = _claimed(rounds)
    if claimed is not None:
        bench.report("burst", f"F2: {claiming.AGAINST}", ours=claimed, unit="rows/s")
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
    note = f"dynbeat_batch_size {rounds[0].one.batch_size}, the default"
    floor: dict[str, Any] = {}
    by_rows: dict[str, Any] = {}
    if claimed is not None:
        serial = _serial(published, claimed)
        floor = {"floor": serial, "against": "serial bound of F1 and F2"}
        by_rows = {**floor, "compared": rows / serial}
        aim = at_least(round(OF_SLOWER * min(published, claimed) / serial, 2))
        floor |= {"compared": messages / serial, "must": at_least(OF_SERIAL), "aim": aim}
        _report_slower(bench, messages, min(published, claimed))
    bench.report("burst", "one beat", ours=messages, unit="messages/s", note=note, **floor)
    bench.report("burst", "one beat, by sent_at", ours=rows, unit="rows/s", note=note, **by_rows)
    bench.report("burst", "one beat, due to last message", ours=seconds, unit="s", note=note)


def _serial(published: float, claimed: float) -> float:
    return 1 / (1 / published + 1 / claimed)


def _report_slower(bench: Bench, messages: float, slower: float) -> None:
    bench.report(
        "burst",
        "one beat, if claim and publish overlapped",
        ours=messages,
        unit="messages/s",
        floor=slower,
        against="the slower of F1 and F2",
        compared=messages / slower,
    )


def _report_two(bench: Bench, rounds: Sequence[Round]) -> None:
    one = statistics.median(each.one.messages_per_second for each in rounds)
    two = statistics.median(each.two.messages_per_second for each in rounds)
    bench.report(
        "burst",
        "two beats",
        ours=two,
        unit="messages/s",
        floor=one,
        against="one beat",
        compared=two / one,
        must=at_least(1.0),
        aim=at_least(1.6),
        note="none lost, none doubled",
    )


def _timeline(last: Round) -> dict[str, object]:
    """Messages in the queue over the seconds since the burst was due, of the last round."""
    serial = None if last.claimed is None else _serial(last.published, last.claimed)
    return {
        "one beat": last.one.messages,
        "two beats": last.two.messages,
        "serial bound": serial,
        "count": last.one.count,
    }
