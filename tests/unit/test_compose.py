"""Celery accepts the command lines of the compose files, and their settings."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from tests.support.celery_commands import unknown_words
from tests.support.versions import needs_celery

ROOT = Path(__file__).parents[2]
SEVERAL_HOSTS = ROOT / "examples" / "several-hosts"
#: The file -> the folder with its application.
FILES = {
    ROOT / "docker-compose.yml": ROOT / "examples" / "quickstart",
    SEVERAL_HOSTS / "compose.yml": SEVERAL_HOSTS,
}


def commands(file):
    """Return the command lines of Celery in a compose file."""
    services = yaml.safe_load(file.read_text())["services"].values()
    lines = [service.get("command", []) for service in services]
    return [line for line in lines if line[:1] == ["celery"]]


# Two services of a file may have the same command line.
COMMANDS = {
    f"{folder.name}: {' '.join(line)}": (folder, line)
    for file, folder in FILES.items()
    for line in commands(file)
}


@needs_celery(5, 7, "a name and remote control of beat")
@pytest.mark.parametrize(("folder", "command"), COMMANDS.values(), ids=COMMANDS)
def test_every_command_exists_with_its_options(folder, command):
    program, option, app, *words = command

    assert (program, option) == ("celery", "-A")
    assert (folder / f"{app}.py").is_file()
    assert unknown_words(words) == []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_all_programs_are_started(file):
    lines = commands(file)
    programs = {" ".join(line[3:5]) for line in lines if line[3] == "dynbeat"}
    assert programs == {"dynbeat schema", "dynbeat flower"}
    assert {line[3] for line in lines} == {"dynbeat", "beat", "worker"}


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.parent.name)
def test_every_service_has_limits_and_a_grace_period(file):
    services = yaml.safe_load(file.read_text())["services"]

    assert len(services) >= 6
    for name, service in services.items():
        limits = service["deploy"]["resources"]["limits"]
        assert set(limits) == {"cpus", "memory"}, name
        # Docker kills a program 10 s after its signal to stop, unless the file says otherwise.
        assert int(service["stop_grace_period"].rstrip("s")) >= 30, name


def test_the_settings_of_several_hosts_are_valid():
    services = yaml.safe_load((SEVERAL_HOSTS / "compose.yml").read_text())["services"]
    environment = {**services["api1"]["environment"], "PYTHONPATH": str(ROOT)}

    shown = subprocess.run(
        [
            sys.executable,
            "-c",
            "import api; print(api.dynbeat.context.settings.expected_nodes['beat'])",
        ],
        cwd=SEVERAL_HOSTS,
        env={**os.environ, **environment},
        capture_output=True,
        text=True,
        check=False,
    )

    beats = [line for line in commands(SEVERAL_HOSTS / "compose.yml") if line[3] == "beat"]
    assert (shown.stdout, shown.stderr) == (f"{len(beats)}\n", "")
