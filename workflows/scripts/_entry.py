"""How every script ends: the traceback in its log, one line on the terminal, exit code 1."""

import sys
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

# An environment that Snakemake made from environment.yml has the packages, not this project.
sys.path.insert(0, str(Path(__file__).parents[2]))

from tfm_bench.errors import UserError
from tfm_bench.measure.plan import progress_line


@contextmanager
def entry(log: str) -> Iterator[None]:
    """Run a script's body. A UserError is one line; anything else keeps its traceback for the log."""
    try:
        yield
    except UserError as error:
        Path(log).write_text(f"{error}\n", encoding="utf-8")
        sys.exit(f"error: {error}")
    except Exception as error:
        Path(log).write_text(traceback.format_exc(), encoding="utf-8")
        reason = (str(error).splitlines() or [""])[0]
        sys.exit(f"error: {type(error).__name__}: {reason} (traceback in {log})")
    Path(log).touch()


@contextmanager
def measuring(log: str) -> Iterator[None]:
    """entry for a process that measures: it says first how far the run is."""
    line = progress_line()
    if line is not None:
        print(line, file=sys.stderr)
    with entry(log):
        yield
