"""python -m scripts.convergence run|anchor|page"""

from __future__ import annotations

import argparse
from pathlib import Path

from scripts.convergence.page import write
from scripts.convergence.plan import ANCHOR
from scripts.convergence.results import Results
from scripts.convergence.runner import run_missing, run_one

DOCS = Path(__file__).parents[2] / "docs"


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m scripts.convergence")
    parser.add_argument(
        "command", choices=["run", "anchor", "page"], help="what the plan lacks; the published run; the page"
    )
    parser.add_argument("--results", type=Path, default=DOCS / "convergence" / "results.jsonl", help="(%(default)s)")
    parser.add_argument("--texts", type=Path, default=Path(), help="the folder that the anchor's text is in")
    options = parser.parse_args()
    results = Results(options.results)
    if options.command == "page":
        write(results.found, DOCS)
        return
    from scripts.convergence.training import run  # PyTorch takes seconds to load

    if options.command == "anchor":
        run_one(results, ANCHOR, lambda setting: run(setting, options.texts))
    else:
        run_missing(results, run)


if __name__ == "__main__":
    main()
