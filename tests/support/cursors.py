"""Cursors of pages that no test has read."""

from celery_dynbeat.api.results import cursors
from celery_dynbeat.store.schedules.schedule_pages import Order


def cursor_after(owner: str, name: str) -> str:
    """Return the cursor of a page by owner and name that ends with this schedule."""
    return cursors.encode(Order.OWNER, (owner, name))
