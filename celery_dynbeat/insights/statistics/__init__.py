"""What lists, charts and strips show: counts and samples of schedules, runs and nodes.

Each function reads a bounded number of rows, and nothing is kept between calls.
"""
