"""The examples, started as a user starts them."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

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


@pytest.mark.slow
def test_the_demo_succeeds_and_prints_its_checks():
    ended = run("quickstart/demo.py", within=40)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "Summary" in ended.stdout
    assert "the cancelled one-off never ran" in ended.stdout
    assert "unfinished runs: 0" in ended.stdout


@pytest.mark.slow
def test_the_load_example_ends_with_an_outcome_for_each_run():
    ended = run("load/load.py", "--users=20", "--seconds=5", within=60)

    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "lag p99" in ended.stdout
