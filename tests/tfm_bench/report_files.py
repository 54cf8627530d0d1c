"""Made-up files of a report, with text that is hostile to a page: markup in every place that a file can reach."""

import csv
import json
import struct
import zlib
from pathlib import Path

from tfm_bench.report.claims import COLUMNS
from tfm_bench.report.html_items import Item

HOSTILE = "<script>document.title='owned'</script><img src=x onerror=\"document.title='owned'\">"
# Numbers that sort otherwise as text, a missing one, and one that is shortened where it is shown.
VALUES = ["10.123456", "9", "", "-2", "100"]
CATEGORIES = {"speedup_by_dataset": "Speedup", "stage_times": "Stage times", "ablation_pool": "Ablations"}
VERDICTS = ("reproduced", "direction only", "contradicted", "not testable here")


def png(width: int, height: int) -> bytes:
    """A grey picture."""
    rows = b"".join(b"\0" + b"\x80" * width for _ in range(height))
    chunks = (
        (b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)),
        (b"IDAT", zlib.compress(rows)),
        (b"IEND", b""),
    )
    parts = (
        struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data)) for kind, data in chunks
    )
    return b"\x89PNG\r\n\x1a\n" + b"".join(parts)


def write_csv(path: Path, columns: list[str], rows: list[list[str]]) -> Path:
    with path.open("w", encoding="utf-8", newline="") as file:
        csv.writer(file, lineterminator="\n").writerows([columns, *rows])
    return path


def records(
    path: Path, *, device: str = "made-up CPU", day: str = "2026-11-30", commit: str = "0123456789abcdef"
) -> Path:
    """Two raw records that a cell could have left."""
    origin = {"commit": commit, "dirty": True, "versions": {"torch": "2.13.0"}, "device": device, "threads": 2}
    origin |= {"dtype": "float32", "finished_at": f"{day}T10:00:00Z"}
    settings = {"stack": {"name": "tiny", "dtype": "float32"}, "dataset": "math", "temperature": 0.0}
    path.write_text((json.dumps({"settings": settings, "provenance": origin}) + "\n") * 2, encoding="utf-8")
    return path


def made_up_items(folder: Path) -> tuple[list[Item], Item]:
    """Three figures and a table with the name of one of them; the claims."""
    raw = records(folder / "raw.jsonl", device=f"made-up CPU {HOSTILE}")
    wide = [f"column_{place}" for place in range(40)]
    rows = [
        [value, HOSTILE if place == 1 else f"text {place}", *["0.5"] * len(wide)] for place, value in enumerate(VALUES)
    ]
    data = write_csv(folder / "data.csv", ["value", f"column {HOSTILE}", *wide], rows)
    caption = folder / "caption.rst"
    caption.write_text(f"What is *drawn*, in ``data.csv`` {HOSTILE}. 95 % intervals.", encoding="utf-8")
    image = folder / "image.png"
    image.write_bytes(png(1400, 600))
    figures = [
        Item(name, category, caption, data, f"snakemake figures/{name}.png", (raw,), image)
        for name, category in CATEGORIES.items()
    ]
    table = Item("stage_times", "Tables", caption, data, "snakemake results/tables/stage_times.csv", (raw,))
    claims = write_csv(
        folder / "claims.csv", COLUMNS, [claim(place, verdict) for place, verdict in enumerate(VERDICTS)]
    )
    return [*figures, table], Item("claims", "Tables", caption, claims, "snakemake results/claims.csv", (raw,))


def claim(place: int, verdict: str) -> list[str]:
    """A row of claims.csv; the last verdict has no numbers."""
    numbers = ["", "", "", ""] if verdict == VERDICTS[-1] else ["4.37", f"{10 - place}.5", "1.25", "12.345678"]
    return [
        f"claim_{place}",
        f"claim {HOSTILE}",
        "a setting",
        *numbers,
        "ratio",
        verdict,
        "a reason " * 20,
        "table_headline",
    ]
