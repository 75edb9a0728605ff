"""rerun and backfill: one run, many runs, their batches, and --wait."""

import json
import threading
from datetime import timedelta

import pytest

from celery_dynbeat.common.states import Status
from tests.support.applications import MINUTELY, execute
from tests.support.suites import each_database
from tests.support.waiting import wait_until

NO_RUN = "01a203ec-f449-7a5a-aa02-b03ca0cb18fc"
OWNER = ("--owner", "user:42")
#: All turns of a batch come within a second.
FAST = ("--per-minute", "6000")


@pytest.fixture
def failed(dynbeat, mine, beat, clock):
    """Return the failed runs of a schedule, the newest first."""
    mine.create("n", task="t", trigger=MINUTELY)
    for _ in range(3):
        clock.advance(timedelta(minutes=1))
        beat.run_until_idle()
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET status = 'failed', overdue_at = NULL, finished_at = sent_at,"
        " error = 'ValueError: no'",
    )
    clock.advance(timedelta(seconds=1))
    return mine.runs("n")


def end(dynbeat, *, status, origin):
    """End the runs of an origin, as a worker does. Return their number."""
    return execute(
        dynbeat,
        "UPDATE dynbeat_run SET status = :status, overdue_at = NULL, finished_at = created_at,"
        " error = NULL WHERE origin = :origin AND finished_at IS NULL",
        status=status,
        origin=origin,
    )


def test_a_given_owner_sees_its_own_runs_only(refused, shown, failed):
    status, error = refused("rerun", failed[0].id, "--owner", "user:7")

    assert (status, len(error.splitlines())) == (1, 1)
    assert failed[0].id in error
    assert shown("runs", failed[0].id)[-1]
    assert refused("runs", failed[0].id, "--owner", "user:7")[0] == 1


@each_database
def test_a_batch_is_listed_and_cancelled_by_its_id(shown, as_json, refused, mine, failed):
    status, error = refused("rerun", "--since", "1h", *OWNER)
    assert (status, [*mine.runs(origin="rerun")]) == (2, [])
    assert "--yes" in error

    (text,) = shown("rerun", "--since", "1h", *OWNER, "--yes")

    runs = mine.runs(origin="rerun")
    batch_id = runs[0].batch_id
    assert text == f"batch {batch_id}: recorded {len(failed)} runs, 0 excluded"
    assert as_json("runs", "--batch", batch_id) == [run.to_dict() for run in runs]
    assert as_json("runs", "--batch", batch_id, "--owner", "user:7") == []
    assert refused("cancel", "--batch", batch_id)[0] == 2
    arguments = ("--batch", batch_id, "--yes", "--reason", "wrong span")
    assert shown("cancel", *arguments, "--owner", "user:7") == ["cancelled 0 runs"]
    assert shown("cancel", *arguments) == [f"cancelled {len(failed)} runs"]
    assert mine.get_batch(batch_id).counts == {"revoked": len(failed)}
    assert mine.changes("n", action="cancel")[0].reason == "wrong span"


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        ((), 2, "give either RUN_ID or --since"),
        ((NO_RUN, "--since", "1h"), 2, "give either RUN_ID or --since"),
        (("nope",), 2, "'nope' is not the id of a run; `dynbeat runs` shows the ids"),
        ((NO_RUN,), 1, f"there is no run {NO_RUN}; `dynbeat runs` shows"),
        (("--since", "1h", "--status", "skipped"), 2, "'skipped' is not one of"),
        (("--since", "1h", "--name", "nope", "--yes"), 1, "no schedule named 'nope'"),
    ],
)
def test_a_refusal_is_clear(refused, arguments, status, words):
    exit_status, error = refused("rerun", *arguments)

    assert exit_status == status
    assert words in error


@pytest.mark.parametrize(("status", "exit_status"), [(Status.SUCCEEDED, 0), (Status.FAILED, 1)])
def test_wait_ends_with_the_run_and_its_outcome(dynbeat, command, failed, status, exit_status):
    results = []
    waiting = threading.Thread(
        target=lambda: results.append(command("rerun", failed[0].id, "--wait"))
    )
    waiting.start()
    wait_until(lambda: end(dynbeat, status=status, origin="rerun"), within=20)
    waiting.join(timeout=20)

    (result,) = results
    assert result.exit_code == exit_status, result.output
    assert result.stdout.endswith(f"of schedule 'n' {status}\n")


def test_a_wait_for_many_runs_ends_with_the_last_of_them_and_counts_failures(
    dynbeat, mine, beat, command, failed
):
    results = []
    arguments = (
        "rerun",
        "--since",
        "1h",
        *OWNER,
        "--yes",
        "--per-minute",
        "6000",
        "--wait",
        "--json",
    )
    waiting = threading.Thread(target=lambda: results.append(command(*arguments)))
    waiting.start()

    def are_made():
        beat.run_until_idle()
        runs = mine.runs("n", origin="rerun")
        return runs if len(runs) == len(failed) else []

    first = wait_until(are_made, within=30).items[0].id
    execute(
        dynbeat,
        "UPDATE dynbeat_run SET status = 'failed', overdue_at = NULL, finished_at = created_at"
        " WHERE id = :id",
        id=first,
    )
    assert not results
    end(dynbeat, status="succeeded", origin="rerun")
    waiting.join(timeout=30)

    (result,) = results
    assert result.exit_code == 1
    assert json.loads(result.stdout)["counts"] == {"succeeded": len(failed) - 1, "failed": 1}


@pytest.mark.parametrize("given", [(), ("--now",)])
def test_only_with_now_a_rerun_and_a_backfill_start_in_quiet_hours(
    shown, mine, beat, failed, given
):
    mine.set_quiet_hours(["00:00-23:59"])
    before = len(beat.publisher.sent)

    shown("rerun", failed[0].id, *given)
    shown("run", "n", *OWNER, "--since", "1h", *given)
    for _ in range(3):
        beat.run_until_idle()

    sent = {run.origin for run in beat.publisher.sent[before:]}
    assert sent == ({"rerun", "backfill"} if given else set())
