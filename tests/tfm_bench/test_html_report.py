"""What stands in report.html, where it comes from, and what is an error."""

import base64
import hashlib
import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from tests.tfm_bench.report_files import HOSTILE, made_up_items, png, records, write_csv
from tfm_bench.errors import UserError
from tfm_bench.report.html import html_report
from tfm_bench.report.html_items import read_caption, read_picture, read_table, shown
from tfm_bench.report.html_origins import facts, read_origins

CAPTIONS = sorted((Path(__file__).parents[2] / "workflows" / "report").glob("*.rst"))
VOID = {"meta", "link", "img", "br"}


class Page(HTMLParser):
    """Tags with attributes, visible text, what stands in script and style, and whether all that opens is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags, self.text, self.code, self.open = [], "", {"script": [], "style": []}, []
        self.feed(text)

    def handle_starttag(self, tag, attributes):
        self.tags.append((tag, dict(attributes)))
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        if self.open and self.open[-1] in self.code:
            self.code[self.open[-1]].append(data)
        else:
            self.text += data

    def all(self, tag: str) -> list[dict]:
        return [attributes for name, attributes in self.tags if name == tag]


@pytest.fixture
def page(tmp_path):
    items, claims = made_up_items(tmp_path)
    html_report(items, claims, tmp_path / "report.html")
    return Page((tmp_path / "report.html").read_text(encoding="utf-8"))


def test_claims_come_first_then_figures_by_category_then_tables(page):
    assert not page.open
    sections = [section["id"] for section in page.all("section")]
    assert sections == ["claims", "speedup", "stage-times", "ablations", "tables"]
    articles = ["figure-speedup_by_dataset", "figure-stage_times", "figure-ablation_pool", "table-stage_times"]
    assert [article["id"] for article in page.all("article")] == articles
    targets = [link["href"] for link in page.all("a")]
    assert len(targets) == len(sections) + len(articles)
    ids = [attributes["id"] for _, attributes in page.tags if "id" in attributes]
    assert len(set(ids)) == len(ids)
    assert {target.removeprefix("#") for target in targets} <= set(ids)


def test_every_item_says_what_it_shows_when_it_was_measured_and_how_to_make_it(page, tmp_path):
    words = " ".join(page.text.split())
    sha256 = hashlib.sha256((tmp_path / "data.csv").read_bytes()).hexdigest()
    assert words.count(f"data.csv, sha256 {sha256}") == 4
    assert words.count("2026-11-30; stack tiny; dataset math; temperature 0.0; device made-up CPU") == 5
    assert words.count("dtype float32; torch 2.13.0; commit 0123456789ab with uncommitted changes") == 5
    for command in ("figures/ablation_pool.png", "results/tables/stage_times.csv", "results/claims.csv"):
        assert f"Reproduce snakemake {command} " in words
    assert words.count("Plotted numbers, 5 rows") == 3


def test_verdicts_stand_with_measured_values_and_intervals(page):
    words = " ".join(page.text.split())
    for verdict in ("reproduced", "direction only", "contradicted", "not testable here"):
        assert f"{verdict} 1" in words
    assert "4.37 10.5 1.25 to 12.35 ratio" in words
    assert "not testable here claim <script>" in words


def test_what_files_say_is_text_and_never_markup(page):
    assert [len(code) for code in page.code.values()] == [1, 1]
    assert {tag for tag, _ in page.tags} & {"iframe", "object", "embed", "base", "form"} == set()
    assert all(image["src"].startswith("data:image/png;base64,") for image in page.all("img"))
    assert not [name for _, attributes in page.tags for name in attributes if name.startswith("on") or name == "style"]
    # Column and cell in four tables, claims in four rows, captions in five places, alternatives, the device.
    assert page.text.count(HOSTILE) >= 4 * 2 + 4 + 5


def test_nothing_is_loaded_and_only_this_script_and_style_act(page):
    loading = [value for _, attributes in page.tags for name, value in attributes.items() if name in ("src", "href")]
    assert all(value.startswith(("data:", "#")) for value in loading)
    assert not re.search(r"url\(|@import", page.code["style"][0])
    (policy,) = (meta["content"] for meta in page.all("meta") if meta.get("http-equiv") == "Content-Security-Policy")
    for kind in ("style", "script"):
        value = base64.b64encode(hashlib.sha256(page.code[kind][0].encode()).digest()).decode()
        assert f"{kind}-src 'sha256-{value}';" in policy
    assert policy.startswith("default-src 'none'; img-src data:;")


def test_numbers_are_short_where_they_are_read_and_whole_where_they_sort(tmp_path):
    shorter = {
        "0.123456": "0.1235",
        "1234.56": "1235",
        "123456.78": "123457",
        "1e-07": "1e-07",
        "0.0000012345": "1.234e-06",
    }
    same = {text: text for text in ("", "12345678", "-3", "0.5", "True", "v1.2", "nan", "inf", "1.2.3")}
    assert {text: shown(text) for text in shorter | same} == shorter | same
    table = read_table(write_csv(tmp_path / "t.csv", ["a", "b", "c"], [["1.23456", "", "1"], ["", "", "no"]]))
    assert table.numeric == [True, True, False]
    assert [cell.value for cell in table.rows[0]] == ["1.23456", "", "1"]
    assert [cell.text for cell in table.rows[0]] == ["1.235", "", "1"]


def test_origins_are_those_of_all_records_once(tmp_path):
    first = records(tmp_path / "a.jsonl", day="2026-11-28", commit="a" * 40)
    last = records(tmp_path / "b.jsonl", day="2026-11-30", commit="")
    measured = write_csv(
        tmp_path / "c.csv",
        ["stack", "device", "threads", "measured_at"],
        [["tiny", "other CPU", "4", "2026-11-29T01:00"]],
    )
    found = [read_origins(path) for path in (first, last, measured)]
    assert [len(origins) for origins in found] == [1, 1, 1]
    assert facts(origin for origins in found for origin in origins) == {
        "measured": "2026-11-28 to 2026-11-30",
        "stack": "tiny",
        "dataset": "math",
        "temperature": "0.0",
        "device": "made-up CPU, other CPU",
        "threads": "2, 4",
        "dtype": "float32",
        "torch": "2.13.0",
        "commit": "aaaaaaaaaaaa with uncommitted changes",
    }
    assert facts([]) == {}


@pytest.mark.parametrize(
    ("read", "name", "content", "expected"),
    [
        (
            read_caption,
            "c.rst",
            "Open ``literal\n",
            "c.rst:1: (WARNING/2) Inline literal start-string without end-string.",
        ),
        (read_caption, "c.rst", ".. include:: /etc/hostname\n", "c.rst:1: (WARNING/2)"),
        (read_caption, "c.rst", ".. raw:: html\n\n   <b>\n", "c.rst:1: (WARNING/2)"),
        (read_picture, "i.png", "GIF", "i.png: found no PNG"),
        (read_table, "t.csv", "", "t.csv: found nothing"),
        (read_table, "t.csv", "a,b\n1,2\n3\n", "t.csv: found row 2 with 1 values"),
        (read_origins, "r.jsonl", "{}\n", "r.jsonl: found a record without origin"),
        (read_origins, "r.jsonl", "{\n", "r.jsonl: found a record without origin"),
        (read_origins, "r.csv", "device\nCPU\n", "r.csv: found a record without origin"),
    ],
)
def test_what_cannot_be_shown_is_one_line_that_names_the_file(tmp_path, read, name, content, expected):
    (tmp_path / name).write_text(content, encoding="utf-8")
    with pytest.raises(UserError) as caught:
        read(tmp_path / name)
    assert expected in str(caught.value)
    assert "\n" not in str(caught.value)


def test_claims_without_a_column_are_an_error_and_leave_no_page(tmp_path):
    items, claims = made_up_items(tmp_path)
    write_csv(claims.data, ["id", "claim"], [["a", "b"]])
    with pytest.raises(UserError, match="found no column 'setting'"):
        html_report(items, claims, tmp_path / "report.html")
    assert not (tmp_path / "report.html").exists()


def test_a_picture_keeps_its_shape(tmp_path):
    (tmp_path / "i.png").write_bytes(png(1400, 700))
    picture = read_picture(tmp_path / "i.png")
    assert (picture.width, picture.height) == (896, 448)


@pytest.mark.parametrize("path", CAPTIONS, ids=lambda path: path.stem)
def test_captions_are_plain_text_that_needs_no_template(path):
    caption = read_caption(path)
    assert "{{" not in caption.html
    assert "{%" not in caption.html
    assert caption.html.count("<p>") == 1
    assert caption.sentence
