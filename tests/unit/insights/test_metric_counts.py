"""Counts in memory and counts in files give the same series; processes share files."""

import os
import resource
import signal
from contextlib import contextmanager

import pytest

from celery_dynbeat.metrics import definitions as metrics
from celery_dynbeat.metrics.counts import ProcessCounts
from celery_dynbeat.metrics.pool_counts import PoolCounts


def series(counts):
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in counts.collect()
        for sample in family.samples
    }


def value(counts, name, **labels):
    return series(counts).get((name, tuple(sorted(labels.items()))))


def count_some(counts):
    counts.add(metrics.NOTIFICATIONS, 0)
    counts.add(metrics.RESENT, 2)
    counts.add(metrics.STARTED, 1, 'a "b"\n\\', "ü")
    for seconds in (0.0005, 0.3, 86_400, 10**9):
        counts.observe(metrics.QUEUE_TIME, seconds, "celery")
    counts.observe(metrics.PASS_DURATION, 0.2)


@pytest.fixture
def pool_counts(tmp_path):
    counts = PoolCounts(tmp_path, name="worker")
    yield counts
    counts.close()


def in_child(work):
    """Run ``work`` in a forked process, which is killed if ``work`` does not exit."""
    pid = os.fork()
    if pid == 0:
        work()
        os.kill(os.getpid(), signal.SIGKILL)
    os.waitpid(pid, 0)


def test_files_and_memory_have_the_same_series(pool_counts):
    in_memory = ProcessCounts()
    count_some(in_memory)
    count_some(pool_counts)

    assert series(pool_counts) == series(in_memory)
    assert not any(name.endswith("_created") for name, _ in series(in_memory))


def test_the_successors_of_killed_processes_continue_their_files(pool_counts, tmp_path):
    pool_counts.add(metrics.RESENT, 1)
    for _ in range(20):
        in_child(lambda: pool_counts.add(metrics.RESENT, 1))

    assert value(pool_counts, "dynbeat_runs_resent_total") == 21
    # One pair for this process, one for the children.
    assert len(list(tmp_path.glob("*.db"))) == 4


def test_processes_that_live_at_the_same_time_have_their_own_files(pool_counts, tmp_path):
    def nested():
        pool_counts.add(metrics.RESENT, 1)
        in_child(lambda: pool_counts.add(metrics.RESENT, 1))
        pool_counts.add(metrics.RESENT, 1)

    in_child(nested)

    assert value(pool_counts, "dynbeat_runs_resent_total") == 3
    assert len(list(tmp_path.glob("counter_*.db"))) == 2


def test_a_file_that_a_killed_process_left_empty_is_ignored(pool_counts, tmp_path):
    pool_counts.add(metrics.RESENT, 1)
    (tmp_path / "counter_dynbeat-worker-7.db").touch()

    assert value(pool_counts, "dynbeat_runs_resent_total") == 1


def test_the_metrics_of_the_application_stay_out_of_the_files(pool_counts, tmp_path):
    from prometheus_client import CollectorRegistry, Counter, generate_latest

    own = CollectorRegistry()
    Counter("app_things_total", "Things of the application", registry=own).inc()
    pool_counts.add(metrics.RESENT, 1)

    assert b"dynbeat" not in generate_latest(own)
    assert b"dynbeat" not in generate_latest()
    assert all("dynbeat-worker" in path.name for path in tmp_path.glob("*.db"))
    assert not any(name.startswith("app_") for name, _ in series(pool_counts))


def test_a_file_has_all_its_blocks_before_it_is_written(pool_counts, tmp_path):
    # A write to memory without a block on a full disk ends the process with SIGBUS.
    for number in range(400):
        pool_counts.observe(metrics.RUN_DURATION, 1, f"package.module.task_{number}")

    (path,) = tmp_path.glob("histogram_*.db")
    assert path.stat().st_size > 1_000_000
    assert path.stat().st_blocks * 512 >= path.stat().st_size
    assert (
        value(pool_counts, "dynbeat_run_duration_seconds_count", task="package.module.task_7") == 1
    )


@contextmanager
def full_disk():
    """Let each write that makes a file longer fail, as on a full disk."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1_000, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_process_counts_again_when_the_disk_has_space(pool_counts, tmp_path):
    with full_disk():
        for _ in range(3):
            with pytest.raises(OSError, match="too large"):
                pool_counts.add(metrics.RESENT, 1)

    pool_counts.add(metrics.RESENT, 2)

    assert value(pool_counts, "dynbeat_runs_resent_total") == 2
    assert len(list(tmp_path.glob("*.lock"))) == 1
