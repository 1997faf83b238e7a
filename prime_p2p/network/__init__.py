"""libp2p and Kademlia through hivemind: a node, its identity, signed records, framed streams."""
