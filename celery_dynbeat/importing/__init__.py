"""Import the schedules of another scheduler, as ``dynbeat import`` does.

found.py          what a source yields: the schedule converted, or why it cannot be
conversion.py     the kinds of schedules of Celery -> triggers, with notes on what changes
sql/              stores in SQL tables: django-celery-beat, the two of SQLAlchemy
redbeat/          the store of RedBeat in Redis
beat_schedule.py  entries of the configuration; crontab_file.py: lines of a crontab
results.py        what happens with each found schedule
writing.py        found schedules -> rows, one transaction for each batch
write_back.py     the progress of the rows -> the other scheduler
"""
