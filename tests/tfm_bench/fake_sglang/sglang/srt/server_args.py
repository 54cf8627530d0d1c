"""The arguments of the server that the tests use, under SGLang's names."""

import os

FLAGS = ["model-path", "revision", "host", "port", "dtype", "page-size", "attention-backend"]
FLAGS += ["speculative-algorithm", "speculative-draft-model-path", "speculative-draft-model-revision"]
FLAGS += ["speculative-dflash-block-size", "speculative-num-draft-tokens"]
FORK_FLAGS = ["tree-budget", "path", "proposal"]


class ServerArgs:
    @staticmethod
    def add_cli_args(parser):
        fork = [f"speculative-dflash-tfm-{name}" for name in FORK_FLAGS] if os.environ.get("FAKE_SGLANG_FORK") else []
        for name in [*FLAGS, *fork]:
            parser.add_argument(f"--{name}")
