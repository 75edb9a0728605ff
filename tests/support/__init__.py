"""What the tests share: servers of our own, fixtures, waiting."""
