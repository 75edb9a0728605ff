"""Serve the reminders with a beat and a worker, until Ctrl-C.

    python examples/fastapi/demo.py [--port 8000]

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
    parser = argparse.ArgumentParser(description="Serve the reminders until Ctrl-C.")
    parser.add_argument("--port", type=int, default=0, help="0: a free port")
    port = parser.parse_args().port
    return run_until_interrupted(lambda stack: start(stack, port))


def start(stack: ExitStack, port: int) -> Sequence[Program]:
    """Start all programs, print the address, and return the programs."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynbeat-fastapi-")))
    os.environ.setdefault("DYNBEAT_DEMO_DATABASE_URL", f"sqlite:///{folder}/app.sqlite3")
    os.environ.setdefault("DYNBEAT_DEMO_BROKER_URL", f"sqla+sqlite:///{folder}/broker.sqlite3")
    os.environ.setdefault("SESSION_HTTPS", "0")
    Program("schema", "dynbeat", "schema", "upgrade", folder=HERE, logs=folder).wait()

    def started(name: str, *arguments: str, module: str = "celery") -> Program:
        program = Program(name, *arguments, folder=HERE, logs=folder, module=module)
        stack.callback(program.stop)
        return program

    worker = started("worker", "worker", "-P", "threads", "-c", "4", "-l", "INFO")
    beat = started("beat", "beat", "-l", "INFO", "--pidfile=")
    web = started("web", "application:api", f"--port={port}", module="uvicorn")
    url = web.wait_for(r"Uvicorn running on (\S+)")
    worker.wait_for("ready.")
    beat.wait_for("beat started")
    print(f"\n    {url}/\n\nCtrl-C ends all.", flush=True)
    return [worker, beat, web]


if __name__ == "__main__":
    sys.exit(main())
