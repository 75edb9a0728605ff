"""The count at the end of a fault test whose runs do not all end well."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.support.ledger import Ledger
from tests.support.waiting import wait_until

SETTLES_WITHIN = 40.0


def statuses(ledger: Ledger) -> Mapping[str, int]:
    """Return how many runs are in each status."""
    return dict(Counter(str(run.status) for run in ledger.site.all_runs()))


def settle_as(ledger: Ledger, fault: str, *, ends: Mapping[str, int], starts: int) -> None:
    """Wait until the runs of ``ledger`` ended as ``ends`` says, assert the counts, publish them.

    ``starts`` is the exact number of starts, of all runs. A plain task is sent behind all messages
    that are out, and waited for, as ``Ledger.settle`` does.
    """
    site = ledger.site
    assert sum(ends.values()) == len(ledger.expected)
    try:
        wait_until(lambda: statuses(ledger) == ends, within=SETTLES_WITHIN, message="not settled")
        witness = site.app.send_task("probe.record")
        wait_until(lambda: site.diary.starts(witness.id), within=SETTLES_WITHIN)
        assert statuses(ledger) == ends
        planned: Counter[Any] = Counter((run.name, run.scheduled_for) for run in site.all_runs())
        assert planned == Counter(ledger.expected), "the runs are not those that were expected"
        assert ledger.starts().total() == starts, f"{ledger.starts()}"
    except AssertionError as error:
        error.add_note(f"the runs are {statuses(ledger)}")
        error.add_note(site.report())
        raise
    told = ", ".join(f"{number} {status}" for status, number in sorted(ends.items()))
    ledger._publish(
        f"{fault} [{ledger._label}]: expected {len(ledger.expected)}, starts {starts}, {told}"
    )
