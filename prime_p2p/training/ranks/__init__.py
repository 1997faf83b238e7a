"""The ranks of a peer with several devices: a process for each, a shard of the model and of the optimizer in each."""
