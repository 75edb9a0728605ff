"""docs/tutorial.md: its files and its commands, in one shell, print what the page shows."""

import os
import pty
import re
import sys
from pathlib import Path

import pytest

from tests.support.servers.processes import OwnedProcess

PAGE = Path(__file__).parents[2] / "docs" / "tutorial.md"
BLOCK = re.compile(r"^```(\w+)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
#: Between two commands. A shell prints it.
MARK = "-- next command --"
#: A busy machine needs longer than a reader.
PATIENCE = 2
COLOUR = re.compile(r"\x1b\[[0-9;]*m")


def blocks(kind):
    return [text for name, text in BLOCK.findall(PAGE.read_text()) if name == kind]


def commands():
    """Return the commands of the page, each with the lines that it prints."""
    found = []
    for line in "".join(blocks("console")).splitlines():
        if line.startswith("$ "):
            found.append((line.removeprefix("$ "), []))
        else:
            found[-1][1].append(line)
    return found


def shape(line):
    """Return a line with each number, id and duration as ``0``, and without spaces at its end."""
    line = COLOUR.sub("", line).replace("\r", "").rstrip()
    line = re.sub(r"\b[0-9a-f]{8}-[0-9a-f-]{27}\b", "0", line)
    line = re.sub(r"\b\d+(\.\d+)? (ms|s|h|d|min)\b", "0", line)
    return re.sub(r"\s+", " ", re.sub(r"\d+([.:-]\d+)*", "0", line))


def run(folder, script):
    """Run a script in a shell with a terminal, as the page shows it; return what it prints."""
    log, file = folder / "printed", folder / "tutorial.sh"
    file.write_text(script)
    environment = {
        "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        "C_FORCE_ROOT": "1",
        "COLUMNS": "116",
        "PYTHONWARNINGS": "ignore",
    }
    program = "import pty, sys; sys.exit(pty.spawn(['bash', sys.argv[1]]) >> 8)"
    command = [sys.executable, "-c", program, file]
    process = OwnedProcess(command, folder=folder, log=log, environment=environment)
    assert process.wait(within=600) == 0, log.read_text()
    return log.read_text()


@pytest.mark.slow
@pytest.mark.timeout(660)
@pytest.mark.skipif(not hasattr(pty, "spawn"), reason="needs a terminal")
def test_the_commands_of_the_tutorial_print_what_the_page_shows(tmp_path):
    for text in blocks("python"):
        name = text.splitlines()[0].removeprefix("# ")
        (tmp_path / name).write_text(text)
    steps = commands()
    patience = f"sleep() {{ command sleep $(($1 * {PATIENCE})); }}\n"

    printed = run(tmp_path, patience + "".join(f"{line}\necho '{MARK}'\n" for line, _ in steps))

    parts = printed.split(MARK)[:-1]
    assert len(parts) == len(steps)
    for (command, expected), part in zip(steps, parts, strict=True):
        lines = [shape(line) for line in part.splitlines() if shape(line)]
        # A shell reports the job that was killed.
        lines = [line for line in lines if "Killed" not in line]
        assert lines == [shape(line) for line in expected], f"{command}\n{part}"


def test_the_python_blocks_are_files():
    names = [text.splitlines()[0] for text in blocks("python")]

    assert names == ["# proj.py", "# reminders.py"]
