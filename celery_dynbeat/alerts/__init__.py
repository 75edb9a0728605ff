"""Alerts: open and end them, write messages about them, and deliver the messages.

    threads.py      the threads of a beat: one evaluates, one sends messages
    alert_pass.py   one pass of the evaluation, step by step
      opening.py    facts -> alerts that open or are counted
      checks.py     what no event reports: silent schedules, delays, recoveries
      nodes.py      missing beats and workers
      subjects.py   schedules with their rules and last runs
    messages.py     unsent alerts -> messages; content.py is what a message says
    sending.py      messages -> deliveries, each in a child process
    delivery.py     start that process; deliver.py is the process: Jinja2 renders, Apprise sends

The facts are stored by ``store.alerts.facts``, which listens to events. Beat imports neither Jinja2
nor Apprise, and a server that does not answer is left behind with its process.
"""
