"""The test suite; a package, so that no other ``tests`` on the path can stand in for it."""
