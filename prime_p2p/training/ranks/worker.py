"""The process of a rank other than 0: does what rank 0 orders, and ends with it."""

from __future__ import annotations

import os
import signal
import socket
import threading
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch

from prime_p2p.errors import PrimeError
from prime_p2p.lifetime import stop_signals
from prime_p2p.recipe import InnerRecipe, Recipe
from prime_p2p.state.tensor_tree import unflatten
from prime_p2p.training.batch import Batch
from prime_p2p.training.ranks.channel import Channel, Ended, Message
from prime_p2p.training.ranks.crew import FAILED, LEAVE_DEADLINE
from prime_p2p.training.ranks.part import Part, Place, build_empty
from prime_p2p.training.ranks.window import Window


def serve(connected: socket.socket, rank: int) -> int:
    """Obey what comes over the socket until rank 0 ends; returns the exit code. Signals are for rank 0 alone."""
    for number in stop_signals():
        signal.signal(number, signal.SIG_IGN)
    done = threading.Event()
    channel = Channel(connected, lambda: _end_with_rank_0(done))
    worker = Worker(rank)
    try:
        while True:
            order = channel.receive()
            channel.send("done", result=worker.obey(order))
    except Ended:
        return 0
    except (PrimeError, OSError, MemoryError, RuntimeError) as error:  # the last one of torch
        with suppress(Ended):
            channel.send(FAILED, reason=str(error).strip().split("\n", maxsplit=1)[0])
        return 1
    finally:
        done.set()


class Worker:
    """Obeys orders: the first one is ``build``, and each of the others a method of the part that was built."""

    def __init__(self, rank: int) -> None:
        self._rank = rank
        self._part: Part | None = None

    def obey(self, order: Message) -> float | None:
        """Returns what the answer is to have. Raises what the part raises."""
        values, tensors = order.values, order.tensors
        if self._part is None:
            self._part = self._built(values)
            return None
        match order.name:
            case "step":
                inner = InnerRecipe.model_validate_json(values["inner"])
                return self._part.step(Batch(**tensors), inner, values["global_step"], values["targets"])
            case "validation_loss":
                return self._part.validation_loss(tensors["sequences"])
            case "read":
                self._part.read(values["start"], values["stop"])
            case "write":
                self._part.write(values["start"], values["stop"])
            case "whole_state":
                self._part.whole_state()
            case "load_state":
                bare = {
                    name: torch.empty(shape, dtype=getattr(torch, dtype), device="meta")
                    for name, (shape, dtype) in values["bare"].items()
                }
                self._part.load_state(unflatten(values["state"], tensors | bare))
            case "clear_state":
                self._part.clear_state()
        return None

    def _built(self, values: dict[str, Any]) -> Part:
        torch.set_num_threads(values["threads"])
        place = Place(self._rank, values["ranks"], values["device"], Path(values["folder"]))
        mesh, recipe = place.join(), Recipe.model_validate_json(values["recipe"])
        return Part(recipe, place, Window.open(values["window"]), lambda: build_empty(recipe, mesh))


def _end_with_rank_0(done: threading.Event) -> None:
    """Called in the thread of the channel: the main thread may be in a collective that never ends."""
    if not done.wait(LEAVE_DEADLINE):
        os._exit(1)
