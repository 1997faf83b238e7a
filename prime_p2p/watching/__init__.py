"""Seeing a run from outside: what a peer tells whoever watches, and what watchers make of it."""
