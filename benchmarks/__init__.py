"""Benchmarks of this project and of its floors: ``python -m benchmarks``."""
