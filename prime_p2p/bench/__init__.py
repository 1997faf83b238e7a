"""Benchmarks: how fast each part of an outer step is, beside what one would use instead, on this machine and link."""
