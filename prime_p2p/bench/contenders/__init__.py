"""Ways to average a vector among peers: each is what one process of a team does, round by round."""
