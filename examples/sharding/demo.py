"""Create schedules of ten owners in two databases, and show that each shard sends only its own.

    python examples/sharding/demo.py

It needs no server: the beats are ManualBeats, and the databases are SQLite files. The exit status
is 0 if the checks pass.
"""

import sys
import tempfile
from collections import Counter
from contextlib import ExitStack
from datetime import UTC, datetime, timedelta
from itertools import chain

from app import SHARDS, dynbeat_for

from celery_dynbeat import Every
from celery_dynbeat.testing import FrozenClock, ManualBeat, override

OWNERS = [f"user:{number}" for number in range(10)]
HOUR = timedelta(hours=1)


def main() -> int:
    """Create the schedules, let an hour pass, and return the exit status."""
    clock = FrozenClock(datetime(2026, 1, 5, 9, tzinfo=UTC))
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        for name, shard in SHARDS.items():
            url = f"sqlite:///{folder}/{name}.sqlite3"
            stack.enter_context(override(shard, database=url, clock=clock))
        for owner in OWNERS:
            schedules = dynbeat_for(owner).schedules.for_owner(owner)
            schedules.create("reminder", task="remind", args=[owner], trigger=Every(HOUR))
        clock.advance(HOUR)
        sent = {name: _send(name) for name in SHARDS}
    checks = {
        "each shard sent only the runs of its owners": all(
            dynbeat_for(owner) is SHARDS[name] for name, owners in sent.items() for owner in owners
        ),
        "each owner had one run": Counter(chain(*sent.values())) == Counter(OWNERS),
    }
    for check, passed in checks.items():
        print(f"{check}: {'yes' if passed else 'no'}")
    return 0 if all(checks.values()) else 1


def _send(name: str) -> list[str]:
    """Let a beat and a worker of the shard do all that is due. Return the owners of the runs."""
    shard = SHARDS[name]
    beat = ManualBeat(shard, run_tasks=True)
    beat.run_until_idle()
    owners = [run.owner for run in beat.publisher.sent]
    ended = Counter(run.status for run in shard.schedules.runs())
    print(f"{name} sent the runs of {', '.join(sorted(owners))}: {dict(ended)}")
    return owners


if __name__ == "__main__":
    sys.exit(main())
