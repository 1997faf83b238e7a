"""State that outlives the moment: from peer to peer, and on a peer's own disk."""
