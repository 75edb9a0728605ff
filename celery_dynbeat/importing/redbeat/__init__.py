"""The store of celery-redbeat in Redis.

reading.py   pages of entries, only by reading commands
entries.py   one entry -> the found schedule
rules.py     RedBeat's JSON of a schedule -> the trigger
source.py    both together
"""
