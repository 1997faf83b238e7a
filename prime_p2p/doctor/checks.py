"""The checks: each judges one fact, and all that the doctor says is written here."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from prime_p2p.doctor.facts import (
    Bandwidth,
    Clock,
    Daemon,
    Descriptors,
    Fact,
    Folder,
    Gpu,
    IdentityFile,
    Joined,
    Kernels,
    Machine,
    Needs,
    Network,
    Package,
    Port,
    Python,
    Reached,
    Space,
    Unknown,
)
from prime_p2p.doctor.finding import Finding
from prime_p2p.monitor.text import size
from prime_p2p.network.clock import LIMIT, NOTED

NAMES = (
    "python",
    "packages",
    "kernels",
    "descriptors",
    "memory",
    "disk",
    "folder",
    "identity",
    "port",
    "gpu",
    "daemon",
    "swarm",
    "clock",
    "reach",
    "bandwidth",
)
"""The checks, in the order they are shown."""

SHOWN = ("hivemind", "torch", "transformers", "numpy", "protobuf", "uvloop")  # packages whose versions matter most
LEAST_MEMORY = 10**9  # bytes that the smallest peer takes: Python, PyTorch, and a model that hardly counts
LEAST_DISK = 10**9  # bytes for checkpoints and a journal of a small model
TIGHT = 0.8  # share of what is free that a run may need without a warning
SLOW_START = 5.0  # seconds for the libp2p daemon, beyond which this machine is very busy
LEAST_RATE = 10.0  # Mbit/s, below which rounds of all but small models take minutes
DEFAULT_RATE = 100.0  # Mbit/s: what a peer says that it can send, unless --bandwidth is given


def judge(machine: Machine, network: Network, gpu: Gpu | Unknown, needs: Needs | None = None) -> list[Finding]:
    """Everything that was found out, judged, in the order of ``NAMES``."""
    needs = None if needs is None else at_hand(needs, gpu)
    return [
        python(machine.python),
        _judged("packages", machine.packages, packages),
        _judged("kernels", machine.kernels, kernels),
        _judged("descriptors", network.descriptors, descriptors),
        _judged("memory", machine.memory, lambda space: memory(space, needs)),
        _judged("disk", machine.disk, lambda space: disk(space, needs)),
        folder(machine.folder),
        _judged("identity", network.identity, identity),
        _judged("port", network.port, port),
        _judged("gpu", gpu, lambda found: accelerator(found, needs)),
        _judged("daemon", network.daemon, daemon),
        _judged("swarm", network.joined, swarm),
        _judged("clock", network.clock, clock),
        _judged("reach", network.reached, reach),
        _judged("bandwidth", network.bandwidth, lambda rates: bandwidth(rates, needs)),
    ]


def room(memory_: Space | Unknown, disk_: Space | Unknown, gpu: Gpu | Unknown, needs: Needs) -> list[Finding]:
    """Whether a recipe fits a machine, whatever else there is to say of it."""
    needs = at_hand(needs, gpu)
    return [
        _judged("memory", memory_, lambda space: memory(space, needs)),
        _judged("disk", disk_, lambda space: disk(space, needs)),
        _judged("gpu", gpu, lambda found: accelerator(found, needs)),
    ]


def at_hand(needs: Needs, gpu: Gpu | Unknown) -> Needs:
    """What a recipe needs where it would be trained: without a GPU that can be used, the model is in memory too."""
    if isinstance(gpu, Gpu) and gpu.found and not gpu.error:
        return needs
    return replace(needs, memory_bytes=needs.memory_bytes + needs.cpu_bytes, gpu_bytes=0, cpu_bytes=0)


def _judged(name: str, fact: Fact | Unknown, check: Callable[[Fact], Finding]) -> Finding:
    return Finding(name, "note", text=fact.reason) if isinstance(fact, Unknown) else check(fact)


def python(fact: Python) -> Finding:
    said = f"{fact.version} on {fact.system} {fact.machine}"
    if (fact.system, fact.machine) != ("Linux", "x86_64"):
        advice = "the libp2p daemon that comes with hivemind runs on Linux x86_64 only: use such a machine"
        return Finding("python", "problem", said, advice=advice)
    if not fact.fits:
        return Finding(
            "python", "problem", said, f"prime-p2p needs {fact.wanted}", "make an environment with another one"
        )
    return Finding("python", "ok", said)


def packages(fact: Sequence[Package]) -> Finding:
    shown = ", ".join(f"{package.name} {package.found}" for package in fact if package.name in SHOWN and package.found)
    wrong = [package for package in fact if not package.fits]
    if not wrong:
        return Finding("packages", "ok", shown)
    text = ", ".join(f"{one.name} {one.found or 'is missing'} where {one.wanted or 'any'} is needed" for one in wrong)
    wanted = " ".join(f"'{one.name}{one.wanted}'" for one in wrong)
    return Finding("packages", "problem", shown, text, f"pip install {wanted}")


def kernels(fact: Kernels) -> Finding:
    if not fact.absent:
        return Finding("kernels", "ok", "compiled")
    advice = "rounds take more processor time; for compiled ones install a C compiler, then prime-p2p again"
    return Finding("kernels", "note", "NumPy's", fact.absent, advice)


def descriptors(fact: Descriptors) -> Finding:
    figure = f"{fact.limit} open files"
    if fact.limit >= fact.most:
        return Finding("descriptors", "ok", figure)
    enough = 1 << (fact.most - 1).bit_length()
    advice = f"ulimit -n {enough}, or LimitNOFILE={enough} in a service unit"
    if fact.limit < fact.needed:
        text = f"a round of {fact.group} peers takes {fact.needed}"
        return Finding("descriptors", "problem", figure, text, advice)
    text = f"a round of {fact.group} peers takes {fact.needed}, and {fact.most} where everything happens at once"
    return Finding("descriptors", "warning", figure, text, advice)


def memory(fact: Space, needs: Needs | None = None) -> Finding:
    return _room(
        "memory",
        fact,
        None if needs is None else needs.memory_bytes,
        LEAST_MEMORY,
        "end other programs, or take a smaller batch",
    )


def disk(fact: Space, needs: Needs | None = None) -> Finding:
    advice = "make room, give another --dir, or keep fewer checkpoints"
    return _room("disk", fact, None if needs is None else needs.disk_bytes, LEAST_DISK, advice)


def _room(name: str, fact: Space, needed: int | None, least: int, advice: str) -> Finding:
    figure = f"{size(fact.free)} free"
    if needed is None:
        if fact.free < least:
            return Finding(name, "warning", figure, f"a small peer takes {size(least)}", advice)
        return Finding(name, "ok", figure)
    text = f"the recipe needs {size(needed)}"
    if fact.free < needed:
        return Finding(name, "problem", figure, text, advice)
    if fact.free * TIGHT < needed:
        return Finding(name, "warning", figure, text, advice)
    return Finding(name, "ok", figure, text)


def folder(fact: Folder) -> Finding:
    where = str(fact.path)
    if fact.in_use:
        advice = "give this one its own with --dir, or stop the other one"
        return Finding("folder", "problem", where, "it is in use by another peer", advice)
    if fact.error:
        return Finding("folder", "problem", where, f"cannot be written: {fact.error}", "give another one with --dir")
    return Finding("folder", "ok", where, "" if fact.exists else "a peer will make it")


def identity(fact: IdentityFile) -> Finding:
    if fact.error:
        return Finding(
            "identity", "problem", str(fact.path), fact.error, "restore it, or move it away to get a new one"
        )
    if not fact.peer_id:
        return Finding("identity", "ok", str(fact.path), "a peer will make it")
    if fact.open_to_others:
        text = "others on this machine can read this private key"
        return Finding("identity", "warning", fact.peer_id, text, f"chmod 600 {fact.path}")
    return Finding("identity", "ok", fact.peer_id)


def port(fact: Port) -> Finding:
    if fact.error:
        return Finding(
            "port", "problem", str(fact.number), fact.error, "give another one with --port, or end who has it"
        )
    if not fact.number:
        return Finding(
            "port", "note", "any", "a free one is taken", "behind NAT or a firewall give the open one with --port"
        )
    return Finding("port", "ok", str(fact.number))


def accelerator(fact: Gpu, needs: Needs | None = None) -> Finding:
    if not fact.found:
        return Finding("gpu", "note", "none", "training goes on the CPU")
    if fact.error:
        return Finding(
            "gpu", "warning", fact.name or fact.found, f"PyTorch cannot use it: {fact.error}", _gpu_advice(fact)
        )
    several = f"{fact.count} of " if fact.count > 1 else ""
    figure = f"{several}{fact.name}, {size(fact.memory)}"
    said = [f"driver {fact.driver}" * bool(fact.driver), f"CUDA {fact.cuda}", "bf16" if fact.bf16 else "no bf16"]
    text = ", ".join(part for part in said if part)
    if needs is not None and needs.gpu_bytes > fact.memory:
        text = f"the recipe needs {size(needs.gpu_bytes)}"
        return Finding("gpu", "problem", figure, text, "take a smaller batch, or --device cpu")
    return Finding("gpu", "ok", figure, text)


def _gpu_advice(fact: Gpu) -> str:
    if not fact.driver:
        return "install its driver, or give containers access to it; a peer trains on the CPU until then"
    if not fact.cuda:
        return "install a PyTorch with CUDA; a peer trains on the CPU until then"
    return "update the driver or PyTorch so that they fit together; a peer trains on the CPU until then"


def daemon(fact: Daemon) -> Finding:
    if fact.error:
        return Finding(
            "daemon", "problem", text=fact.error, advice="see docs/troubleshoot.md for what keeps it from starting"
        )
    figure = f"answers after {fact.seconds:.1f} s"
    if fact.seconds > SLOW_START:
        return Finding("daemon", "warning", figure, "this machine is very busy", "end other programs before a run")
    return Finding("daemon", "ok", figure)


def swarm(fact: Joined) -> Finding:
    if fact.error:
        advice = "check the address, that the node is up, and that a firewall lets it through"
        return Finding("swarm", "problem", text=fact.error, advice=advice)
    return Finding("swarm", "ok", f"joined in {fact.seconds:.1f} s")


def clock(fact: Clock) -> Finding:
    wrong = abs(fact.ahead)
    if wrong <= NOTED:
        return Finding("clock", "ok", f"{wrong:.1f} s off the swarm's")
    figure = f"{wrong:.1f} s {'ahead of' if fact.ahead > 0 else 'behind'} the swarm's"
    if wrong > LIMIT:
        return Finding("clock", "problem", figure, f"more than the {LIMIT:g} s that are made up for", "set it with NTP")
    return Finding("clock", "warning", figure, "a peer makes up for it", "set it with NTP")


def reach(fact: Reached) -> Finding:
    works = [answer.address for answer in fact.answers if answer.works]
    if works:
        return Finding("reach", "ok", f"port {fact.port}", f"others reach this machine at {works[0]}")
    if not fact.answers:
        return Finding("reach", "note", f"port {fact.port}", "nobody could be asked to connect to this machine")
    first = fact.answers[0]
    text = f"nobody reaches this machine from outside: {first.address}: {first.reason}"
    advice = f"open or forward TCP port {fact.port} and give it with --port; until then peers come through a relay"
    return Finding("reach", "warning", f"port {fact.port}", text, advice)


def bandwidth(fact: Bandwidth, needs: Needs | None = None) -> Finding:
    figure = f"{_rate(fact.up)} up, {_rate(fact.down)} Mbit/s down"
    advice = f"start the peer with --bandwidth {_rate(fact.up)}" if fact.up < DEFAULT_RATE else ""
    slower = advice or "look at the link"
    slowest = min(fact.up, fact.down)
    if needs is not None and needs.rate:
        text = f"the run needs {_rate(needs.rate)} each way to keep up with its peers"
        if slowest < needs.rate:
            return Finding("bandwidth", "warning", figure, text, f"{slower}, and expect to wait for rounds")
        return Finding("bandwidth", "ok", figure, text, advice)
    if slowest < LEAST_RATE:
        text = "rounds of all but small models will take minutes"
        return Finding("bandwidth", "warning", figure, text, f"{slower}, and more inner steps a round")
    return Finding("bandwidth", "ok", figure, advice=advice)


def _rate(rate: float) -> str:
    return f"{rate:.0f}" if rate >= 10 else f"{rate:.1f}"
