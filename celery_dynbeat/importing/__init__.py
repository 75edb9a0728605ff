"""Import the schedules of another scheduler, as ``dynbeat import`` does.

foreign.py        a schedule of another scheduler: converted, or why it cannot be; and its result
conversion.py     the kinds of schedules of Celery -> triggers, with notes on what changes
tables.py         stores in SQL tables: django-celery-beat, the two of SQLAlchemy
table_rows.py     one row of them -> the entry
redbeat.py        the store of RedBeat in Redis, and its entries
writing.py        foreign schedules -> rows, one transaction for each batch
write_back.py     the progress of the rows -> django-celery-beat
"""
