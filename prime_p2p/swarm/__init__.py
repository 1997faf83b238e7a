"""Who is in the run, and how the peers who are there make one outer step together."""
