"""The recipe of docs/how-to/monitor.md sends one check-in per run of each monitored schedule."""

import json
import subprocess
import sys
from uuid import UUID

import pytest

from tests.support.processes import REPOSITORY

pytestmark = pytest.mark.empty_database


def test_each_monitored_run_is_one_check_in(sqlite_url):
    # A process of its own: the integration patches Celery and cannot be removed.
    command = [sys.executable, "-m", "tests.support.sentry_application", sqlite_url]
    ran = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    seen = json.loads(ran.stdout)

    def of(name):
        hex_id = UUID(seen["runs"][name]).hex
        return [one["status"] for one in seen["check_ins"] if one["check_in_id"] == hex_id]

    assert of("nightly-ok") == ["in_progress", "ok"]
    assert of("nightly-fail") == ["in_progress", "error"]
    assert of("nightly-retry") == ["in_progress", "ok"]
    # The worker refused the second message.
    assert of("nightly-twice") == ["in_progress", "ok"]
    # The run was lost before this worker started.
    assert of("nightly-lost") == ["error"]
    assert len(seen["check_ins"]) == 9
    first = next(one for one in seen["check_ins"] if one["monitor_slug"] == "nightly-ok")
    assert first["monitor_config"]["schedule"] == {"type": "interval", "value": 1, "unit": "hour"}
