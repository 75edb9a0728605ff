"""The data of lists, charts and strips: counts of schedules, runs and nodes.

Each function reads a bounded number of rows, and nothing is kept between calls.
"""
