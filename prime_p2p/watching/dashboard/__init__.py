"""A web page of a run, live, served by the process that watches it."""
