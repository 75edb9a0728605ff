"""Celery accepts the command lines of the compose files, and their settings."""

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
