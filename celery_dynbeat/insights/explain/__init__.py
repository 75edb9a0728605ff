"""Answer "why did it, or did it not, run?" for one schedule.

reading.py   reads the facts: the schedule, its runs, holds, nodes, audit
facts.py     the facts, as values
runs.py      PURE: one run -> what happened to its fire time, and why
causes.py    PURE: facts -> the cause, in one sentence, and the fix: the first rule that applies
past.py      PURE: the same for a fire time of the past
"""
