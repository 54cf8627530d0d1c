"""The algorithms of an installation: those of upstream SGLang, or of the fork that has trees."""

import enum
import os

NAMES = ["DFLASH", "EAGLE", "NONE", *(["DFLASH_TFM"] if os.environ.get("FAKE_SGLANG_FORK") else [])]


class _FromString:
    @classmethod
    def from_string(cls, name):
        try:
            return cls[name.upper()]
        except KeyError:
            raise ValueError(f"Unknown speculative algorithm name: {name}") from None


SpeculativeAlgorithm = enum.Enum("SpeculativeAlgorithm", NAMES, type=_FromString)
