"""Measure this project and its baselines: ``python -m benchmarks``."""
