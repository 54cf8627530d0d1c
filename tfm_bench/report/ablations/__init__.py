"""Ablations: from raw records to what each figure draws. One module per ablation, named like it.

A module has VERSION, `table(data) -> DataFrame` (exactly what is drawn, a row per mark), `note(data) -> str` (device,
date, n and kind of interval, the small print) and `figure(table, note) -> Figure`; its caption is
workflows/report/ablation_<name>.rst.
"""
