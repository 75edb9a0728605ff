"""Commands that run in the process of the test."""

import json

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_dynbeat.cli import dynbeat as group


@pytest.fixture
def imported(dynbeat):
    """Return a function that runs ``dynbeat import ... --json``; it returns results by name."""

    def run(*arguments, status=0):
        context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)
        result = CliRunner().invoke(group, ["import", *arguments, "--json"], obj=context)
        assert result.exit_code == status, result.output
        return {each["name"]: each for each in map(json.loads, result.stdout.splitlines())}

    return run


@pytest.fixture
def command(dynbeat):
    """Return a function that runs ``dynbeat import ...`` and returns its result."""

    def run(*arguments):
        context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)
        return CliRunner().invoke(group, ["import", *arguments], obj=context)

    return run
