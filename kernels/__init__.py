"""Kernels of tree drafting and verification: torch, C++ and Triton; nothing here knows a model."""

import os

# Triton 3.9 warns where this is left open, and a later default would change rounding.
os.environ.setdefault("TRITON_DEFAULT_FP_FUSION", "1")
