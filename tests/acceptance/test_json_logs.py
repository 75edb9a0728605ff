"""With ``dynbeat_log_format = "json"`` each record of real processes is one line of JSON."""

import json

from tests.support.sites import OWNER
from tests.support.waiting import wait_until

SECRET = "4111-1111-of-a-card"


def records(path):
    return [json.loads(line) for line in path.read_text().splitlines()]


def test_beat_worker_and_tasks_write_json(file_site):
    file_site.config["dynbeat_log_format"] = "json"
    beat_log, worker_log = (file_site.folder / name for name in ("beat.log", "worker.log"))
    beat = file_site.beat("-f", str(beat_log))
    worker = file_site.worker("-f", str(worker_log), "-l", "DEBUG")
    file_site.create_once("log", kwargs={"secret": SECRET})
    file_site.create_once("fail", kwargs={"unexpected": SECRET})
    file_site.create_once("unknown", kwargs={"secret": SECRET})
    run = file_site.wait_for_run("log", "succeeded")
    failed = file_site.wait_for_run("fail", "failed")
    file_site.wait_for_run("unknown", "failed")
    wait_until(lambda: "succeeded in" in worker_log.read_text(), within=20)
    beat.terminate()
    worker.terminate()

    of_beat, of_worker = records(beat_log), records(worker_log)
    sent = [each for each in of_beat if each.get("event") == "runs_dispatched"]
    assert {sent_run["schedule"] for each in sent for sent_run in each["runs"]} == {
        *("log", "fail", "unknown")
    }
    assert sent[0]["node"].startswith("celerybeat@")
    of_run = {"owner": OWNER, "schedule": "log", "run_id": run.id, "attempt": 1}
    for message in ("one\ntwo", "printed", f"Task probe.log[{run.id}] succeeded in"):
        (found,) = [each for each in of_worker if each["message"].startswith(message)]
        assert {key: found[key] for key in of_run} == of_run
        assert (found["task"], found["task_id"]) == ("probe.log", run.id)
        assert found["node"] == "w1@test"
    received = [each for each in of_worker if each["message"].endswith("received")]
    assert {each["run_id"] for each in received} == {run.id, failed.id}
    (error,) = [each for each in of_worker if each.get("exception", {}).get("type") == "TypeError"]
    assert (error["run_id"], error["schedule"]) == (failed.id, "fail")
    assert SECRET not in beat_log.read_text() + worker_log.read_text() + beat.text + worker.text
