"""Write decisions: insert the rows of history, and advance the schedules."""

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any

from sqlalchemy.orm import Session

from celery_dynbeat.beat.decisions import Decision
from celery_dynbeat.common.settings import Settings
from celery_dynbeat.common.states import Status
from celery_dynbeat.store import runs
from celery_dynbeat.store.runs import AddedRuns
from celery_dynbeat.store.schedules import due
from celery_dynbeat.telemetry import emit_on_commit, events, has_listeners


def record(session: Session, decisions: Sequence[Decision], *, settings: Settings) -> AddedRuns:
    """Insert the rows of history. Return the ids of rows whose fire time had no row before."""
    records = [record for each in decisions for record in each.records]
    added = runs.record(session, records, settings=settings)
    new = added.ids
    quarantined = [each.quarantined for each in decisions if each.quarantined is not None]
    emit_on_commit(session, *quarantined)
    if has_listeners(events.FireTimesSkipped):
        emit_on_commit(session, *_skipped_of(record for record in records if record["id"] in new))
    return added


def _skipped_of(records: Iterable[Mapping[str, Any]]) -> Iterable[events.FireTimesSkipped]:
    """Return the event of each ``skipped`` row among new rows of history."""
    for record in records:
        if record["status"] == Status.SKIPPED:
            yield events.FireTimesSkipped(
                owner=record["owner"],
                schedule=record["name"],
                task=record["task"],
                fire_at=record["fire_at"],
                count=record["fire_count"],
                reason=record["error"],
            )


def advance(session: Session, decisions: Sequence[Decision], new: Collection[str]) -> None:
    """Write the columns of the schedules. ``new`` are the ids of the inserted rows of history."""
    changes = [decision.change for decision in decisions]
    if sum(len(decision.records) for decision in decisions) != len(new):
        changes = [_without_present_runs(decision, new) for decision in decisions]
    # One statement for each set of columns.
    by_columns: defaultdict[frozenset[str], list[Mapping[str, Any]]] = defaultdict(list)
    for change in changes:
        by_columns[frozenset(change)].append(change)
    for same_columns in by_columns.values():
        due.advance(session, same_columns)


def _without_present_runs(decision: Decision, new: Collection[str]) -> Mapping[str, Any]:
    """Return the change of the row without the runs that existed before.

    If the clock was set back, a fire time can already have its run.
    """
    present = sum(
        record["status"] == Status.PENDING and record["id"] not in new
        for record in decision.records
    )
    if not present:
        return decision.change
    change = {**decision.change, "run_count": decision.change["run_count"] - present}
    if change["next_fire_at"] is None:
        # The schedule may still have runs left, so the next pass plans it again.
        change["finished_at"] = None
    return change
