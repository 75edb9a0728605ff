"""Give the JSON formatter to the handlers that Celery creates.

Celery sends its signals only if it configures the logging itself: not if a receiver of
``setup_logging`` does. Handlers of the application keep their formatter, as with
``worker_hijack_root_logger=False``, and so do handlers of Celery to which an earlier receiver gave
another one.
"""

import logging
from collections.abc import Iterable

from celery.app.log import TaskFormatter
from celery.utils.log import ColorFormatter, get_multiprocessing_logger

from celery_dynbeat.process.logs.formatter import JsonFormatter

_CELERYS = (ColorFormatter, TaskFormatter)


def install(logger: logging.Logger) -> None:
    """Make Celery's handlers of ``logger``, and of its pool's logger, write JSON."""
    # Celery sends no signal for the logger of billiard.
    for each in (logger, get_multiprocessing_logger()):
        if each is not None:
            _format(each.handlers)


def _format(handlers: Iterable[logging.Handler]) -> None:
    for handler in handlers:
        # Exactly: a subclass is the application's own.
        if type(handler.formatter) in _CELERYS:
            handler.setFormatter(JsonFormatter())
