"""What this project costs, beside the floor beneath it: ``python -m benchmarks``."""
