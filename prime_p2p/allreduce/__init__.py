"""Averaging quantised vectors between the peers of a group, so that all of them end with the same bytes."""
