"""Metrics for Prometheus, of a peer or a bootstrap node, at ``/metrics`` on a port of their own.

Names and units follow https://prometheus.io/docs/practices/naming/: all begin with ``prime_p2p_``, counters end with
``_total`` and start at 0 with the process. What the process itself takes is there as ``process_...``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from concurrent import futures
from importlib.metadata import version
from types import TracebackType

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Enum,
    Gauge,
    Info,
    ProcessCollector,
    disable_created_metrics,
    start_http_server,
)
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from prime_p2p.errors import BadInput, PrimeError
from prime_p2p.monitor.events import Progress, State
from prime_p2p.monitor.metrics import PHASES, RoundMetrics
from prime_p2p.monitor.reporter import Silent
from prime_p2p.network import dropped

_PREFIX = "prime_p2p"
_STOP = 5.0  # seconds for a request that is being answered
_ABSENT = (OSError, PrimeError, TimeoutError, futures.TimeoutError)  # what a gauge may raise

Gauges = dict[str, tuple[str, Callable[[], float]]]
"""By name, without the prefix: what it is, and what finds its value when somebody asks."""


class MetricsPage:
    """Serves a registry at ``http://HOST:PORT/metrics`` until it is closed."""

    def __init__(self, registry: CollectorRegistry, place: tuple[str, int]) -> None:
        """Serve from now on, at a host and a port; port 0 takes a free one. Raises BadInput where that cannot be."""
        host, port = place
        try:
            self._server, self._thread = start_http_server(port, host, registry)
        except OSError as error:
            raise BadInput(
                f"no metrics at {host} port {port}: {error.strerror or error}; give another --metrics-port or "
                "--metrics-host"
            ) from None
        self.port: int = self._server.server_port

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(_STOP)

    def __enter__(self) -> MetricsPage:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Looked(Collector):
    """What is counted elsewhere, and looked at when somebody asks: what was dropped, and ``gauges``.

    A gauge that cannot be had at the moment (it raises OSError, PrimeError or TimeoutError) is left out.
    """

    def __init__(self, gauges: Gauges) -> None:
        self._gauges = gauges

    def collect(self) -> Iterator[CounterMetricFamily | GaugeMetricFamily]:
        counts = CounterMetricFamily(f"{_PREFIX}_dropped", "Dropped of what others sent, by kind.", labels=["kind"])
        for kind, count in dropped.counts().items():
            counts.add_metric([kind], count)
        yield counts
        for name, (description, value) in self._gauges.items():
            try:
                found = value()
            except _ABSENT:
                continue
            yield GaugeMetricFamily(f"{_PREFIX}_{name}", description, found)


def node_registry(run: str, gauges: Gauges) -> CollectorRegistry:
    """What there is to know of any node; ``run`` is empty for one that is of no run."""
    disable_created_metrics()  # of each counter: all begin with the process, which says when that was
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    info = Info(_PREFIX, "Release of the program, and the run.", registry=registry)
    info.info({"version": version("prime_p2p"), "run": run})
    registry.register(Looked(gauges))
    return registry


class PrometheusReporter(Silent):
    """A ``monitor.reporter.Reporter`` that keeps a peer's metrics."""

    def __init__(self, registry: CollectorRegistry) -> None:
        def gauge(name: str, description: str) -> Gauge:
            return Gauge(name, description, namespace=_PREFIX, registry=registry)

        def counter(name: str, description: str, labels: Sequence[str] = ()) -> Counter:
            return Counter(name, description, labels, namespace=_PREFIX, registry=registry)

        states = [state.value for state in State]
        self._state = Enum("state", "What the peer does.", namespace=_PREFIX, registry=registry, states=states)
        self._outer_step = gauge("outer_step", "Outer steps of the run that the peer's state holds.")
        self._inner_step = gauge("inner_step", "Inner steps since the last outer step.")
        self._rate = gauge("tokens_per_second", "Tokens a second in the last inner step.")
        self._train_loss = gauge("train_loss", "Loss of the last inner step, in nats a token.")
        self._val_loss = gauge(
            "validation_loss", "Validation loss of the newest anchor evaluated here, in nats a token."
        )
        self._group = gauge("group_size", "Peers in the last group.")
        self._share = gauge("compute_ratio", "Share of the last outer step's time that went into inner steps.")
        self._steps = counter("outer_steps", "Outer steps that the peer was in.")
        self._missed = counter("missed_rounds", "Rounds that came to no outer step for the peer.")
        self._attempts = counter("round_attempts", "Tries of rounds that came to an outer step.")
        self._tokens = counter("tokens", "Tokens that went into outer steps.")
        self._sent = counter("sent_bytes", "Sent in rounds, with framing.")
        self._received = counter("received_bytes", "Received in rounds, with framing.")
        self._replayed = counter("replayed_updates", "Updates that were missed and replayed.")
        self._snapshots = counter("snapshots", "Snapshots that were fetched.")
        self._state_bytes = counter("state_bytes", "Received to catch up.")
        self._given_snapshots = counter("given_snapshots", "Times that others took pieces of a snapshot.")
        self._given_bytes = counter("given_state_bytes", "Updates and snapshots given to others.")
        self._phases = counter("phase_seconds", "Time of outer steps, by phase.", ["phase"])

    def progress(self, progress: Progress) -> None:
        self._state.state(progress.state.value)
        self._outer_step.set(progress.outer_step)
        self._inner_step.set(progress.inner_step)
        self._rate.set(progress.tokens_per_second)
        self._train_loss.set(math.nan if progress.loss is None else progress.loss)

    def phase(self, state: State, group_size: int) -> None:
        self._state.state(state.value)

    def outer_step(self, metrics: RoundMetrics) -> None:
        self._outer_step.set(metrics.outer_step)
        self._group.set(len(metrics.group))
        self._share.set(metrics.compute_share)
        if metrics.val_loss is not None:
            self._val_loss.set(metrics.val_loss)
        self._steps.inc()
        self._attempts.inc(metrics.attempts)
        self._tokens.inc(metrics.tokens)
        self._sent.inc(metrics.bytes_sent)
        self._received.inc(metrics.bytes_received)
        self._replayed.inc(metrics.replayed)
        self._snapshots.inc(metrics.snapshots)
        self._state_bytes.inc(metrics.state_bytes)
        self._given_snapshots.inc(metrics.given_snapshots)
        self._given_bytes.inc(metrics.given_bytes)
        for phase in PHASES:
            self._phases.labels(phase).inc(max(0.0, getattr(metrics.seconds, phase)))

    def missed(self) -> None:
        self._missed.inc()
