"""`prime-p2p doctor`: would this machine be a good peer? Facts are gathered first, and then judged."""
