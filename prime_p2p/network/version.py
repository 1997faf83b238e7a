"""The version of all that peers say to each other. It is in the name of every stream, so peers of two never meet."""

PROTOCOL = 3


def node_stream_name(purpose: str) -> str:
    """The libp2p protocol of the streams of any two nodes, whatever runs they are in, for one purpose."""
    return f"prime-p2p/{PROTOCOL}/{purpose}"


def stream_name(run: str, purpose: str) -> str:
    """The libp2p protocol of the streams of a run for one purpose."""
    return node_stream_name(f"{run}/{purpose}")
