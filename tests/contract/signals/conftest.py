"""The fixtures of the contract tests, with a recorder of signals."""

import pytest

from celery_dynbeat import signals


@pytest.fixture
def received():
    """Give a list that grows with the name and the event of each signal."""
    events = []
    receivers = {}
    for name in signals.__all__:
        if name.islower():
            receivers[name] = lambda event, signal, **_: events.append((signal.name, event))
            getattr(signals, name).connect(receivers[name])
    yield events
    for name, receiver in receivers.items():
        getattr(signals, name).disconnect(receiver)
