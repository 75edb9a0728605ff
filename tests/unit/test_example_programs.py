"""An example that ends by a signal stops each program that it started."""

import signal
import subprocess
import sys
from pathlib import Path

EXAMPLES = Path(__file__).parents[2] / "examples"
CODE = """
from programs import exit_on_sigterm

exit_on_sigterm()
try:
    print("started", flush=True)
    input()
finally:
    print("cleaning", flush=True)
    input()
    print("clean", flush=True)
"""


def test_a_second_sigterm_does_not_end_the_cleanup():
    with subprocess.Popen(
        [sys.executable, "-c", CODE],
        cwd=EXAMPLES,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as program:
        assert program.stdout.readline() == "started\n"
        program.send_signal(signal.SIGTERM)
        assert program.stdout.readline() == "cleaning\n"
        program.send_signal(signal.SIGTERM)
        left, _ = program.communicate("\n", timeout=20)

    assert left == "clean\n"
    assert program.returncode == 128 + signal.SIGTERM
