"""Schedules as a file of YAML or JSON: what ``apply`` reads and ``export`` writes.

source.py     text -> plain values, with the line of each
document.py   plain values -> the declared schedules
fields.py     one declared schedule <-> the arguments of the API
applying.py   declared schedules -> edits, in one transaction
exporting.py  stored schedules -> a file
"""
