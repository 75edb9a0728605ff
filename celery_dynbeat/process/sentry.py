"""The check-ins of a process for Sentry Crons. sentry-sdk is imported only with the setting."""

from typing import TYPE_CHECKING

from celery_dynbeat.common.errors import ConfigurationError
from celery_dynbeat.process.context import Context

if TYPE_CHECKING:
    from celery_dynbeat.process.sentry_monitors import SentryMonitors


def connect_monitors(context: Context) -> "SentryMonitors | None":
    """Return the connected monitors of a process, or None without dynbeat_sentry_monitors.

    Raises ConfigurationError without sentry-sdk.
    """
    patterns = context.settings.sentry_monitors
    if not patterns:
        return None
    try:
        # A late import: it needs an optional package.
        from celery_dynbeat.process.sentry_monitors import SentryMonitors  # noqa: PLC0415
    except ImportError as error:
        raise ConfigurationError(
            f"dynbeat_sentry_monitors needs sentry-sdk ({error}): pip install sentry-sdk, or remove"
            " the setting"
        ) from error
    monitors = SentryMonitors(context.database, patterns=patterns)
    monitors.connect()
    return monitors
