"""What holds for the files of every figure."""

from collections.abc import Callable
from pathlib import Path

from matplotlib.figure import Figure

from tfm_bench.report.style import save_figure


def assert_reproducible_truetype(draw: Callable[[], Figure], folder: Path) -> None:
    """The same bytes twice; the PDF embeds its fonts as TrueType and none as Type 3."""
    contents = []
    for name in ("first", "second"):
        pdf, png = folder / f"{name}.pdf", folder / f"{name}.png"
        save_figure(draw(), pdf=pdf, png=png)
        contents.append((pdf.read_bytes(), png.read_bytes()))
    assert contents[0] == contents[1]
    assert b"/Subtype /Type0" in contents[0][0]
    assert b"/Type3" not in contents[0][0]
