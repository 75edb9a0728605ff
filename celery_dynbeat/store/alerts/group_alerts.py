"""Pages of the alerts of a group of owners."""

from collections.abc import Sequence

from sqlalchemy.orm import Session

from celery_dynbeat.db.alert_models import ALERTS
from celery_dynbeat.db.statements import Row
from celery_dynbeat.store import group_pages
from celery_dynbeat.store.alerts.alerts import OPEN_INDEX, OWNER_INDEX, page
from celery_dynbeat.store.group_pages import GroupRows, Key, OwnerRows, Place
from celery_dynbeat.store.owners import with_rows


def page_of_group(
    session: Session, *, group: str, only_open: bool, place: Place | None, limit: int
) -> GroupRows:
    """Return up to ``limit`` alerts of a group, in the order of their ids in a part."""
    index, condition = OWNER_INDEX, None
    if only_open:
        index, condition = OPEN_INDEX, ALERTS.c.recovered_at.is_(None)

    def owners(above: str, number: int) -> Sequence[str]:
        return with_rows(
            session,
            ALERTS.c.owner,
            index,
            within=group,
            after=above,
            limit=number,
            condition=condition,
        )

    def read(owner: str, key: Key | None, _number: int) -> OwnerRows:
        (after,) = key or (0,)
        rows = page(session, owner=owner, only_open=only_open, after=after, limit=limit + 1)
        return OwnerRows(rows[:limit], _key_of(rows[limit - 1]) if len(rows) > limit else None)

    return group_pages.page(
        owners=owners, read=read, key_of=_key_of, descending=False, place=place, limit=limit
    )


def _key_of(row: Row) -> Key:
    return (row.Alert.id,)
