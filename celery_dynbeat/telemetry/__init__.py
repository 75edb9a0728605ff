"""What happens, as typed events, and everything that listens: logs, metrics, spans, check-ins.

    transition --emit--> emitting --+--> logs           one log record
                                    +--> metrics        counters
                                    +--> ...
                                    +--> celery_dynbeat.signals   receivers of the application

The code of a transition imports ``events`` and ``emitting`` only. It knows no listener.
"""
