"""The outer state: steps from one digest to the next, equal to the bytes committed in ``golden/``.

The golden files pin the bytes of the whole arithmetic (blocks of a codec, weighted mean, outer step, digest), so that
a peer of one release or processor can train with those of another. Their inputs come from hashes, not from a random
generator. After a deliberate change of the arithmetic, which needs a new version of the digest's domain tag:

    python -m tests.unit.test_outer_state
"""

from __future__ import annotations

import json
import subprocess
import sys
import threading
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from blake3 import blake3

from prime_p2p.allreduce.codec import BITS, CHUNK, BlockVector, Float32, accumulate, quantise
from prime_p2p.outer import nesterov
from prime_p2p.outer import state as outer_states
from prime_p2p.outer.digest import PIECE, pieces, state_digest
from prime_p2p.outer.nesterov import OuterOptimizer
from prime_p2p.outer.state import OuterState

GOLDEN = Path(__file__).parent / "golden"
SHOWN = 8  # elements written out in the golden file, beside the hash of all


def golden_vector(label: str, n: int) -> Float32:
    """n elements in [-1, 1), the same everywhere and for ever; blocks differ in magnitude down to denormals."""
    integers = np.frombuffer(blake3(label.encode()).digest(4 * n), "<i4")
    unit = (integers >> 8).astype(np.float32) * np.float32(2.0**-23)
    return np.ldexp(unit, -((np.arange(n) // 1024) * 37 % 149))


def golden_update(codec: str, inputs: dict[str, Any], step: int) -> BlockVector:
    """The weighted mean of the pseudo-gradients of the peers, as the owner of a part computes it."""
    n, weights, bits = inputs["n"], inputs["weights"], BITS[codec]
    mean, scratch = np.empty(n, np.float32), np.empty(min(CHUNK, n), np.float32)
    for i, weight in enumerate(weights):
        pseudo_gradient = BlockVector.empty(n, bits)
        quantise(golden_vector(f"{inputs['seed']}/{step}/{i}", n), pseudo_gradient)
        accumulate(mean, pseudo_gradient, weight / sum(weights), i == 0, scratch)
    update = BlockVector.empty(n, bits)
    quantise(mean, update)
    return update


def golden_result(codec: str, inputs: dict[str, Any], threads: int = 1) -> dict[str, Any]:
    state = OuterState.initial(golden_vector(inputs["seed"], inputs["n"]), threads)
    updates = []
    for step in range(inputs["outer_steps"]):
        update = golden_update(codec, inputs, step)
        updates.append(update.digest().hex())
        state.apply(update, sum(inputs["weights"]), OuterOptimizer(**inputs["optimizer"]))
    return {
        "update_digests": updates,
        "anchor": state.anchor[:SHOWN].tobytes().hex(),
        "anchor_blake3": blake3(state.anchor.tobytes()).hexdigest(),
        "momentum": state.momentum[:SHOWN].tobytes().hex(),
        "momentum_blake3": blake3(state.momentum.tobytes()).hexdigest(),
        "digest": state.digest.hex(),
    }


def golden_inputs() -> list[dict[str, Any]]:
    nesterov_sgd, plain = asdict(OuterOptimizer()), asdict(OuterOptimizer(0.5, 0.8, nesterov=False))
    return [
        {"seed": "one element", "n": 1, "outer_steps": 3, "weights": [5], "optimizer": nesterov_sgd},
        {"seed": "one block", "n": 1024, "outer_steps": 3, "weights": [1, 1], "optimizer": nesterov_sgd},
        {"seed": "ragged", "n": 200_123, "outer_steps": 4, "weights": [40960, 8192, 32768], "optimizer": nesterov_sgd},
        {"seed": "no nesterov", "n": 5000, "outer_steps": 4, "weights": [3, 0, 7], "optimizer": plain},
        {"seed": "pieces", "n": PIECE // 4 + 5, "outer_steps": 2, "weights": [1, 2], "optimizer": nesterov_sgd},
    ]


def golden_file(codec: str) -> Path:
    return GOLDEN / f"outer{'' if codec == 'int8' else '-' + codec}.json"


def regenerate() -> None:
    for codec in BITS:
        cases = [{"inputs": inputs, "expected": golden_result(codec, inputs)} for inputs in golden_inputs()]
        golden_file(codec).write_text(json.dumps(cases, indent=1) + "\n", encoding="utf-8")


@pytest.mark.parametrize(
    ("codec", "case"),
    [
        pytest.param(codec, case, id=f"{codec} {case['inputs']['seed']}")
        for codec in BITS
        for case in json.loads(golden_file(codec).read_text(encoding="utf-8"))
    ],
)
@pytest.mark.parametrize("threads", [1, 2])
def test_outer_steps_give_the_golden_bytes(codec: str, case: dict[str, Any], threads: int) -> None:
    assert golden_result(codec, case["inputs"], threads) == case["expected"]


def some_update(n: int, scale: float = 1.0) -> BlockVector:
    update = BlockVector.empty(n)
    quantise(golden_vector("update", n) * np.float32(scale), update)
    return update


def test_a_run_begins_at_step_zero_without_tokens_or_momentum() -> None:
    anchor = golden_vector("anchor", 5000)
    state = OuterState.initial(anchor)
    assert (state.step, state.tokens) == (0, 0)
    assert not state.momentum.any()
    np.testing.assert_array_equal(state.anchor, anchor)
    assert state.digest == state_digest(0, 0, anchor, np.zeros_like(anchor))


def test_the_initial_anchor_is_a_copy_of_the_parameters() -> None:
    parameters = golden_vector("anchor", 5000)
    state = OuterState.initial(parameters)
    parameters[:] = 0
    assert state.anchor.any()


def test_an_outer_step_advances_step_tokens_and_digest() -> None:
    state = OuterState.initial(golden_vector("anchor", 5000))
    before = state.digest
    returned = state.apply(some_update(5000), 123, OuterOptimizer())
    assert (state.step, state.tokens) == (1, 123)
    assert returned == state.digest == state_digest(1, 123, state.anchor, state.momentum) != before
    assert state.pieces == pieces(state.anchor, state.momentum)
    state.apply(some_update(5000), 4, OuterOptimizer())
    assert (state.step, state.tokens) == (2, 127)


def test_peers_with_the_same_updates_hold_the_same_bytes_and_others_do_not() -> None:
    states = [OuterState.initial(golden_vector("anchor", 5000), threads) for threads in (1, 2, 1)]
    for state, scale in zip(states, (1.0, 1.0, 1.5), strict=True):
        state.apply(some_update(5000, scale), 10, OuterOptimizer())
    assert states[0].anchor.tobytes() == states[1].anchor.tobytes()
    assert states[0].digest == states[1].digest != states[2].digest


def test_the_lock_is_held_while_the_arrays_change_and_free_afterwards(monkeypatch: pytest.MonkeyPatch) -> None:
    state = OuterState.initial(golden_vector("anchor", 10))
    held = []
    monkeypatch.setattr(nesterov, "step", lambda *_: held.append(state.lock.locked()))
    state.apply(some_update(10), 1, OuterOptimizer())
    assert held == [True]
    assert not state.lock.locked()


def test_a_state_that_is_held_changes_when_the_hold_is_released() -> None:
    state = OuterState.initial(golden_vector("anchor", 10))
    before = state.digest
    with state.hold() as hold:
        step = threading.Thread(target=state.apply, args=(some_update(10), 1, OuterOptimizer()))
        step.start()
        step.join(0.2)
        assert state.digest == before
    step.join(60)
    assert (state.step, hold.broken) == (1, False)


def test_a_hold_is_broken_before_a_state_changes_that_waited_for_too_long(monkeypatch: pytest.MonkeyPatch) -> None:
    state = OuterState.initial(golden_vector("anchor", 10))
    seen = []
    with state.hold() as hold:
        monkeypatch.setattr(outer_states, "HOLD_DEADLINE", 0.1)
        monkeypatch.setattr(nesterov, "step", lambda *_: seen.append(hold.broken))
        state.apply(some_update(10), 1, OuterOptimizer())
    assert seen == [True]
    monkeypatch.setattr(outer_states, "HOLD_DEADLINE", 60.0)
    state.put_back(0, 0, lambda anchor, momentum: None)
    assert state.step == 0


def test_an_update_of_another_length_is_refused_and_changes_nothing() -> None:
    state = OuterState.initial(golden_vector("anchor", 10))
    before = state.digest
    with pytest.raises(ValueError, match="elements"):
        state.apply(some_update(11), 1, OuterOptimizer())
    assert (state.step, state.tokens, state.digest) == (0, 0, before)
    assert before == state_digest(0, 0, state.anchor, state.momentum)
    assert not state.lock.locked()


def test_the_arithmetic_of_the_outer_step_loads_no_torch() -> None:
    program = (
        "import sys, prime_p2p.outer.state, prime_p2p.outer.journal, prime_p2p.allreduce.partition;"
        "sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", program], timeout=60, check=False).returncode == 0


if __name__ == "__main__":
    regenerate()
