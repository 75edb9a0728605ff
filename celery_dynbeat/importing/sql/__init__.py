"""Stores in SQL tables. Each package has the same columns, with few differences.

layouts.py   the tables and the differences of each package
reading.py   pages of rows, without locks, in read-only transactions
rows.py      one row -> the found schedule
"""
