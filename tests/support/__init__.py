"""Shared support of the tests: servers, processes, fixtures and waiting."""
