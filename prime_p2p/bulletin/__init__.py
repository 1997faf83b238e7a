"""What a peer tells whoever watches it: its news, as lines of a bounded size, and where they are asked for."""
