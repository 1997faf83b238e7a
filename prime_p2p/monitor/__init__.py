"""What people see of a run: metrics on disk, live events, the console and the report."""
