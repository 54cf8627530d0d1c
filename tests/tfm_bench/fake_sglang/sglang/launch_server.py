"""`python -m sglang.launch_server` of the tests: SGLang's arguments, tfm_bench's server, and faults on demand.

FAKE_SGLANG_FORK: has trees. FAKE_SGLANG_ENGINE=scripted: decodes by tests/tfm_bench/scripted_engine.py, which loads in
no time. FAKE_SGLANG_START_S: seconds before the server listens. FAKE_SGLANG_CRASH: a file; the process ends in the
middle of an answer when it is there, and removes it first. FAKE_SGLANG_REPORTS: the algorithm that /get_server_info
gives. FAKE_SGLANG_STUBBORN: ignores SIGTERM.
"""

import argparse
import importlib
import os
import signal
import sys
import time
from pathlib import Path

from sglang.srt.server_args import ServerArgs


def parse():
    parser = argparse.ArgumentParser(prog="launch_server.py")
    ServerArgs.add_cli_args(parser)
    return parser.parse_args()


def arm_of(options):
    from tfm_bench.engine import Arm

    if options.speculative_algorithm is None:
        return Arm("ar")
    if options.speculative_algorithm == "DFLASH":
        return Arm("dflash_chain", int(options.speculative_num_draft_tokens) - 1)
    budget = int(options.speculative_dflash_tfm_tree_budget)
    if options.speculative_dflash_tfm_proposal == "ddtree":
        return Arm("ddtree", budget)
    return Arm("tfm", budget, -(-budget // 16))


def crash_on_demand(decoding):
    generate = decoding.generate

    def crashing(*arguments, on_tokens, **options):
        marker, handed = Path(os.environ["FAKE_SGLANG_CRASH"]), []

        def count(tokens):
            on_tokens(tokens)
            handed.append(tokens)
            if len(handed) == 3 and marker.exists():
                marker.unlink()
                time.sleep(0.2)  # the chunks so far are on their way
                print("CUDA error: an illegal memory access was encountered", flush=True)
                os._exit(7)

        return generate(*arguments, on_tokens=count, **options)

    decoding.generate = crashing


def main():
    options = parse()
    if os.environ.get("FAKE_SGLANG_STUBBORN"):
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal = lambda *_: None
    print("server_args: ready to load", flush=True)
    time.sleep(float(os.environ.get("FAKE_SGLANG_START_S", "0")))
    if os.environ.get("FAKE_SGLANG_ENGINE") == "scripted":
        sys.modules["tfm_bench.engine"] = importlib.import_module("tests.tfm_bench.scripted_engine")
        from tests.tfm_bench.scripted_engine import Stack

        stack = Stack()
    else:
        from tests.tfm_bench.tiny_stack import random_stack

        stack = random_stack()
    from tfm_bench.serve import app, decoding, server

    if "FAKE_SGLANG_CRASH" in os.environ:
        crash_on_demand(decoding)
    if reported := os.environ.get("FAKE_SGLANG_REPORTS"):
        info = app.server_info
        app.server_info = lambda *place: info(*place) | {"speculative_algorithm": reported}
    address = server.Address(options.host, int(options.port))
    with server.bound_socket(address) as listener:
        server.run(stack, arm_of(options), listener)


main()
