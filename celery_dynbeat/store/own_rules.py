"""The condition that a schedule has its own alert rules."""

from sqlalchemy import ColumnElement, Text, and_, cast

from celery_dynbeat.db.tables import SCHEDULES


def names_rule(rule: str) -> ColumnElement[bool]:
    """Return the condition that the own rules of a schedule name ``rule``.

    The column is compared as text: rules that Python cannot read do not matter here.
    """
    rules = SCHEDULES.c.alerts
    return and_(rules.is_not(None), cast(rules, Text).like(f'%"{rule}"%'))
