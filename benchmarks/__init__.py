"""Benchmarks: each script prints a table for people, or one JSON object with `-o json`. Run with `make bench`."""
