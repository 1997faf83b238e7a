"""Seeing a run from outside: what a watcher makes of heartbeats and of what peers tell, on a terminal or a web page."""
