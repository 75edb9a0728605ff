"""An import that kills itself with the schedules of a batch inserted and not committed.

The command line loads this module: ``--owner-from tests.support.killed_imports:of_row``.
"""

import os
import signal
from collections.abc import Mapping
from itertools import count
from typing import Any

from sqlalchemy import Engine, event

#: The number of the batch in which the process dies.
BATCH_VARIABLE = "DYNBEAT_TEST_KILL_IMPORT_IN"
OWNERS = 7


def of_row(row: Mapping[str, Any]) -> str:
    """Return the owner of a row."""
    return f"user:{row['id'] % OWNERS}"


def _kill_in(batch: int) -> None:
    numbers = count(1)

    def before(
        _connection: Any, _cursor: Any, statement: str, *_others: Any, **_named: Any
    ) -> None:
        # The audit follows the schedules, in the same transaction.
        if statement.startswith("INSERT INTO dynbeat_change") and next(numbers) == batch:
            os.kill(os.getpid(), signal.SIGKILL)

    event.listen(Engine, "before_cursor_execute", before)


if BATCH_VARIABLE in os.environ:
    _kill_in(int(os.environ[BATCH_VARIABLE]))
