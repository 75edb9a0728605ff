"""Decide which of the runs of a request run again now: pure rules.

    can never run again         -> excluded
    its schedule is unavailable -> waits
    overlap, and a run of its schedule is unfinished  -> waits
    no capacity                 -> waits
    else                        -> chosen

The candidates of one schedule keep their order.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple


@dataclass(frozen=True, slots=True)
class RerunState:
    """The facts that decide about the candidates, by the ids of their schedules.

    ``runnable`` contains the rows of the schedules that can run again. A schedule in
    ``unavailable`` is held, or another transaction has locked it. A schedule in ``exclusive`` can
    have at most one unfinished run, and a schedule in ``busy`` already has one. ``capacity`` is the
    number of runs that may be created.
    """

    runnable: Mapping[int, Any]
    unavailable: Collection[int]
    exclusive: Collection[int]
    busy: Collection[int]
    capacity: int


class RerunSelection(NamedTuple):
    """The candidates that run again now, the candidates that wait, and the number of others."""

    chosen: Sequence[Any]
    waiting: Sequence[Any]
    excluded: int


def select_reruns(candidates: Iterable[Any], state: RerunState) -> RerunSelection:
    """Return the decision about each of the candidates. Each has a ``schedule_id`` or None."""
    chosen: list[Any] = []
    waiting: list[Any] = []
    excluded = 0
    busy = {*state.busy, *state.unavailable}
    for candidate in candidates:
        schedule_id = candidate.schedule_id
        if schedule_id not in state.runnable and schedule_id not in state.unavailable:
            excluded += 1
        elif schedule_id in busy or len(chosen) >= state.capacity:
            waiting.append(candidate)
            # A newer run of the schedule must not overtake this one.
            busy.add(schedule_id)
        else:
            chosen.append(candidate)
            if schedule_id in state.exclusive:
                busy.add(schedule_id)
    return RerunSelection(chosen, waiting, excluded)
