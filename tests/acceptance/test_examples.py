"""The examples, started as a user starts them."""

import os
import re
import signal
import subprocess
import sys
import urllib.request
from pathlib import Path

import psutil
import pytest

from tests.support.servers.processes import OwnedProcess, is_alive
from tests.support.waiting import wait_until

EXAMPLES = Path(__file__).parents[2] / "examples"
OF_SERVERS = ("DYNBEAT_DEMO_DATABASE_URL", "DYNBEAT_DEMO_BROKER_URL")


def run(program, *options, within):
    environment = {key: value for key, value in os.environ.items() if key not in OF_SERVERS}
    return subprocess.run(
        [sys.executable, EXAMPLES / program, *options],
        env={**environment, "C_FORCE_ROOT": "1"},
        capture_output=True,
        text=True,
        timeout=within,
        check=False,
    )


@pytest.mark.quick
@pytest.mark.slow
def test_the_demo_succeeds_and_prints_its_checks():
    ended = run("quickstart/demo.py", within=100)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Summary" in ended.stdout
    assert "the cancelled one-off never ran" in ended.stdout
    assert "unfinished runs: 0" in ended.stdout


def test_each_shard_of_the_sharding_example_sends_the_runs_of_its_own_owners():
    ended = run("sharding/demo.py", within=60)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    sent = dict(re.findall(r"(shard_\d) sent the runs of (.+): {'succeeded': 5}", ended.stdout))
    # The routing is the same in each process and in each version of the example.
    assert sent == {
        "shard_0": "user:0, user:2, user:3, user:7, user:9",
        "shard_1": "user:1, user:4, user:5, user:6, user:8",
    }


@pytest.fixture
def flower_demo(tmp_path):
    environment = {key: value for key, value in os.environ.items() if key not in OF_SERVERS}
    process = OwnedProcess(
        [sys.executable, EXAMPLES / "flower" / "demo.py"],
        folder=tmp_path,
        log=tmp_path / "log",
        environment={**environment, "TMPDIR": str(tmp_path)},
    )
    yield process
    process.kill()


def read(url):
    # A literal address: only the Flower of the demo is queried.
    with urllib.request.urlopen(url, timeout=10) as page:  # noqa: S310
        return page.read().decode()


@pytest.mark.slow
def test_the_flower_demo_shows_all_states_until_it_is_interrupted(flower_demo, tmp_path):
    def address():
        text = (tmp_path / "log").read_text()
        assert flower_demo.exit_status is None, text
        return re.search(r"http://127\.0\.0\.1:\d+/dynbeat/schedules", text)

    def has_rows(shown):
        try:
            return "data-row" in read(shown)
        except OSError:
            # The demo ends with each of its programs, and prints which one ended and why.
            flower_demo.wait(within=10)
            pytest.fail((tmp_path / "log").read_text())

    url = wait_until(address, within=60)[0]
    for state in ("paused", "held", "failing", "finished", "quarantined"):
        shown = f"{url}?state={state}"
        wait_until(lambda shown=shown: has_rows(shown), within=30, message=state)
    programs = psutil.Process(flower_demo.pid).children(recursive=True)

    os.kill(flower_demo.pid, signal.SIGINT)

    assert flower_demo.wait(within=30) == 0
    assert len(programs) >= 3
    assert not any(map(is_alive, programs))
    assert list(tmp_path.glob("dynbeat-flower-*")) == []
