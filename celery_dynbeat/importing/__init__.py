"""Import the schedules of another scheduler, as ``dynbeat import`` does.

found.py          what a source yields: the schedule converted, or why it cannot be
conversion.py     the kinds of schedules of Celery -> triggers, with notes on what changes
sql/              stores in SQL tables: django-celery-beat, the two of SQLAlchemy
redbeat/          the store of RedBeat in Redis
results.py        what happens with each found schedule
writing.py        found schedules -> rows, one transaction for each batch
write_back.py     the progress of the rows -> django-celery-beat
"""
