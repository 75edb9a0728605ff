"""Pages of a long list of schedules: at its start, in its middle and at its end."""

import time
from collections.abc import Mapping, Sequence

from sqlalchemy import Engine, text

from celery_dynbeat import Dynbeat
from celery_dynbeat.client.views import Page, cursor_of

LIMIT = 100
FIRST, MIDDLE, LAST = "first", "middle", "last"


def measure(
    dynbeat: Dynbeat, *, owner: str | None, count: int, times: int
) -> Mapping[str, Sequence[float]]:
    """Return the milliseconds of each page, by its place in a list of ``count`` schedules.

    With ``owner`` None, the list has the schedules of all owners. PostgreSQL only.
    """
    cursors = {
        FIRST: None,
        MIDDLE: _cursor(dynbeat, owner, count // 2),
        LAST: _cursor(dynbeat, owner, count - LIMIT),
    }
    found: dict[str, list[float]] = {place: [] for place in cursors}
    # The first turn does not count: it compiles the statements.
    for turn in range(times + 1):
        for place, after in cursors.items():
            began = time.perf_counter()
            page = dynbeat.schedules.list(owner=owner, limit=LIMIT, after=after)
            if turn:
                found[place].append((time.perf_counter() - began) * 1_000)
            _check(page, is_last=place == LAST)
    return found


def _check(page: Page, *, is_last: bool) -> None:
    keys = [(row.owner, row.name) for row in page]
    assert len(keys) == LIMIT, f"{len(keys)} schedules on a page of {LIMIT}"
    assert len(set(keys)) == LIMIT, "a schedule is twice on one page"
    assert (page.cursor is None) == is_last, "the list ends at another page"


def _cursor(dynbeat: Dynbeat, owner: str | None, position: int) -> str:
    """Return the cursor after the first ``position`` schedules."""
    of, name = _key(dynbeat.context.database.engine, owner, position - 1)
    return cursor_of(dynbeat.schedules.for_owner(of).get(name))


def _key(engine: Engine, owner: str | None, offset: int) -> tuple[str, str]:
    of_owner = "" if owner is None else "WHERE owner = :owner"
    query = (
        f"SELECT owner, name FROM dynbeat_schedule {of_owner}"
        " ORDER BY owner, name LIMIT 1 OFFSET :offset"
    )
    with engine.connect() as connection:
        row = connection.execute(text(query), {"owner": owner, "offset": offset}).one()
        return row.owner, row.name
