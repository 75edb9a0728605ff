"""rerun, backfill and requests: one run, many runs, their requests, and --wait."""

import json
import threading
from datetime import timedelta
from types import SimpleNamespace

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_dynbeat import Cron
from celery_dynbeat.cli import dynbeat as group
from celery_dynbeat.cli import waiting
from celery_dynbeat.common.states import Status
from celery_dynbeat.testing import ManualBeat
from tests.support.applications import MINUTELY, application, execute
from tests.support.suites import each_database
from tests.support.waiting import wait_until

NO_RUN = "01a203ec-f449-7a5a-aa02-b03ca0cb18fc"
OWNER = ("--owner", "user:42")


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


def test_a_run_id_needs_no_owner(shown, mine, failed):
    (text,) = shown("rerun", failed[0].id)

    rerun = mine.runs("n", origin="rerun")[0]
    assert rerun.rerun_of == failed[0].id
    assert text == f"recorded run {rerun.id} of schedule 'n'; beat sends it"


@pytest.mark.parametrize("given", [(), ("--now",)])
def test_only_with_now_a_rerun_and_a_backfill_start_in_quiet_hours(
    shown, mine, beat, failed, given
):
    mine.set_quiet_hours(["00:00-23:59"])
    before = len(beat.publisher.sent)

    shown("rerun", failed[0].id, *given)
    shown("backfill", "n", *OWNER, "--since", "1h", *given)
    for _ in range(3):
        beat.run_until_idle()

    sent = {run.origin for run in beat.publisher.sent[before:]}
    assert sent == ({"rerun", "backfill"} if given else set())


def test_a_given_owner_sees_its_own_runs_only(refused, shown, failed):
    status, error = refused("rerun", failed[0].id, "--owner", "user:7")

    assert (status, len(error.splitlines())) == (1, 1)
    assert failed[0].id in error
    assert shown("show-run", failed[0].id)[-1]
    assert refused("show-run", failed[0].id, "--owner", "user:7")[0] == 1


@each_database
def test_many_runs_are_run_again_after_a_confirmation(shown, as_json, refused, mine, failed):
    status, error = refused("rerun", "--since", "1h", *OWNER)
    assert (status, [*mine.requests()]) == (2, [])
    assert "--yes" in error

    (text,) = shown("rerun", "--since", "1h", *OWNER, "--yes")

    (info,) = mine.requests()
    assert text == f"rerun {info.id}: running, 0 of {len(failed)} runs created, 0 excluded"
    assert as_json("requests", *OWNER) == [info.to_dict()]
    assert as_json("requests", str(info.id)) == [info.to_dict()]
    (line,) = shown("requests", "--kind", "rerun", *OWNER)
    assert line.split("\t")[:4] == [str(info.id), "rerun", "user:42", ""]
    assert shown("requests", "--kind", "backfill", "--all-owners") == []
    (text,) = shown("requests", str(info.id), "--cancel", "--reason", "wrong span")
    assert text.startswith(f"cancelled rerun {info.id}: cancelled")
    assert mine.changes("", action="cancel_request")[0].reason == "wrong span"


@each_database
def test_a_backfill_can_be_waited_for(dynbeat, mine, beat, command):
    mine.create("n", task="t", trigger=Cron("* * * * *", timezone="UTC"))
    results = []
    arguments = ("backfill", "n", *OWNER, "--since", "3m", "--wait", "--json")
    waiting = threading.Thread(target=lambda: results.append(command(*arguments)))
    waiting.start()

    def is_done():
        beat.run_until_idle()
        end(dynbeat, status="succeeded", origin="backfill")
        return results

    wait_until(is_done, within=30)
    waiting.join(timeout=20)

    (result,) = results
    shown = json.loads(result.stdout)
    assert (shown["kind"], shown["status"], shown["ended"]) == (
        "backfill",
        "finished",
        {"succeeded": shown["total"]},
    )
    assert {run.request_id for run in mine.runs("n", origin="backfill")} == {shown["id"]}


def test_a_wait_without_progress_says_what_the_runs_wait_for(database_url, clock, monkeypatch):
    with application(database_url, clock=clock, max_running_per_owner=1) as dynbeat:
        dynbeat.context.prepare()
        mine, beat, polls = dynbeat.schedules.for_owner("user:42"), ManualBeat(dynbeat), []
        minutely = Cron("* * * * *", timezone="UTC")
        mine.create("n", task="t", trigger=minutely, overlap="allow")

        def work(seconds):
            polls.append(seconds)
            clock.advance(timedelta(seconds=seconds))
            beat.run_until_idle()
            if len(polls) > 2 * waiting.STALLED_POLLS:
                end(dynbeat, status="succeeded", origin="backfill")

        # The work of others takes place between the polls.
        monkeypatch.setattr(waiting, "time", SimpleNamespace(sleep=work))
        arguments = ("backfill", "n", *OWNER, "--since", "3m", "--wait")
        context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)
        result = CliRunner().invoke(group, arguments, obj=context)

    assert result.exit_code == 0, result.output
    assert result.stderr == "2 of 3 wait for a place: owner user:42 has 1 of 1 running\n"


def test_requests_of_all_owners_are_listed_without_an_owner(as_json, dynbeat, mine, failed):
    mine.rerun_many(since=failed[-1].scheduled_for)
    dynbeat.schedules.rerun_many(since=failed[-1].scheduled_for, status=["lost", "failed"])

    assert [each["owner"] for each in as_json("requests")] == [None, "user:42"]


def test_a_backfill_from_the_shell_has_the_span_of_its_options(shown, mine, refused):
    mine.create("n", task="t", trigger=Cron("* * * * *", timezone="UTC"))

    (text,) = shown("backfill", "n", *OWNER, "--since", "10m", "--until", "5m")

    (info,) = mine.requests("n")
    assert text == f"backfill {info.id}: running, 0 of 5 runs created, 0 excluded"
    assert info.until - info.since == timedelta(minutes=5)
    assert refused("backfill", "n", *OWNER)[0] == 2
    assert refused("backfill", "nope", *OWNER, "--since", "1h")[0] == 1


def test_the_question_says_how_many_runs_run_again(refused, command, mine, failed, monkeypatch):
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation._can_ask", lambda: True)

    status, question = refused("rerun", "--since", "1h", *OWNER, input="n\n")

    assert status == 1
    assert f"Run {len(failed)} failed or lost runs of owner 'user:42' since" in question
    assert mine.requests() == []
    assert command("rerun", "--since", "1h", *OWNER, input="y\n").exit_code == 0
    assert [each.total for each in mine.requests()] == [len(failed)]


@pytest.mark.usefixtures("failed")
def test_nothing_to_run_again_needs_no_answer(command, mine, monkeypatch):
    monkeypatch.setattr("celery_dynbeat.cli.base.invocation._can_ask", lambda: True)

    result = command("rerun", "--since", "1s", "--status", "lost", *OWNER)

    assert result.exit_code == 0
    assert "nothing to run again: 0 lost runs of owner 'user:42' since" in result.stdout
    assert mine.requests() == []


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


@pytest.mark.parametrize(
    ("arguments", "status", "words"),
    [
        (("99",), 1, "there is no request 99; `dynbeat requests` shows those that exist"),
        (("99", "--cancel", *OWNER), 1, "owner 'user:42' has no request 99;"),
        (("--cancel",), 2, "--cancel needs REQUEST_ID"),
    ],
)
def test_a_refusal_of_requests_is_clear(refused, arguments, status, words):
    exit_status, error = refused("requests", *arguments)

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


def test_run_waits_too(dynbeat, command, mine):
    mine.create("n", task="t", trigger=MINUTELY)
    results = []
    waiting = threading.Thread(target=lambda: results.append(command("run", "n", *OWNER, "--wait")))
    waiting.start()
    wait_until(lambda: end(dynbeat, status="succeeded", origin="manual"), within=20)
    waiting.join(timeout=20)

    assert results[0].exit_code == 0


def test_many_runs_can_be_waited_for(dynbeat, beat, command, failed):
    results = []
    arguments = ("rerun", "--since", "1h", *OWNER, "--yes", "--wait")
    waiting = threading.Thread(target=lambda: results.append(command(*arguments)))
    waiting.start()

    def is_done():
        beat.run_until_idle()
        end(dynbeat, status="succeeded", origin="rerun")
        return results

    wait_until(is_done, within=30)
    waiting.join(timeout=20)

    (result,) = results
    assert result.exit_code == 0
    number = len(failed)
    assert result.stdout == (
        f"rerun 1: finished, {number} of {number} runs created, 0 excluded;"
        f" of the new runs: {number} succeeded\n"
    )


def test_a_wait_for_many_runs_ends_with_the_last_of_them_and_counts_failures(
    dynbeat, mine, beat, command, failed
):
    results = []
    arguments = ("rerun", "--since", "1h", *OWNER, "--yes", "--wait", "--json")
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
    assert json.loads(result.stdout)["ended"] == {"succeeded": len(failed) - 1, "failed": 1}


def test_a_wait_counts_only_the_runs_of_its_own_request(dynbeat, mine, beat, command, failed):
    results = []
    arguments = ("rerun", "--since", "1h", *OWNER, "--yes", "--wait", "--json")
    waiting = threading.Thread(target=lambda: results.append(command(*arguments)))
    waiting.start()

    def is_made():
        beat.run_until_idle()
        requests = list(mine.requests())
        return requests and requests[0].status == "finished"

    wait_until(is_made, within=30)
    first = mine.runs("n", origin="rerun").items[0].id
    ended = "UPDATE dynbeat_run SET status = :status, overdue_at = NULL, finished_at = created_at"
    execute(dynbeat, f"{ended} WHERE id = :id", status="failed", id=first)
    # At the same instant, and not of the request.
    other = mine.rerun(first).id
    execute(
        dynbeat,
        f"{ended} WHERE origin = 'rerun' AND finished_at IS NULL AND id <> :id",
        status="succeeded",
        id=other,
    )
    waiting.join(timeout=30)

    (result,) = results
    assert json.loads(result.stdout)["ended"] == {"succeeded": len(failed) - 1, "failed": 1}
    assert (mine.get_run(other).status, mine.get_run(other).request_id) == ("pending", None)
