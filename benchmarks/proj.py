"""The Celery application of the measured processes.

The environment variable ``DYNBEAT_BENCHMARK`` holds its configuration as JSON. Three keys are not
Celery's. ``plain``: run without Dynbeat, as the baselines do. ``libraries``: modules that a plain
process imports. ``prune_after``: seconds after its start at which beat first deletes old history.
"""

import json
import os
from datetime import UTC, datetime, timedelta
from importlib import import_module
from typing import Any

from celery import Celery

VARIABLE = "DYNBEAT_BENCHMARK"
LONG_AGO = timedelta(days=400)

config: dict[str, Any] = json.loads(os.environ[VARIABLE])
plain: bool = config.pop("plain", False)
libraries: list[str] = config.pop("libraries", [])
prune_after: float | None = config.pop("prune_after", None)
for entry in config.get("beat_schedule", {}).values():
    # Due at once. Otherwise stock beat waits for one interval after its start.
    entry["last_run_at"] = datetime.now(UTC) - LONG_AGO

app = Celery("benchmark")
app.conf.update(config)
for library in libraries:
    import_module(library)
if not plain:
    # Not at the top: a baseline must not load celery_dynbeat and SQLAlchemy.
    from celery_dynbeat import Dynbeat

    dynbeat = Dynbeat(app)
    if prune_after is not None:
        from celery_dynbeat.beat import dispatcher

        dispatcher.FIRST_DELAY = timedelta(seconds=prune_after)


@app.task(name="noop")
def noop(*args: Any, **kwargs: Any) -> None:
    """Do nothing."""
    del args, kwargs


@app.task(name="fail")
def fail(user_id: int) -> None:
    """Raise the error of a task whose server is unreachable."""
    raise ConnectionError(f"mail.example does not answer for user {user_id}")
