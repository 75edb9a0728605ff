"""The rules of examples/monitoring, evaluated on the metrics of a recorded incident.

``tests/faults/test_monitoring_incident.py`` has caused and recorded it: 10 schedules that work, a
damaged row, 1,000 failing schedules, a target of alerts that hangs, a killed worker, a
broker that is away for 150 s, a queue without a worker, and finally no beat.
"""

import gzip
import json
from datetime import timedelta
from pathlib import Path

import pytest

from tests.acceptance.test_monitoring_example import RULES, prometheus_tools  # noqa: F401
from tests.support.promtool import check_firing

RECORDED = json.loads(gzip.decompress((Path(__file__).parent / "incident.json.gz").read_bytes()))
INTERVAL = timedelta(seconds=RECORDED["interval"])
#: The alerts that fire at the end of each phase.
FIRING = {
    "healthy": (),
    "failing": ("DynbeatQuarantined", "DynbeatAlertDropped", "DynbeatFailureRate"),
    "worker killed": (
        "DynbeatFailureRate",
        "DynbeatQuarantined",
        "DynbeatAlertDropped",
    ),
    "broker away": (
        "DynbeatFailureRate",
        "DynbeatQuarantined",
        "DynbeatAlertDropped",
        "DynbeatNoProgress",
        "DynbeatOverdue",
    ),
    "no worker for a queue": (
        "DynbeatQuarantined",
        "DynbeatAlertDropped",
        "DynbeatOldestPending",
    ),
    # All gauges of the database end with the beats.
    "no beat": ("DynbeatNoBeat", "DynbeatAlertDropped"),
}


@pytest.mark.parametrize(("phase", "alerts"), FIRING.items(), ids=FIRING)
def test_the_rules_fire_in_a_phase_of_the_recorded_incident(tmp_path, phase, alerts):
    at = RECORDED["marks"][phase] * INTERVAL

    check_firing(RULES, RECORDED["series"], {at: alerts}, interval=INTERVAL, folder=tmp_path)


def test_the_recording_has_all_phases():
    assert set(FIRING) <= set(RECORDED["marks"])
