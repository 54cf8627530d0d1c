"""What ablations change in a stack, by name: `<family>_<value>`, as in pool_64 or gdn_node_recurrent.

A variant is another Stack that shares weights with the one it comes from; the decode loop does not know of it.
"""

from __future__ import annotations

from collections.abc import Callable

from tfm_bench.config import DEFAULT_VARIANT
from tfm_bench.engine import Stack
from tfm_bench.errors import UserError
from tfm_bench.variants.auto import auto
from tfm_bench.variants.chain import chain
from tfm_bench.variants.gdn import gdn
from tfm_bench.variants.rule import rule
from tfm_bench.variants.weaver import pool, weaver

FAMILIES: dict[str, Callable[[Stack, str], Stack]] = {
    "auto": auto,
    "chain": chain,
    "gdn": gdn,
    "pool": pool,
    "rule": rule,
    "weaver": weaver,
}


def variant_of(stack: Stack, name: str) -> Stack:
    """The stack under this variant. Raises UserError for a name that no family knows."""
    if name == DEFAULT_VARIANT:
        return stack
    family, _, value = name.partition("_")
    if family not in FAMILIES:
        raise UserError(f"variant: found {name!r}; accepted are names that begin with {', '.join(FAMILIES)}")
    return FAMILIES[family](stack, value)
