"""Answer "why did it, or did it not, run?" for one schedule.

collect.py   reads the facts: the schedule, its runs, holds, nodes
facts.py     the facts, as values
causes.py    PURE: facts -> the cause, in one sentence, and the fix: the first rule that applies
row_rules.py, run_rules.py   PURE: the rules; findings.py: what they find
runs.py      PURE: one run -> what happened to its fire time, and why
"""
