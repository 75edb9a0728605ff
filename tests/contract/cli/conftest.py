"""Commands that run in the process of the test, and what they print."""

import json

import pytest
from celery.bin.base import CLIContext
from click.testing import CliRunner

from celery_dynbeat.cli import dynbeat as group


@pytest.fixture
def command(dynbeat):
    """Return a function that runs a command and returns its result."""

    def run(*arguments, **options):
        context = CLIContext(app=dynbeat.app, no_color=True, workdir=None)
        return CliRunner().invoke(group, arguments, obj=context, **options)

    return run


@pytest.fixture
def shown(command):
    """Return a function that runs a command that succeeds, and returns the lines of stdout."""

    def run(*arguments, **options):
        result = command(*arguments, **options)
        assert result.exit_code == 0, result.output
        return result.stdout.splitlines()

    return run


@pytest.fixture
def upcoming(shown):
    """Return a function that returns the fire times of ``show``: title, UTC, local, note."""

    def run(name, *arguments):
        rows = [line.split("\t") for line in shown("show", name, *arguments)]
        return [tuple(row) for row in rows if row[0] in {"upcoming", "skipped"}]

    return run


@pytest.fixture
def as_json(shown):
    """Return a function that runs a command with --json, and returns the objects."""
    return lambda *arguments: [json.loads(line) for line in shown(*arguments, "--json")]


@pytest.fixture
def refused(command):
    """Return a function that runs a command that fails, and returns its status and stderr."""

    def run(*arguments, **options):
        result = command(*arguments, **options)
        assert result.exit_code != 0
        assert result.exception is None or isinstance(result.exception, SystemExit)
        return result.exit_code, result.stderr

    return run
