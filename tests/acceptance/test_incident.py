"""An incident with five causes at once. The first sentence of ``explain`` names the right one."""

import pytest

from celery_dynbeat import Every
from tests.support.applications import execute
from tests.support.waiting import wait_until

HELD = "user:held"


def begin_incident(site):
    """Create five schedules that do not run as planned, each for another reason."""
    mine, held = site.mine, site.dynbeat.schedules.for_owner(HELD)
    site.create_once("nowhere", task="probe.record", queue="reports")
    site.create_once("failing", task="probe.fail")
    gate = str(site.gate("open"))
    mine.create(
        "overlapping", task="probe.hold", trigger=Every(1), overlap="skip", kwargs={"gate": gate}
    )
    mine.create("damaged", task="probe.record", trigger=Every(1))
    execute(site.dynbeat, "UPDATE dynbeat_schedule SET trigger_spec = 'P' WHERE name = 'damaged'")
    held.create("digest", task="probe.record", trigger=Every(1))
    with site.dynbeat.acting(actor="alice"):
        held.hold(reason="migration")


def wait_for_incident(site):
    site.wait_for_run("nowhere", "sent")
    wait_until(lambda: site.mine.get("failing").failing_since, within=20, message="not failing")
    site.wait_for_run("overlapping", "skipped")
    wait_until(
        lambda: site.mine.get("damaged").next_run_at is None, within=20, message="not quarantined"
    )


@pytest.mark.slow
def test_the_first_sentence_names_the_cause_of_each_schedule(redis_site):
    site = redis_site
    begin_incident(site)
    site.worker()
    site.beat()
    wait_for_incident(site)

    expected = {
        "nowhere": ("no_worker_for_queue", "queue 'reports'", "no living worker consumes"),
        "failing": ("failed", "failed after", "No run has succeeded for"),
        "overlapping": ("skipped_overlap", "the previous run had not ended", "on worker w1@test"),
        "damaged": ("quarantined", "it is quarantined", "InvalidTriggerError"),
    }
    for name, (cause, *parts) in expected.items():
        found = site.mine.explain(name)
        assert found.cause == cause, found.sentence
        assert all(part in found.sentence for part in parts), found.sentence
    held = site.dynbeat.schedules.for_owner(HELD)
    found = held.explain("digest")
    assert found.cause == "held"
    assert "by alice because of 'migration'" in found.sentence
    assert not held.runs()
    site.gate("open").touch()
