"""The loggers that a recipe may ask for, TensorBoard and Weights & Biases: each runs in a process of its own.

So whatever its package does (take over standard output, signals and ``sys.exit``, wait for a disk or a server), it does
not do it to the peer, which only ever writes to a pipe.
"""
