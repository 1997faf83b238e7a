"""The metrics page, read as Prometheus reads it."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from urllib.request import urlopen

import pytest
from prometheus_client.parser import text_string_to_metric_families
from test_reporter import METRICS, PROGRESS

from prime_p2p.errors import BadInput
from prime_p2p.monitor.events import State
from prime_p2p.monitor.prometheus import Gauges, MetricsPage, PrometheusReporter, node_registry
from prime_p2p.network import dropped

HOST = "127.0.0.1"
DASHBOARD = Path(__file__).parents[2] / "peers" / "grafana.json"
NAME = re.compile(r"\b(?:prime_p2p|process)_\w+")


@contextmanager
def page(gauges: Gauges | None = None) -> Iterator[tuple[PrometheusReporter, MetricsPage]]:
    registry = node_registry("pub", gauges or {})
    with MetricsPage(registry, (HOST, 0)) as served:
        yield PrometheusReporter(registry), served


def scraped(served: MetricsPage) -> dict[str, float]:
    with urlopen(f"http://{HOST}:{served.port}/metrics", timeout=10) as answer:
        text = answer.read().decode()
    return {
        sample.name + "".join(f"[{label}]" for label in sample.labels.values()): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }


def test_a_peers_outer_steps_add_up() -> None:
    with page() as (reporter, served):
        reporter.progress(PROGRESS)
        reporter.outer_step(METRICS)
        reporter.missed()
        reporter.outer_step(replace(METRICS, outer_step=5, attempts=3, val_loss=None))
        reporter.phase(State.GATHERING, 0)
        found = scraped(served)
    assert found["prime_p2p_outer_step"] == 5
    assert found["prime_p2p_inner_step"] == PROGRESS.inner_step
    assert found["prime_p2p_outer_steps_total"] == 2
    assert found["prime_p2p_missed_rounds_total"] == 1
    assert found["prime_p2p_round_attempts_total"] == 4
    assert found["prime_p2p_tokens_total"] == 2 * METRICS.tokens
    assert found["prime_p2p_sent_bytes_total"] == 2 * METRICS.bytes_sent
    assert found["prime_p2p_phase_seconds_total[inner]"] == 2 * METRICS.seconds.inner
    assert found["prime_p2p_validation_loss"] == METRICS.val_loss
    assert found["prime_p2p_train_loss"] == PROGRESS.loss
    assert found["prime_p2p_compute_ratio"] == METRICS.compute_share
    assert (found["prime_p2p_state[gathering]"], found["prime_p2p_state[training]"]) == (1, 0)


def test_no_series_says_when_a_counter_was_made() -> None:
    with page() as (reporter, served):
        reporter.outer_step(METRICS)
        assert [name for name in scraped(served) if "_created" in name] == []


def test_what_is_looked_at_is_looked_at_when_it_is_asked_for() -> None:
    seen = [3.0]
    with page({"peers": ("Others in the run.", lambda: seen[0]), "gone": ("Cannot be had.", _fail)}) as (_, served):
        dropped.note("heartbeat", "cut")
        first = scraped(served)
        seen[0] = 4.0
        assert (first["prime_p2p_peers"], scraped(served)["prime_p2p_peers"]) == (3, 4)
    assert first["prime_p2p_dropped_total[heartbeat]"] == 1
    assert "prime_p2p_gone" not in first
    assert first["process_open_fds"] > 0


def _fail() -> float:
    raise TimeoutError


def test_a_taken_port_is_told_in_one_line() -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(BadInput, match=rf"^no metrics at {HOST} port {port}: .*--metrics-port[^\n]*$"):
            MetricsPage(node_registry("pub", {}), (HOST, port))


def test_the_port_is_free_again_once_the_page_is_closed() -> None:
    with page() as (_, served):
        port = served.port
    MetricsPage(node_registry("pub", {}), (HOST, port)).close()


def test_the_dashboard_shows_metrics_that_there_are() -> None:
    with page({"connected_peers": ("Of a bootstrap node.", lambda: 1.0)}) as (reporter, served):
        reporter.outer_step(METRICS)
        dropped.note("heartbeat", "cut")
        there = {name.partition("[")[0] for name in scraped(served)}
    panels = json.loads(DASHBOARD.read_text())["panels"]
    shown = [name for panel in panels for target in panel["targets"] for name in NAME.findall(target["expr"])]
    assert len(shown) >= len(panels)
    assert set(shown) <= there
