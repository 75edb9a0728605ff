"""With beat and a prefork worker as real processes, a run is one trace."""

import json

from tests.support.waiting import wait_until

STEPS = {"claim", "publish", "apply_async", "guard", "run", "outcome"}


def test_a_run_of_a_prefork_worker_is_one_trace(file_site):
    file = file_site.folder / "spans"
    file_site.config |= {
        "dynbeat_traces": True,
        "imports": ["tests.support.traced"],
        "trace_file": str(file),
    }
    beat = file_site.beat()
    worker = file_site.worker()
    for name in ("a", "b"):
        file_site.create_once(name, task="probe.record")
        file_site.wait_for_run(name, "succeeded")

    def spans():
        lines = file.read_text().splitlines()
        return len(lines) >= 2 * len(STEPS) and [json.loads(line) for line in lines]

    traces = {}
    for span in wait_until(spans, within=10):
        traces.setdefault(span["trace"], []).append(span)

    assert len(traces) == 2
    for steps in traces.values():
        assert {step["name"].replace("/", " ").split()[0] for step in steps} == STEPS
        assert {step["pid"] == beat.pid for step in steps} == {True, False}
        assert worker.pid not in {step["pid"] for step in steps}
