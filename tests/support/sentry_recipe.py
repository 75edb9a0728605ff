"""The recipe of docs/how-to/monitor.md, executed."""

import re
from typing import Any

from tests.support.processes import REPOSITORY

_PAGE = (REPOSITORY / "docs" / "how-to" / "monitor.md").read_text()
_SECTION = _PAGE.partition("\n## Sentry Crons\n")[2]
#: The names that the recipe defines. Celery has only weak references to its receivers.
recipe: dict[str, Any] = {}
exec(re.findall(r"```python\n(.*?)```", _SECTION, re.DOTALL)[0], recipe)  # noqa: S102 - our own page


def monitor(*names: str) -> None:
    """List schedules as monitors of the recipe."""
    hourly = {"schedule": {"type": "interval", "value": 1, "unit": "hour"}, "timezone": "UTC"}
    recipe["MONITORS"].update(dict.fromkeys(names, hourly))
