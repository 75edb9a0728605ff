"""Which run each pool process of a worker executes, in memory that its main process shares.

Celery's main process does not always know. When it loses the broker it forgets what it has given to
a pool process and has not seen accepted yet; the process may have begun it. So each
process writes the run in its slot: a few bytes of memory, without a system call.
"""

import mmap
import os
import struct
from collections.abc import Collection

from billiard.process import current_process

#: A process id, and a run id in ASCII.
_SLOT = struct.Struct("=q36s")
#: Processes of the pool beyond these have no slot.
_SLOTS = 1_024
_EMPTY = bytes(_SLOT.size)


class PoolSlots:
    """Made by the main process before its pool forks."""

    def __init__(self) -> None:
        self._memory = mmap.mmap(-1, _SLOTS * _SLOT.size)

    def begin(self, run_id: str) -> None:
        """Write that this pool process executes a run."""
        at = _own_slot()
        if at is not None:
            self._memory[at : at + _SLOT.size] = _SLOT.pack(os.getpid(), run_id.encode())

    def end(self) -> None:
        """Write that this pool process executes none."""
        at = _own_slot()
        if at is not None:
            self._memory[at : at + _SLOT.size] = _EMPTY

    def executed(self) -> Collection[tuple[int, str]]:
        """Return the ids of the processes and of their runs; a process may have died in it."""
        slots = _SLOT.iter_unpack(self._memory[:])
        return {(pid, run_id.decode("ascii", "replace")) for pid, run_id in slots if pid}


def _own_slot() -> int | None:
    # The pool numbers its living processes from 0.
    index = getattr(current_process(), "index", None)
    return None if index is None or index >= _SLOTS else int(index) * _SLOT.size
