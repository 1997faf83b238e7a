"""Your own training loop as a peer of a run. Start it twice: the second time with the address the first one prints.

python docs/examples/own_loop.py [ADDRESS]
"""

import sys

import torch

import prime_p2p

STEPS, INNER_STEPS, BATCH = 2000, 50, 32

torch.set_num_threads(1)
model = torch.nn.Sequential(torch.nn.Linear(16, 64), torch.nn.Tanh(), torch.nn.Linear(64, 1))
optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)

with prime_p2p.Swarm("own-loop", bootstrap=sys.argv[1:]) as swarm:
    print("join me with:", swarm.addresses[0], flush=True)
    diloco = prime_p2p.DiLoCo(model, optimizer, swarm, inner_steps=INNER_STEPS)
    swarm.wait_for_peers(1, timeout=60)  # for the example to have company; a peer alone trains as well
    for _ in range(STEPS):
        inputs = torch.randn(BATCH, 16)
        loss = (model(inputs) - inputs.sin().sum(dim=1, keepdim=True)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        outer_step = diloco.step(tokens=BATCH)
        if outer_step and outer_step.round.group:
            peers = len(outer_step.round.group.members)
            print(f"outer step {outer_step.outer_step} with {peers} peers: loss {loss.item():.4f}", flush=True)
