"""The form of a schedule: its texts, and what they mean. PURE, except ``handler``."""
