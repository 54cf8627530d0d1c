"""Stands in for tfm_bench.measure.example_tree: a tree of two drafts, without a stack."""

from __future__ import annotations

from pathlib import Path

from tfm_bench.config import CellSettings
from tfm_bench.measure.files import write_text

VERSION = 1
ORIGIN = "tiny,math,dev,p0,1.0,tfm,15,1,3"
MACHINE = "some text,Some CPU,2,float32,2026-11-30T08:00:00+00:00"
ROWS = ["0,-1,0,anchor,7,$a,,1.0,,True", "1,0,1,draft,8,b,0.9,0.9,0.2,False", "2,0,1,draft,9,$c,0.1,0.1,0.8,True"]
ROWS = [*ROWS, "3,2,2,bonus,5,d,,,0.5,True"]
COLUMNS = (
    "stack,dataset,split,prompt_id,temperature,method,budget,expansion_width,round,node,parent,depth,kind,token_id,token,"
    "edge_probability,path_probability,target_probability,accepted,context,device,threads,dtype,measured_at"
)


def example_tree(settings: CellSettings, output: Path) -> None:
    assert [arm.method for arm in settings.arms] == ["tfm"]
    write_text(output, "\n".join([COLUMNS, *(f"{ORIGIN},{row},{MACHINE}" for row in ROWS)]) + "\n")
