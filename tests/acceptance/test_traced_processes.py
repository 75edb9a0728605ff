"""A run of a real beat and worker is one trace, in a pool of processes and of greenlets."""

import json

import pytest

from tests.support.waiting import wait_until

STEPS = {"apply_async", "run"}


@pytest.mark.parametrize("pool", ["prefork", "gevent"])
def test_a_run_is_one_trace(file_site, pool):
    file = file_site.folder / "spans"
    file_site.config |= {
        "imports": ["tests.support.traced"],
        "trace_file": str(file),
        "trace_in_worker": pool != "prefork",
    }
    beat = file_site.beat()
    worker = file_site.worker(pool=pool)
    # Their tasks overlap in the greenlets.
    for name in ("a", "b"):
        file_site.create_once(name, task="probe.record")
    for name in ("a", "b"):
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
        others = {step["pid"] for step in steps} - {beat.pid}
        assert len(others) == 1
        assert (others == {worker.pid}) == (pool != "prefork")
