"""The store of celery-redbeat in Redis.

connecting.py   the client for a URL, or for RedBeat's settings
reading.py      pages of entries, only by reading commands
entries.py      one entry -> the found schedule
rules.py        RedBeat's JSON of a schedule -> the trigger
source.py       reading and conversion together
"""
