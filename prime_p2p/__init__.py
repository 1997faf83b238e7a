"""Peer-to-peer training over the internet, with no server in the middle.

    with prime_p2p.Swarm("my-run", bootstrap=[ADDRESS]) as swarm:
        diloco = prime_p2p.DiLoCo(model, inner_optimizer, swarm, inner_steps=100)
        for batch in batches:
            ...
            inner_optimizer.step()
            diloco.step(tokens=batch.numel())

Names are loaded when they are first used: a bootstrap node imports this package too, and needs no torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from prime_p2p.diloco import DiLoCo, DiLoCoOptions, OuterStep
    from prime_p2p.outer.nesterov import OuterOptimizer
    from prime_p2p.state.checkpoints import Checkpoints
    from prime_p2p.swarm.gathering import RoundPolicy
    from prime_p2p.swarm.swarm import Swarm, SwarmOptions

__all__ = [
    "Checkpoints",
    "DiLoCo",
    "DiLoCoOptions",
    "OuterOptimizer",
    "OuterStep",
    "RoundPolicy",
    "Swarm",
    "SwarmOptions",
]

_HOMES = {
    "Checkpoints": "prime_p2p.state.checkpoints",
    "DiLoCo": "prime_p2p.diloco",
    "DiLoCoOptions": "prime_p2p.diloco",
    "OuterOptimizer": "prime_p2p.outer.nesterov",
    "OuterStep": "prime_p2p.diloco",
    "RoundPolicy": "prime_p2p.swarm.gathering",
    "Swarm": "prime_p2p.swarm.swarm",
    "SwarmOptions": "prime_p2p.swarm.swarm",
}


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_HOMES[name]), name)
