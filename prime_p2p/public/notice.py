"""How long before a change holds that the peers of a run are told of it."""

OUTER_STEPS = 3  # at least between the one that the run is at and the one from which a change holds
SECONDS = 45.0  # that those take at least, unless the author says otherwise: until every peer has heard of it
LEAST_SECONDS = 15.0  # that an author may say: peers look every ten, and a look takes a moment
