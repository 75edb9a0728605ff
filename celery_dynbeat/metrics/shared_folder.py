"""The temporary folder for the metrics of one worker, removed when the worker ends.

A worker that is killed leaves its folder. The next worker of the same user removes it, because the
lock of its owner is free.

systemd-tmpfiles removes files of /tmp that have not changed for ten days, such as the locks of pool
processes. Two of them would then write to one file. It spares a folder on which a process holds a
lock.
"""

import fcntl
import os
import shutil
import tempfile
from contextlib import suppress
from pathlib import Path

PREFIX = "dynbeat-metrics-"
_LOCK = "owner.lock"


class SharedFolder:
    """A new folder. Its owner holds a lock in it."""

    def __init__(self) -> None:
        remove_abandoned()
        self.path = Path(tempfile.mkdtemp(prefix=PREFIX))
        self._folder = os.open(self.path, os.O_RDONLY)
        fcntl.flock(self._folder, fcntl.LOCK_SH)
        # The folder is renamed after it is locked, so that no other worker sees a folder with a
        # free lock.
        new = self.path / "new.lock"
        self._descriptor = os.open(new, os.O_RDWR | os.O_CREAT, 0o600)
        fcntl.flock(self._descriptor, fcntl.LOCK_EX)
        new.rename(self.path / _LOCK)

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.path, ignore_errors=True)
        os.close(self._descriptor)
        os.close(self._folder)


def remove_abandoned() -> None:
    """Remove the folders of workers that were killed."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        # Another worker may remove it at the same time.
        with suppress(OSError):
            if _is_own(folder) and _is_abandoned(folder):
                shutil.rmtree(folder, ignore_errors=True)


def _is_own(folder: Path) -> bool:
    # Anyone can create a symbolic link in the temporary folder.
    return folder.stat(follow_symlinks=False).st_uid == os.geteuid() and not folder.is_symlink()


def _is_abandoned(folder: Path) -> bool:
    descriptor = os.open(folder / _LOCK, os.O_RDWR)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True
