"""The commands that show a run: ``status`` once, ``watch`` on a terminal, ``dashboard`` in a browser."""

from __future__ import annotations

import asyncio
import json
import os
import sys
from collections.abc import Awaitable, Callable, Sequence
from contextlib import ExitStack, suppress
from typing import TYPE_CHECKING, Annotated

import typer

from prime_p2p.monitor import logs
from prime_p2p.options import LOOPBACK, BootstrapOrNoneOption, RunNameOption, RunOrNoneArgument, run_of

if TYPE_CHECKING:
    from prime_p2p.watching.watcher import Watcher

app = typer.Typer()


@app.command()
def status(
    address: RunOrNoneArgument = None,
    bootstrap: BootstrapOrNoneOption = None,
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="Only this run.", show_default=False)] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON.")] = False,
) -> int:
    """Show who is in a run."""
    from prime_p2p.monitor.text import status_table
    from prime_p2p.status import look

    places, name = run_of(address, bootstrap, run)
    logs.set_up()
    heartbeats = look(places, name)
    print(json.dumps(heartbeats, indent=2) if as_json else status_table(heartbeats))
    return 0


@app.command()
def watch(
    address: RunOrNoneArgument = None,
    bootstrap: BootstrapOrNoneOption = None,
    run: RunNameOption = None,
    once: Annotated[bool, typer.Option("--once", help="Print what there is, and end.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON lines, until the run ends.")] = False,
) -> int:
    """Watch a run: its peers, phases, losses and events. Where there is no terminal, in plain lines."""
    import uvloop

    from prime_p2p.watching import plain

    places, name = run_of(address, bootstrap, run)
    if once and as_json:
        raise typer.BadParameter("give only one of --once and --json")
    logs.set_up()
    if not once and not as_json and _on_a_terminal():
        from prime_p2p.watching.terminal.showing import show

        return uvloop.run(_watched(places, name, show))
    say = plain.once if once else plain.json_lines if as_json else plain.lines
    try:
        return uvloop.run(_watched(places, name, lambda watcher: say(watcher, _print)))
    except BrokenPipeError:  # whoever read the lines has seen enough
        with suppress(OSError):
            os.dup2(os.open(os.devnull, os.O_WRONLY), 1)  # what is left is dropped
        return 0


@app.command()
def dashboard(
    address: RunOrNoneArgument = None,
    bootstrap: BootstrapOrNoneOption = None,
    run: RunNameOption = None,
    host: Annotated[str, typer.Option(metavar="ADDRESS", help="Address or name to serve the page at.")] = LOOPBACK,
    port: Annotated[int, typer.Option(min=0, max=65535, metavar="N", help="TCP port; 0 takes a free one.")] = 8080,
) -> int:
    """Show a run on a web page that this process serves, live; prints its URL."""
    import uvloop

    from prime_p2p.watching.dashboard.server import Dashboard, bound, serve

    places, name = run_of(address, bootstrap, run)
    logs.set_up()
    with bound(host, port) as listening:

        async def show_on_a_page(watcher: Watcher) -> None:
            await serve(Dashboard(watcher, places, host), listening, _print)

        return uvloop.run(_watched(places, name, show_on_a_page))


async def _watched(bootstrap: Sequence[str], run: str | None, use: Callable[[Watcher], Awaitable[None]]) -> int:
    """Watch a run until ``use`` ends or a signal says stop; returns the exit code."""
    from prime_p2p.lifetime import StopSignals, end_anyway, stop_signals
    from prime_p2p.watching.watcher import watching

    received, loop = StopSignals(), asyncio.get_running_loop()

    async def watch() -> None:
        async with watching(bootstrap, run) as watcher:
            await use(watcher)

    task, late = asyncio.ensure_future(watch()), ExitStack()

    def leave() -> None:
        if not received.insistent:
            task.cancel()
            # A terminal that has gone may hold its view up for ever.
            late.callback(end_anyway(128 + (received.first or 0)).cancel)

    received.notify = leave
    for number in stop_signals():
        loop.add_signal_handler(number, received.note, number)
    with late:
        await asyncio.wait((task,))
    if not task.cancelled():
        task.result()
    return 0 if received.first is None else 128 + received.first


def _on_a_terminal() -> bool:
    """Whether there is one that can be drawn on; textual reads keys from standard input and draws on standard error."""
    there = all(stream.isatty() for stream in (sys.stdin, sys.stdout, sys.stderr))
    return there and os.environ.get("TERM", "dumb") != "dumb"


def _print(line: str) -> None:
    print(line, flush=True)
