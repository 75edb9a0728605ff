"""docs/reference/settings.md describes each setting with its default, and no other."""

import re
from dataclasses import MISSING, fields
from datetime import timedelta
from pathlib import Path

import pytest

from celery_dynbeat.common.settings import Settings

PAGE = Path(__file__).parents[3] / "docs" / "reference" / "settings.md"
ROW = re.compile(r"^\| ((?:`dynbeat_\w+`(?:, )?)+) \| (.+?) \| .+ \|$", re.MULTILINE)
SETTINGS = {f"dynbeat_{field.name}": field for field in fields(Settings)}
#: What a default of None means, in the words of the page.
NONE = {"none", "never", "no limit", "any"}
#: The default depends on the connection, the application or another setting.
COMPUTED = {
    "dynbeat_schema": "the schema of the connection",
    "dynbeat_create_tables": "on SQLite only",
    "dynbeat_application": "`app.main`",
    "dynbeat_timezone": "the application's `timezone`",
    "dynbeat_metrics": "off",
    "dynbeat_alert_urls": "none",
    "dynbeat_owner_limits": "none",
}


def described():
    """Return each setting of the page with its default, in the order of the page."""
    rows = ROW.findall(PAGE.read_text())
    return [(name, shown) for names, shown in rows for name in re.findall(r"dynbeat_\w+", names)]


def shown_as(value):
    """Return the texts by which the page may show a default."""
    if value is None:
        return NONE
    if isinstance(value, bool):
        return {f"`{value}`"}
    if isinstance(value, timedelta):
        seconds = value.total_seconds()
        days = {f"{value.days} days"} if value.days else set()
        return {f"{seconds:g}", *days, *({"never"} if not value else ())}
    if isinstance(value, str):
        return {f'`"{value}"`', f"`{value}`"}
    return {f"{value}", f"`{value}`"}


def test_the_page_has_one_row_for_each_setting():
    names = [name for name, _ in described()]

    assert sorted(names) == sorted(SETTINGS)


@pytest.mark.parametrize(("name", "shown"), described())
def test_the_page_has_the_default(name, shown):
    field = SETTINGS[name]
    default = field.default if field.default is not MISSING else field.default_factory()

    assert shown in (shown_as(default) if name not in COMPUTED else {COMPUTED[name]})
