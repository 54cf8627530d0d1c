"""report.html in a headless Chromium without a network: it is drawn, fits the window, and its tables sort."""

import pytest

from tests.tfm_bench.chromium import CHROMIUM, open_tab
from tests.tfm_bench.report_files import VALUES, made_up_items
from tfm_bench.report.html import html_report

pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium, chromium-browser or google-chrome in PATH")
TABLE = "document.querySelector('#table-stage_times table')"
FIRST_COLUMN = f"Array.from({TABLE}.tBodies[0].rows, row => row.cells[0].dataset.value ?? row.cells[0].textContent)"


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    folder = tmp_path_factory.mktemp("report é")
    items, claims = made_up_items(folder)
    html_report(items, claims, folder / "report.html")
    with open_tab(folder / "profile") as tab:
        tab.resize(1280)
        tab.open(folder / "report.html")
        yield tab


def test_it_loads_nothing_but_itself_and_nothing_complains(tab):
    assert tab.complaints() == []
    asked = [request["request"]["url"] for request in tab.of("Network.requestWillBeSent")]
    assert asked[0].endswith("/report.html")
    assert all(url.startswith("data:image/png;base64,") for url in asked[1:])
    assert tab.evaluate("document.title") == "tfm-bench: tiny"


def test_all_images_are_drawn_with_an_alternative(tab):
    images = tab.evaluate("Array.from(document.images, i => [i.complete, i.naturalWidth, i.naturalHeight, i.alt])")
    assert [image[:3] for image in images] == [[True, 1400, 600]] * 3
    assert images[0][3].startswith("Speedup by dataset: What is drawn, in data.csv <script>")


@pytest.mark.parametrize("width", [1280, 390])
def test_the_page_never_scrolls_sideways_and_wide_tables_do_in_their_box(tab, width):
    tab.resize(width)
    tab.evaluate("document.querySelectorAll('details').forEach(details => details.open = true)")
    page = "document.documentElement"
    assert tab.evaluate("innerWidth") == width
    assert tab.evaluate(f"Math.max({page}.scrollWidth, document.body.scrollWidth)") <= width
    tab.evaluate("scrollTo(10000, 0)")
    assert tab.evaluate("scrollX") == 0
    boxes = tab.evaluate("Array.from(document.querySelectorAll('.box'), box => [box.clientWidth, box.scrollWidth])")
    assert len(boxes) == 1 + 3 + 1
    assert all(shown <= width and whole > shown for shown, whole in boxes[1:])


@pytest.mark.parametrize("width", [1280, 390])
def test_text_and_figures_are_of_a_readable_size(tab, width):
    tab.resize(width)
    sizes = "Array.from(document.querySelectorAll('p, td, dd, button'), e => parseFloat(getComputedStyle(e).fontSize))"
    assert min(tab.evaluate(sizes)) >= 12
    assert min(tab.evaluate("Array.from(document.images, image => image.width)")) >= 640


def test_headers_stay_in_sight_while_a_table_scrolls(tab):
    tab.resize(1280, 120)
    box = "document.querySelector('#table-stage_times .box')"
    tab.evaluate(f"{box}.scrollTop = 40")
    assert tab.evaluate(f"{box}.scrollTop") == 40
    top = "getBoundingClientRect().top"
    assert tab.evaluate(f"{box}.querySelector('th').{top} - {box}.{top}") == pytest.approx(1, abs=1)
    tab.resize(1280)


def test_a_header_sorts_by_number_both_ways_by_mouse_and_by_key_and_keeps_missing_last(tab):
    header = f"{TABLE}.tHead.rows[0].cells[0]"
    assert tab.evaluate(FIRST_COLUMN) == VALUES
    tab.evaluate(f"{header}.querySelector('button').click()")
    assert tab.evaluate(FIRST_COLUMN) == ["-2", "9", "10.123456", "100", ""]
    assert tab.evaluate(f"{header}.ariaSort") == "ascending"
    tab.evaluate(f"{header}.querySelector('button').focus()")
    tab.press_enter()
    assert tab.evaluate(FIRST_COLUMN) == ["100", "10.123456", "9", "-2", ""]
    assert tab.evaluate(f"{header}.ariaSort") == "descending"


def test_text_sorts_as_text_and_one_header_at_a_time_says_so(tab):
    second = f"{TABLE}.tHead.rows[0].cells[1]"
    tab.evaluate(f"{second}.querySelector('button').click()")
    texts = tab.evaluate(f"Array.from({TABLE}.tBodies[0].rows, row => row.cells[1].textContent)")
    assert texts[0].startswith("<script>")
    assert texts[1:] == ["text 0", "text 2", "text 3", "text 4"]
    assert tab.evaluate(f"Array.from({TABLE}.querySelectorAll('[aria-sort]'), cell => cell.cellIndex)") == [1]


def test_other_tables_stay_as_they_were_and_claims_sort_by_what_was_measured(tab):
    claims = "document.querySelector('#claims table')"
    ids = f"Array.from({claims}.tBodies[0].rows, row => row.id.slice(-1)).join('')"
    assert tab.evaluate(ids) == "0123"
    tab.evaluate(f"{claims}.tHead.rows[0].cells[3].querySelector('button').click()")
    assert tab.evaluate(ids) == "2103"


def test_dark_mode_turns_the_page_but_not_the_figures(tab):
    back = "getComputedStyle(document.querySelector('{}')).backgroundColor"
    light = tab.evaluate(back.format("body"))
    tab.call("Emulation.setEmulatedMedia", features=[{"name": "prefers-color-scheme", "value": "dark"}])
    assert light == "rgb(255, 255, 255)"
    assert tab.evaluate(back.format("body")) == "rgb(20, 23, 27)"
    assert tab.evaluate(back.format(".picture")) == "rgb(255, 255, 255)"
    tab.call("Emulation.setEmulatedMedia", features=[])


def test_the_policy_blocks_foreign_scripts_and_every_request(tab):
    """Last: what is blocked here is in the console."""
    assert tab.complaints() == []
    blocked = tab.evaluate(
        """new Promise(done => {
            const seen = [];
            document.addEventListener("securitypolicyviolation", (event) => {
                seen.push(event.effectiveDirective);
                if (seen.length === 3) done(seen.sort());
            });
            const script = document.createElement("script");
            script.textContent = "document.title = 'owned'";
            document.body.append(script);
            new Image().src = "https://example.org/image.png";
            fetch("https://example.org/").catch(() => {});
        })"""
    )
    assert blocked == ["connect-src", "img-src", "script-src-elem"]
    assert tab.evaluate("document.title") == "tfm-bench: tiny"
    assert len(tab.complaints()) >= 3
