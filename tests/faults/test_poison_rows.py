"""Rows that the API would reject, among good rows: each shows its error and delays no other row."""

from datetime import UTC, datetime, timedelta

import pytest

from celery_dynbeat import Once
from celery_dynbeat.db.models import Run
from tests.support.applications import execute
from tests.support.fault_summary import SUMMARY_PROPERTY
from tests.support.sites import OWNER
from tests.support.waiting import wait_until

MOST_LINES = 6

GOOD, POISON_EVERY = 1_000, 3
#: The lag of the good rows may grow by this factor, plus some seconds on a busy machine.
FACTOR, SLACK = 3, 3.0
DEAD_EXCHANGE = '{"exchange": "not.declared", "routing_key": "x"}'
MEGABYTE = 1_000_000
#: Each with a part of the error of its row or its run; None: the row is valid and runs.
DAMAGES = {
    "text": ("trigger_spec = 'never on sunday'", "never on sunday"),
    "long-text": (f"trigger_spec = REPEAT('x', {MEGABYTE // 20})", "characters"),
    "zone": ("trigger_kind = 'cron', trigger_spec = '* * * * *', timezone = 'no zone'", "no zone"),
    "kind": ("trigger_kind = 'moon'", "moon"),
    "args": (f"args = '[{'1' * 5_000}]'", "args has too many digits"),
    "serializer": ('options = \'{"serializer": "clay-tablet"}\'', "clay-tablet"),
    "task": ("task = 'not.registered'", "NotRegistered"),
    "max-runs": ("max_runs = 2147483647", None),
    "deep": (f"kwargs = '{{\"deep\": {'[' * 90}{']' * 90}}}'", None),
    "megabyte": (f"args = CONCAT('[\"', REPEAT('x', {MEGABYTE}), '\"]'){{json}}", None),
}


def create_good(site, name):
    """Create a thousand one-offs, spread over two seconds."""
    begin = datetime.now(UTC) + timedelta(seconds=3)
    site.dynbeat.schedules.create_many(
        {
            "owner": OWNER,
            "name": f"{name}-{number}",
            "task": "probe.record",
            "trigger": Once(begin + timedelta(seconds=2 * number / GOOD)),
        }
        for number in range(GOOD)
    )


def create_poison(site, damages):
    """Create rows that are due among the good rows, and damage them before they are due."""
    begin = datetime.now(UTC) + timedelta(seconds=4)
    json = "::json" if "postgresql" in site.dynbeat.context.database.shown_url else ""
    for name, (damage, _) in damages.items():
        for number in range(POISON_EVERY):
            at = begin + timedelta(seconds=number / POISON_EVERY)
            site.mine.create(f"bad-{name}-{number}", task="probe.record", trigger=Once(at))
        statement = f"UPDATE dynbeat_schedule SET {damage} WHERE name LIKE 'bad-{name}-_'"
        execute(site.dynbeat, statement.replace("{json}", json).replace(":[", r"\:["))


def lag_of_good_rows(site, name):
    """Return the 99th percentile of the lag in seconds, when all good rows have succeeded."""
    good = Run.name.like(f"{name}-%")
    # Beat may write sent_at after a worker has written the outcome.
    ended = (good, Run.status == "succeeded", Run.sent_at.is_not(None))
    wait_until(lambda: site.count_runs(*ended) == GOOD, within=90, message=f"{name}: not all ended")
    runs = [run for run in site.all_runs() if run.name.startswith(f"{name}-")]
    lags = sorted((run.sent_at - run.fire_at).total_seconds() for run in runs)
    return lags[int(GOOD * 0.99)]


def stored_error(site, name):
    """Return the error of a row, or of its only run."""
    error = site.mine.get(name).error
    return error or next((run.error for run in site.runs(name)), None)


@pytest.mark.slow
@pytest.mark.timeout(600)
def test_a_thousand_good_rows_are_on_time_among_bad_rows(fault_site, combination, record_property):
    damages = dict(DAMAGES)
    if combination.database == "mariadb":
        # MariaDB rejects this nesting.
        del damages["deep"]
    if combination.broker == "rabbitmq":
        damages["exchange"] = (f"options = '{DEAD_EXCHANGE}'", "not.declared")
    fault_site.config["dynbeat_resend_after"] = 60
    # Beat waits 90 s for a missing exchange in production, and 7 s here.
    fault_site.constants["celery_dynbeat.broker.outages.MAX_TRIES"] = 4
    beat = fault_site.beat().wait_for_log("beat started")
    worker = fault_site.worker(pool="threads").wait_for_log("ready.")
    create_good(fault_site, "alone")
    alone = lag_of_good_rows(fault_site, "alone")

    create_good(fault_site, "mixed")
    create_poison(fault_site, damages)
    mixed = lag_of_good_rows(fault_site, "mixed")

    assert mixed < FACTOR * alone + SLACK
    for name, (_, error) in damages.items():
        for number in range(POISON_EVERY):
            bad = f"bad-{name}-{number}"
            if error is None:
                fault_site.wait_for_run(bad, "succeeded")
            else:
                wait_until(lambda: stored_error(fault_site, bad), within=30, message=bad)  # noqa: B023
                assert error in stored_error(fault_site, bad)
            # The log names each row a few times, not in each pass.
            assert beat.text.count(bad) <= MOST_LINES
    assert (beat.exit_status, worker.exit_status) == (None, None)
    record_property(
        SUMMARY_PROPERTY,
        f"{len(damages) * POISON_EVERY} poison rows among {GOOD} [{combination}]:"
        f" lag p99 {alone:.2f} s without, {mixed:.2f} s with;"
        f" {len(beat.text.splitlines())} lines of log",
    )
