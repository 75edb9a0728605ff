"""Serve the reports with a beat and a worker, until Ctrl-C.

    python examples/django/demo.py [--port 8000]

It needs no server and keeps its files in a temporary folder, which it deletes at the end.
"""

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from programs import Program, run_until_interrupted  # noqa: E402


def main() -> int:
    """Run the example and return the exit status."""
    parser = argparse.ArgumentParser(description="Serve the reports until Ctrl-C.")
    parser.add_argument("--port", type=int, default=0, help="0: a free port")
    port = parser.parse_args().port
    return run_until_interrupted(lambda stack: start(stack, port))


def start(stack: ExitStack, port: int) -> Sequence[Program]:
    """Start all programs, print the address, and return the programs."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynbeat-django-")))
    os.environ["DYNBEAT_DEMO_FOLDER"] = str(folder)

    def program(name: str, *arguments: str, module: str = "celery") -> Program:
        made = Program(
            name, *arguments, folder=HERE, logs=folder, module=module, application="project"
        )
        stack.callback(made.stop)
        return made

    program("migrate", "migrate", module="manage").wait()
    program("users", "create_demo_users", module="manage").wait()
    worker = program("worker", "worker", "-P", "threads", "-c", "4", "-l", "INFO")
    beat = program("beat", "beat", "-l", "INFO", "--pidfile=")
    web = program("web", str(port), module="project.serve")
    url = web.wait_for(r"serving (\S+)")
    worker.wait_for("ready.")
    beat.wait_for("beat started")
    print(f"\n    {url}/\n\nCtrl-C ends all.", flush=True)
    return [worker, beat, web]


if __name__ == "__main__":
    sys.exit(main())
