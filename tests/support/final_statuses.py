"""The final check of a fault test in which some runs do not succeed."""

from collections import Counter
from collections.abc import Mapping
from typing import Any

from tests.support.waiting import wait_until
from tests.support.workload import Workload

SETTLES_WITHIN = 40.0


def count_by_status(workload: Workload) -> Mapping[str, int]:
    """Return the number of runs in each status."""
    return dict(Counter(str(run.status) for run in workload.site.all_runs()))


def verify_statuses(
    workload: Workload, fault: str, *, expected: Mapping[str, int], starts: int
) -> None:
    """Wait until the numbers of runs in each status equal ``expected``, and publish the line.

    ``starts`` is the exact number of starts of all runs. Like ``Workload.verify``, it sends a plain
    task after all messages and waits for it. Raises AssertionError with the logs of the processes.
    """
    site = workload.site
    assert sum(expected.values()) == len(workload.expected)
    try:
        wait_until(
            lambda: count_by_status(workload) == expected,
            within=SETTLES_WITHIN,
            message="not settled",
        )
        last = site.app.send_task("probe.record")
        wait_until(lambda: site.event_log.starts(last.id), within=SETTLES_WITHIN)
        assert count_by_status(workload) == expected
        planned: Counter[Any] = Counter((run.name, run.fire_at) for run in site.all_runs())
        assert planned == Counter(workload.expected), "the runs are not the expected ones"
        assert workload.starts().total() == starts, f"{workload.starts()}"
    except AssertionError as error:
        error.add_note(f"the runs are {count_by_status(workload)}")
        error.add_note(site.report())
        raise
    summary = ", ".join(f"{number} {status}" for status, number in sorted(expected.items()))
    workload._publish(
        f"{fault} [{workload._label}]: expected {len(workload.expected)},"
        f" starts {starts}, {summary}"
    )
