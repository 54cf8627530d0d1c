"""The command `tfm-bench`. What it needs is imported once a command is chosen, so that --help answers at once."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path

from pydantic import TypeAdapter

from tfm_bench.config import METHODS, expansion_width
from tfm_bench.config_types import Budget
from tfm_bench.errors import UserError

DEFAULT_STACK = Path(__file__).resolve().parents[1] / "checkpoints" / "tiny"
DEFAULT_BUDGET = 64


def main(arguments: Sequence[str] | None = None) -> None:
    """Bad input ends with one line on stderr and exit code 1."""
    options = _parser().parse_args(arguments)
    try:
        options.command(options)
    except UserError as error:
        sys.exit(f"error: {error}")


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="tfm-bench", description="Trees from marginals, measured.")
    commands = parser.add_subparsers(required=True, metavar="COMMAND")
    serve = commands.add_parser(
        "serve",
        help="serve a stack over the HTTP routes of SGLang and OpenAI's /v1/completions",
        formatter_class=argparse.ArgumentDefaultsHelpFormatter,
    )
    serve.add_argument("--stack", type=Path, default=DEFAULT_STACK, help="folder with target, drafter and weaver")
    serve.add_argument("--method", choices=METHODS, default="tfm", help="how to decode; the text does not depend on it")
    serve.add_argument("--budget", type=int, default=DEFAULT_BUDGET, help="draft nodes, the anchor excluded")
    serve.add_argument("--expansion-width", type=int, help="nodes per Weaver call; ceil(budget / 16) where not given")
    serve.add_argument("--dtype", choices=("float32", "bfloat16"), default="float32", help="of weights and activations")
    serve.add_argument(
        "--device", choices=("auto", "cpu", "cuda"), default="auto", help="auto is a GPU where torch sees one"
    )
    serve.add_argument("--host", default="127.0.0.1", help="address to listen at")
    serve.add_argument("--port", type=int, default=30000, help="port to listen at, 0 for a free one")
    serve.set_defaults(command=_serve)
    return parser


def _serve(options: argparse.Namespace) -> None:
    from tfm_bench.engine import Arm
    from tfm_bench.serve.server import Address, serve

    budget = 0 if options.method == "ar" else _checked_budget(options.budget)
    width = 0
    if options.method == "tfm":
        chosen = options.expansion_width
        width = max(1, expansion_width("auto", budget)) if chosen is None else chosen
    arm, address = Arm(options.method, budget, width), Address(options.host, options.port)
    serve(options.stack, arm, address, dtype=options.dtype, device=options.device)


def _checked_budget(budget: int) -> int:
    """Within the limits of the configuration: memory and time of a round grow with it."""
    limits = TypeAdapter(Budget).json_schema()
    if not limits["minimum"] <= budget <= limits["maximum"]:
        raise UserError(f"--budget: found {budget}; accepted are {limits['minimum']} to {limits['maximum']}")
    return budget


if __name__ == "__main__":
    main()
