"""Call a function in a daemon thread, for a caller that waits for a limited time."""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from typing import TypeVar

T = TypeVar("T")


def call_in_thread(call: Callable[[], T], *, name: str) -> Future[T]:
    """Start ``call``, and return its future. A call that hangs does not block the exit.

    A ThreadPoolExecutor joins its threads at exit.
    """
    future: Future[T] = Future()

    def run() -> None:
        try:
            result = call()
        # Any error is the result of the future. So is an exit, or the caller would wait.
        except BaseException as error:  # noqa: BLE001
            future.set_exception(error)
        else:
            future.set_result(result)

    threading.Thread(target=run, name=name, daemon=True).start()
    return future
