"""float32 against bfloat16: what the precision does to text, acceptance and time, and how far commits drift."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pandas as pd
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator
from matplotlib.typing import LineStyleType

from tfm_bench.config import METHODS
from tfm_bench.measure.commit_drift import COMMITS
from tfm_bench.measure.probe_records import probe_table
from tfm_bench.report.ablation_data import AblationData, probe_note
from tfm_bench.report.ablation_rows import arm_rows
from tfm_bench.report.arms import ARM_KEYS, OK
from tfm_bench.report.style import METHOD_STYLES, figure_legend, house_style, new_figure

VERSION = 1
COLUMNS = [
    *["panel", "stack", "dataset", "temperature", "dtype", "method", "budget", "expansion_width", "prompts", "repeats"],
    *["acceptance_length", "acceptance_length_low", "acceptance_length_high"],
    *["round_time_ms", "round_time_ms_low", "round_time_ms_high", "tokens_per_second"],
    *["speedup", "speedup_low", "speedup_high", "noise_low", "noise_high"],
    *["lossless_prompts", "same_text_prompts", "status"],
    *["prompt", "first_divergence", "logit_gap"],
    *["commit", "tokens", "state_error", "logit_error"],
]
REFERENCE = "float32"
DTYPES = (REFERENCE, "bfloat16")
COLOURS = {"float32": "#0072B2", "bfloat16": "#D55E00"}
LINES: dict[str, tuple[LineStyleType, str]] = {"replay": ("-", "o"), "fold": ("--", "^")}
PLACE = ["dataset", "prompt", "repeat"]
OFFSET = 0.12


def table(data: AblationData) -> pd.DataFrame:
    """Three kinds of rows, by `panel`.

    `arms`: one per dtype and arm; `divergence`: one per text that left that of `ar`; `drift`: one per dtype, commit and
    checkpoint.

    lossless_prompts have the tokens of `ar` in the same dtype, same_text_prompts those of `ar` in float32: of the `ar`
    of bfloat16 the latter says how much of the text the precision alone changes.
    """
    settings = data.probe[0].settings
    drift = probe_table(data.probe).assign(
        panel="drift",
        stack=settings.stack.name,
        dataset=settings.ablations.dataset,
        temperature=settings.ablations.temperature,
        method="tfm",
        budget=settings.ablations.precision.budget,
    )
    parts = [_arms(data.decode), _divergences(data.decode), drift]
    rows = [row for part in parts for row in part.to_dict("records")]
    return pd.DataFrame(rows, columns=COLUMNS).astype(dict.fromkeys(["budget", "prompts", "tokens"], "Int64"))


def note(data: AblationData) -> str:
    """Small print of the figure."""
    decode, ablations = data.decode, data.probe[0].settings.ablations
    what = (
        f"n = {decode['prompt'].nunique()} test prompts of {ablations.dataset} × {decode['repeat'].nunique()} repeats, "
        f"T = {ablations.temperature:g}, {ablations.precision.budget} draft nodes.\n"
        "Whiskers: 95 % percentile intervals, paired bootstrap over prompts, 10,000 draws. Drift: one text of "
        f"{ablations.precision.drift_tokens} tokens, against float64."
    )
    return probe_note(data.probe, what)


def figure(table: pd.DataFrame, note: str) -> Figure:
    """Acceptance, round time and identical texts by method; logit gaps of divergences; drift of both commits."""
    arms, drift = table[table["panel"] == "arms"], table[table["panel"] == "drift"]
    with house_style():
        figure, panels = new_figure(2, 3, note)
        (length, time, texts), (gaps, states, logits) = panels
        drafting = arms[arms["method"] != "ar"]
        _by_method(length, drafting, "acceptance length", drafting["acceptance_length"], interval="acceptance_length")
        length.set_ylim(bottom=1)
        _by_method(time, arms, "round time (ms)", arms["round_time_ms"], interval="round_time_ms")
        time.set_ylim(bottom=0)
        _texts(texts, arms)
        _gaps(gaps, table[table["panel"] == "divergence"])
        _drift(states, drift, "state_error", "drift of states (relative RMS)")
        _drift(logits, drift, "logit_error", "drift of logits (relative RMS)")
        figure_legend(figure, [[time, texts]])
        _commit_legend(states)
    return figure


def _arms(decode: pd.DataFrame) -> pd.DataFrame:
    """arm_rows with the number of prompts whose text is that of `ar`, of the same dtype and of float32."""
    measured = decode[~decode["control"] & (decode["status"] == OK)]
    plain = measured[(measured["method"] == "ar") & (measured["dtype"] == REFERENCE)]
    expected = plain.set_index(PLACE)["tokens_sha256"]
    same = (
        measured["tokens_sha256"].to_numpy() == expected.reindex(pd.MultiIndex.from_frame(measured[PLACE])).to_numpy()
    )
    judged = measured.assign(same_text_prompts=same, lossless_prompts=measured["lossless"].astype(bool))
    keys, counted = ["dtype", *ARM_KEYS], ["same_text_prompts", "lossless_prompts"]
    per_prompt = judged.groupby([*keys, "dataset", "prompt"])[counted].all()
    counts = per_prompt.groupby(keys).sum().reset_index()
    return arm_rows(decode).merge(counts, on=keys, how="left").assign(panel="arms")


def _divergences(decode: pd.DataFrame) -> pd.DataFrame:
    """A row per text of a drafting method that is not that of `ar`."""
    left = decode[~decode["control"] & decode["first_divergence"].notna()]
    columns = ["stack", "dataset", "temperature", "dtype", "method", "budget", "expansion_width"]
    return left[[*columns, "prompt", "first_divergence", "logit_gap"]].assign(panel="divergence")


def _by_method(axes: Axes, arms: pd.DataFrame, title: str, values: pd.Series, interval: str | None = None) -> None:
    """A marker per method and dtype, side by side."""
    methods = [method for method in METHODS if method in set(arms["method"])]
    for shift, dtype in zip((-OFFSET, OFFSET), DTYPES, strict=True):
        rows = arms[arms["dtype"] == dtype]
        x = [methods.index(method) + shift for method in rows["method"]]
        y = values[rows.index]
        ends = None
        if interval is not None:
            ends = [y - rows[f"{interval}_low"], rows[f"{interval}_high"] - y]
        axes.errorbar(x, y, ends, fmt="o", color=COLOURS[dtype], markerfacecolor=_fill(dtype), capsize=2, label=dtype)
    _method_ticks(axes, methods)
    axes.set_title(title, loc="left")


def _texts(axes: Axes, arms: pd.DataFrame) -> None:
    """Share of prompts with the text of `ar`; crosses: with that of float32's."""
    _by_method(axes, arms, "prompts with the text of AR", arms["lossless_prompts"] / arms["prompts"])
    narrow = arms[arms["dtype"] != REFERENCE]
    methods = [method for method in METHODS if method in set(arms["method"])]
    shares = narrow["same_text_prompts"] / narrow["prompts"]
    x = [methods.index(method) + 3 * OFFSET for method in narrow["method"]]
    axes.plot(x, shares, "x", color="#444444", label="bfloat16: text of float32's AR")
    axes.set_ylim(0, 1.05)
    axes.set_ylabel("share of prompts")


def _gaps(axes: Axes, divergences: pd.DataFrame) -> None:
    """How close a call each divergence was."""
    for method, rows in divergences.groupby("method"):
        style = METHOD_STYLES[str(method)]
        axes.plot(
            rows["first_divergence"].astype(float), rows["logit_gap"].astype(float), style.marker, color=style.colour,
            label=style.label,
        )  # fmt: skip
    if divergences.empty:
        axes.text(0.5, 0.5, "no text diverged", transform=axes.transAxes, ha="center", color="#444444")
        axes.set_xticks([])
        axes.set_yticks([])
    else:
        axes.legend(fontsize=6)
    axes.set_title("logit gap where texts part", loc="left")
    axes.set_xlabel("token of the first divergence")
    axes.set_ylim(bottom=min(0, axes.get_ylim()[0]))


def _drift(axes: Axes, drift: pd.DataFrame, column: str, title: str) -> None:
    for dtype in DTYPES:
        for commit in COMMITS:
            rows = drift[(drift["dtype"] == dtype) & (drift["commit"] == commit)]
            line, marker = LINES[commit]
            axes.plot(
                rows["tokens"].astype(float), rows[column], color=COLOURS[dtype], linestyle=line, marker=marker,
                markersize=2.5, linewidth=0.9, markerfacecolor=_fill(dtype), label=f"{commit}, {dtype}",
            )  # fmt: skip
    axes.set_yscale("log", nonpositive="mask")
    _whole_decades(axes, drift[column])
    axes.set_title(title, loc="left")
    axes.set_xlabel("tokens committed")
    axes.xaxis.set_major_locator(MaxNLocator(5))


def _whole_decades(axes: Axes, values: pd.Series) -> None:
    """Limits at powers of ten: noise within one does not fill the panel."""
    positive = values[values > 0]
    if len(positive):
        axes.set_ylim(10.0 ** math.floor(math.log10(positive.min())), 10.0 ** math.ceil(math.log10(positive.max())))


def _commit_legend(axes: Axes) -> None:
    """What line and marker stand for; colours are in the legend of the figure."""
    lines = [
        Line2D([], [], color="#444444", linestyle=line, marker=marker, markersize=2.5)
        for line, marker in LINES.values()
    ]
    axes.legend(lines, list(LINES), fontsize=6, handlelength=3, ncols=2, loc="lower center")


def _fill(dtype: str) -> str:
    """Filled markers are float32, hollow ones bfloat16."""
    return COLOURS[dtype] if dtype == REFERENCE else "white"


def _method_ticks(axes: Axes, methods: Sequence[str]) -> None:
    labels = [METHOD_STYLES[method].label.replace(" ", "\n").replace("-", "-\n") for method in methods]
    axes.set_xticks(range(len(methods)), labels, fontsize=7)
    axes.set_xlim(-0.5, len(methods) - 0.5)
