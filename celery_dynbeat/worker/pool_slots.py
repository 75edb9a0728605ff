"""Which run each pool process executes, in memory that it shares with the main process.

The main process does not always know this run. When it loses the broker connection, it drops the
requests that a pool process has received and not accepted yet, although the process may have
started them. So each process writes its run to its slot: 44 bytes of memory, no system call.
"""

import os
import struct
from collections.abc import Collection

from billiard.process import current_process
from billiard.sharedctypes import RawArray

#: A process id, and a run id in ASCII.
_SLOT = struct.Struct("=q36s")
#: Further pool processes have no slot.
_SLOT_COUNT = 1_024
_EMPTY = bytes(_SLOT.size)


class PoolSlots:
    """One slot per pool process. The main process creates the slots before its pool starts."""

    def __init__(self) -> None:
        # Forked processes inherit this memory, and billiard passes it to spawned processes.
        self._memory = RawArray("c", _SLOT_COUNT * _SLOT.size)

    def begin(self, run_id: str) -> None:
        """Write to the slot of this process that it executes a run."""
        offset = _own_offset()
        if offset is not None:
            self._memory[offset : offset + _SLOT.size] = _SLOT.pack(os.getpid(), run_id.encode())

    def end(self) -> None:
        """Clear the slot of this process."""
        offset = _own_offset()
        if offset is not None:
            self._memory[offset : offset + _SLOT.size] = _EMPTY

    def executed(self) -> Collection[tuple[int, str]]:
        """Return the process id and the run id in each slot. The process may be dead."""
        slots = _SLOT.iter_unpack(self._memory[:])
        return {(pid, run_id.decode("ascii", "replace")) for pid, run_id in slots if pid}


def _own_offset() -> int | None:
    # The pool numbers its living processes from 0.
    index = getattr(current_process(), "index", None)
    return None if index is None or index >= _SLOT_COUNT else int(index) * _SLOT.size
