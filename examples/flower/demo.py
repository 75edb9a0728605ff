"""Show the schedule pages of Flower with a beat, a worker and sample schedules, until Ctrl-C.

    python examples/flower/demo.py

It needs no server and keeps its files in a temporary folder, which it deletes at the end.
"""

import os
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path

HERE = Path(__file__).parent
sys.path.append(str(HERE.parent))

from programs import Program, run_until_interrupted  # noqa: E402

#: Flower for this machine only, on a port of its choice, with pages that may change schedules.
FLOWER = ("--port=0", "--address=127.0.0.1", "--dynbeat-unauthenticated-writes")


def main() -> int:
    """Run the demo and return the exit status."""
    return run_until_interrupted(start)


def start(stack: ExitStack) -> Sequence[Program]:
    """Start all programs, print the address of the pages, and return the programs."""
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dynbeat-flower-")))
    os.environ["DYNBEAT_DEMO_FOLDER"] = str(folder)
    print("creating the tables, sample schedules and a month of history", flush=True)
    Program("schema", "dynbeat", "schema", "upgrade", folder=HERE, logs=folder).wait()
    write_samples(stack)
    print("starting a beat, a worker and Flower", flush=True)
    worker = start_worker(stack, folder)
    flower = start_program(stack, folder, "dynbeat", "flower", *FLOWER)
    url = flower.wait_for(r"Visit me at (\S+)")
    beat = start_program(stack, folder, "beat", "-l", "INFO", "--pidfile=")
    beat.wait_for("beat started")
    print(f"\n    {url}/dynbeat/schedules\n\nCtrl-C ends all.", flush=True)
    return [worker, flower, beat]


def write_samples(stack: ExitStack) -> None:
    """Create the schedules and their past runs."""
    # They read DYNBEAT_DEMO_FOLDER.
    import sample_history  # noqa: PLC0415
    import sample_schedules  # noqa: PLC0415
    from tasks import dynbeat  # noqa: PLC0415

    stack.callback(dynbeat.context.database.dispose)
    sample_history.write(dynbeat, sample_schedules.create(dynbeat))
    sample_schedules.change_states(dynbeat)


def start_worker(stack: ExitStack, folder: Path) -> Program:
    """Start a worker with threads, which ends at once with a broker that polls."""
    quick = ("--without-gossip", "--without-mingle")
    pool = ("-P", "threads", "-c", "6", "-n", "demo1@%h", "-l", "INFO")
    worker = start_program(stack, folder, "worker", *pool, *quick)
    worker.wait_for("ready.")
    return worker


def start_program(stack: ExitStack, folder: Path, *arguments: str) -> Program:
    """Start a ``celery`` command that ends with the demo."""
    name = "-".join(argument for argument in arguments[:2] if argument.isalpha())
    program = Program(name, *arguments, folder=HERE, logs=folder)
    stack.callback(program.stop)
    return program


if __name__ == "__main__":
    sys.exit(main())
