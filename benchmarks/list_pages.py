"""Time the first, the middle and the last page of a long list of schedules."""

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import Engine, text

from celery_dynbeat import Dynbeat
from celery_dynbeat.api.results import Page, ScheduleInfo
from tests.support.cursors import cursor_after

LIMIT = 100
FIRST, MIDDLE, LAST = "first", "middle", "last"


def measure(
    dynbeat: Dynbeat, *, owner: str | None, count: int, times: int
) -> Mapping[str, Sequence[float]]:
    """Return the milliseconds of each call for a page, by the place of the page in the list.

    The list has ``count`` schedules. ``owner`` None: of all owners. PostgreSQL only.
    """
    cursors = {
        FIRST: None,
        MIDDLE: _cursor(dynbeat, owner, count // 2),
        LAST: _cursor(dynbeat, owner, count - LIMIT),
    }
    milliseconds: dict[str, list[float]] = {place: [] for place in cursors}
    # The first round does not count, because SQLAlchemy compiles its statements.
    for round_number in range(times + 1):
        for place, after in cursors.items():
            started_at = time.perf_counter()
            page = dynbeat.schedules.list(owner=owner, limit=LIMIT, after=after)
            if round_number:
                milliseconds[place].append((time.perf_counter() - started_at) * 1_000)
            _check(page, is_last=place == LAST)
    return milliseconds


def _check(page: Page[ScheduleInfo], *, is_last: bool) -> None:
    keys = [(row.owner, row.name) for row in page]
    assert len(keys) == LIMIT, f"{len(keys)} schedules on a page of {LIMIT}"
    assert len(set(keys)) == LIMIT, "a schedule appears twice on one page"
    assert (page.cursor is None) == is_last, "only the last page has no cursor"


def _cursor(dynbeat: Dynbeat, owner: str | None, position: int) -> str:
    """Return the cursor after the first ``position`` schedules."""
    row_owner, name = _key(dynbeat.context.database.engine, owner, position - 1)
    return cursor_after(row_owner, name)


def _key(engine: Engine, owner: str | None, offset: int) -> tuple[str, str]:
    condition = "" if owner is None else "WHERE owner = :owner"
    query = (
        f"SELECT owner, name FROM dynbeat_schedule {condition}"
        " ORDER BY owner, name LIMIT 1 OFFSET :offset"
    )
    with engine.connect() as connection:
        row = connection.execute(text(query), {"owner": owner, "offset": offset}).one()
        return row.owner, row.name
