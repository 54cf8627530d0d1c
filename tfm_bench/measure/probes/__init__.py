"""What ablations measure beside decoding, one module per ablation, named like it: see measure/probe_records.py."""
