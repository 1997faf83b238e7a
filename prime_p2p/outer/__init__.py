"""The outer step: anchor, momentum, the digest that names a state, and the journal of the last updates."""
