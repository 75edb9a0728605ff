"""Alerts: open and end them, and send messages about them.

checks.py    states of schedules and runs -> alerts; nodes.py: of beats and workers
writing.py   write that alerts open and end
sending.py   unreported alerts -> messages to each URL, with Apprise
digest.py    what a message says; text.py makes texts of users safe

``beat.alerting`` runs the checks and the sending.
"""
