"""Cursors of pages that no test has read."""

from celery_dynbeat.api.calls import encode_cursor
from celery_dynbeat.common.filters import Order


def cursor_after(owner: str, name: str) -> str:
    """Return the cursor of a page by owner and name that ends with this schedule."""
    return encode_cursor(Order.OWNER, (owner, name))
