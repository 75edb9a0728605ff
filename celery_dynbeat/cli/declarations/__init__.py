"""Schedules as a file of YAML or JSON: what ``apply`` reads and ``export`` writes.

document.py   text -> the declared schedules
fields.py     one declared schedule <-> the arguments of the API
applying.py   declared schedules -> edits, in one transaction
exporting.py  stored schedules -> a file
"""
