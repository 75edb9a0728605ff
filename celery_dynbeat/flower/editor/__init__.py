"""The form of a schedule: its texts and their meanings. PURE, except ``handler``."""
