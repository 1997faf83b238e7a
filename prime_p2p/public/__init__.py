"""Public runs: somebody signs what a run is, and anybody joins it by one address."""
