"""What peers have contributed to a run: the certificates of its commits, kept, passed on, and added up."""
