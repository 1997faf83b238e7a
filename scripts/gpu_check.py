"""What a GPU does as a peer: two peers on it and one on the CPU make outer steps together, in under five minutes.

python scripts/gpu_check.py [--json] [--recipe FILE] [--set KEY=VALUE ...] [--device NAME]

Prints a Markdown table. The peer on the CPU trains nothing: it shows that it comes to the same bytes as the GPU.
Without a GPU nothing is measured, unless --device cpu asks for that: a small recipe then shows that this script works.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from prime_p2p.builtin_recipes import find_recipe
from prime_p2p.diloco import DiLoCo, DiLoCoOptions
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.recipe import Recipe
from prime_p2p.swarm.gathering import RoundPolicy
from prime_p2p.swarm.swarm import Swarm, SwarmOptions
from prime_p2p.training.batch import Batch
from prime_p2p.training.flat import FlatParameters
from prime_p2p.training.pseudo_gradient import PseudoGradient
from prime_p2p.training.trainer import Trainer

DEFAULTS = ("inner.batch_size=16", "round.inner_steps=100", "round.patience=60")
STEPS, REPEATS, ROUNDS = 30, 3, 3
START, LIMIT = 90.0, 200.0  # seconds for a peer to be there, and for all to have made their outer steps


@dataclass(frozen=True)
class Alone:
    """What one peer measured with nobody else. Seconds are of a whole vector, between the device and the host."""

    parameters: int
    tokens_per_second: float
    peak_bytes: int
    quantise_seconds: float
    read_seconds: float
    write_seconds: float


@dataclass(frozen=True)
class Shared:
    """What one peer measured in a run with others: ``digests`` by outer step, in hex."""

    device: str
    tokens_per_second: float
    compute_share: float
    peak_bytes: int
    digests: dict[int, str]


def measure_alone(recipe: Recipe, device: torch.device) -> Alone:
    """Inner steps without rounds, and what an outer step does with the parameters."""
    trainer = Trainer(recipe, device)
    batch = batch_of(recipe)
    warm_up(trainer, batch)
    seconds = timed(device, lambda: [trainer.step(batch, recipe.inner, step) for step in range(STEPS)])
    peak = peak_bytes(device)
    vector = FlatParameters(trainer.model)
    anchor, mine = vector.to_numpy(), PseudoGradient(vector, 0.0, 8)
    quantise = best(device, lambda: mine.take(anchor, 1))
    read, write = best(device, lambda: vector.read(0, anchor)), best(device, lambda: vector.write(0, anchor))
    return Alone(vector.n, STEPS * batch.targets / seconds, peak, quantise, read, write)


def be_a_peer(recipe: Recipe, device: torch.device, address: str | None, follows: bool) -> Shared:
    """Make outer steps with the others of the run; one that ``follows`` makes no inner steps."""
    trainer = Trainer(recipe, device)
    batch = batch_of(recipe)
    if not follows:
        warm_up(trainer, batch)
    rounds = recipe.round
    policy = RoundPolicy(rounds.patience, rounds.grace, rounds.stall_timeout)
    options = DiLoCoOptions(may_start=address is None, explosion_factor=0.0)
    tokens, digests, seconds = 0, {}, {"inner": 0.0, "total": 0.0}
    with Swarm("gpu-check", [address] if address else [], SwarmOptions(hosts=("127.0.0.1",), policy=policy)) as swarm:
        outer = OuterOptimizer(recipe.outer.learning_rate, recipe.outer.momentum)
        diloco = DiLoCo(trainer.model, trainer.optimizer, swarm, rounds.inner_steps, outer, options)
        print(swarm.addresses[0], flush=True)
        swarm.wait_for_peers(2, START)
        while diloco.state.step < ROUNDS:
            if not follows:
                trainer.step(batch, recipe.inner, diloco.inner_step)
            outcome = diloco.outer_step() if follows else diloco.step(tokens=batch.targets)
            if outcome is not None and outcome.committed:
                tokens += outcome.tokens
                digests[outcome.outer_step] = outcome.digest.hex()
                seconds = {name: seconds[name] + outcome.seconds[name] for name in seconds}
        swarm.wait_for(lambda others: all(beat.step >= ROUNDS for beat in others.values()), rounds.patience)
    share = 0.0 if follows else seconds["inner"] / seconds["total"]
    return Shared(str(device), tokens / seconds["total"], share, peak_bytes(device), digests)


def measure_together(arguments: Sequence[str], device: torch.device) -> list[Shared]:
    """Two peers on the device and one that follows on the CPU, each a process of its own."""
    command = [sys.executable, __file__, *arguments]
    processes: list[subprocess.Popen[str]] = []
    try:
        address = ""
        for place in (f"{device}", f"{device}", "cpu+follows"):
            role = ["--peer", place, *(["--address", address] if address else [])]
            processes.append(subprocess.Popen([*command, *role], stdout=subprocess.PIPE, text=True))
            if not address:
                assert processes[0].stdout is not None
                address = processes[0].stdout.readline().strip()
        deadline = time.monotonic() + LIMIT
        said = [process.communicate(timeout=deadline - time.monotonic())[0] for process in processes]
    finally:
        for process in processes:
            process.kill()
            process.wait()
    if any(process.returncode for process in processes):
        raise SystemExit("a peer has failed, see above")
    results = [json.loads(text.splitlines()[-1]) for text in said]
    return [
        Shared(**result | {"digests": {int(step): d for step, d in result["digests"].items()}}) for result in results
    ]


# ---- what CUDA has of its own


def synchronise(device: torch.device) -> None:
    """Wait for what the device has been told to do."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def peak_bytes(device: torch.device) -> int:
    """The most memory that this process had on the device; 0 on a CPU."""
    return torch.cuda.max_memory_allocated(device) if device.type == "cuda" else 0


# ---- measuring


def timed(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds that some work takes, on the device too."""
    synchronise(device)
    began = time.perf_counter()
    work()
    synchronise(device)
    return time.perf_counter() - began


def best(device: torch.device, work: Callable[[], object]) -> float:
    """Seconds of the fastest of some repeats."""
    return min(timed(device, work) for _ in range(REPEATS))


def warm_up(trainer: Trainer, batch: Batch) -> None:
    """Compile and allocate; the parameters stay as they are."""
    for _ in range(2):
        trainer.forward.loss(batch.to(trainer.device)).backward()
        trainer.optimizer.zero_grad(set_to_none=True)


def batch_of(recipe: Recipe) -> Batch:
    """Bytes of no meaning."""
    shape = (recipe.inner.batch_size, recipe.model.context + 1)
    return Batch(torch.from_numpy(np.random.default_rng(0).integers(0, 256, shape)))


# ---- the report


def report(name: str, alone: Alone, together: Sequence[Shared]) -> dict[str, Any]:
    """Everything, as plain values; ``same_bytes`` says whether all peers have had the same digests."""
    same = all(peer.digests == together[0].digests and len(peer.digests) == ROUNDS for peer in together)
    return {"device": name, "alone": asdict(alone), "together": [asdict(one) for one in together], "same_bytes": same}


def table(found: dict[str, Any]) -> str:
    """The report as Markdown."""
    alone, together = found["alone"], found["together"]
    trained = [peer for peer in together if peer["compute_share"]]
    rows = [
        ("parameters", f"{alone['parameters']:,}"),
        ("tokens a second, alone and without rounds", f"{alone['tokens_per_second']:,.0f}"),
        ("tokens a second, two peers with rounds", f"{sum(peer['tokens_per_second'] for peer in trained):,.0f}"),
        ("compute share", ", ".join(f"{peer['compute_share']:.1%}" for peer in trained)),
        ("peak memory of a peer", f"{max(alone['peak_bytes'], *(p['peak_bytes'] for p in trained)) / 1e9:.2f} GB"),
        ("to quantise a pseudo-gradient, with its copy", f"{alone['quantise_seconds'] * 1e3:.1f} ms"),
        ("to copy the parameters to the host", f"{alone['read_seconds'] * 1e3:.1f} ms"),
        ("to copy the parameters to the device", f"{alone['write_seconds'] * 1e3:.1f} ms"),
        ("same digests on GPU and CPU", "yes" if found["same_bytes"] else "NO"),
    ]
    lines = [f"| {found['device']} | |", "|---|---|", *(f"| {what} | {figure} |" for what, figure in rows)]
    return "\n".join(lines)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--recipe", default="150m")
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--device", default="cuda")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--peer", help=argparse.SUPPRESS)
    parser.add_argument("--address", help=argparse.SUPPRESS)
    options = parser.parse_args()
    recipe = Recipe.load(find_recipe(options.recipe), [*DEFAULTS, *options.set])
    if options.peer:
        place, _, follows = options.peer.partition("+")
        result = be_a_peer(recipe, torch.device(place), options.address, follows=bool(follows))
        print(json.dumps(asdict(result)))
        return 0
    if options.device == "cuda" and not torch.cuda.is_available():
        print("there is no GPU here: nothing was measured")
        return 0
    device = torch.device(options.device)
    alone = measure_alone(recipe, device)
    if device.type == "cuda":
        torch.cuda.empty_cache()
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else str(device)
    sets = [part for value in options.set for part in ("--set", value)]
    found = report(name, alone, measure_together(["--recipe", options.recipe, *sets], device))
    print(json.dumps(found, indent=2) if options.json else table(found))
    return 0 if found["same_bytes"] else 1


if __name__ == "__main__":
    sys.exit(main())
