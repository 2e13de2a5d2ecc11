"""The page in a real browser: it loads without a complaint, its controls work, and nothing that a model wrote acts."""

import math
import threading
import time
import xml.etree.ElementTree as ElementTree

import pytest
from fixtures.fake_records import fake_record
from report.browsers import opened_browser
from report.pages import hostile_run, small_run

from assay.record import RunDirectory
from assay.record.batch import Batch
from assay.record.batch_file import write_batch
from assay.report.compare import compare_page
from assay.report.live import LivePage, make_live_page, server_of
from assay.report.notebook import Run
from assay.report.opened import open_path
from assay.report.page import page_of

SIZES = [(1280, 900), (380, 800)]


@pytest.fixture(scope="module")
def browser():
    with opened_browser() as browser:
        yield browser


@pytest.fixture(scope="module")
def pages(browser, tmp_path_factory):
    """Files by what they show. Asked for after the browser: without one nothing is made."""
    root = tmp_path_factory.mktemp("pages")
    run = small_run(root / "run", steps=6)
    sick = small_run(root / "sick", steps=2)
    (sick / "examined").mkdir()
    write_batch(sick / "examined" / "step-000001-update-1.safetensors", sick_batch())
    frame = Run(root / "run")
    texts = {
        "run": page_of(open_path(run)),
        "sick": page_of(open_path(sick)),
        "hostile": page_of(open_path(hostile_run(root / "hostile"))),
        "notebook": f"<!doctype html><p>a notebook</p>{Run(root / 'hostile')._repr_html_()}",
        "compare": compare_page([open_path(run), open_path(sick)]),
    }
    assert frame.charts
    for name, text in texts.items():
        (root / f"{name}.html").write_text(text, encoding="utf-8")
    return {name: root / f"{name}.html" for name in texts}


def sick_batch():
    """The first update of a rollout batch, whose ratio is not 1 at one token: row 2, token 1."""
    old = [[-1.0, -0.5, -0.25]] * 4
    new = [list(row) for row in old]
    new[2][1] = -1.5
    return Batch.of(
        {
            "tokens": [[7, 8, 1]] * 4, "mask": [[1, 1, 1], [1, 1, 1], [1, 1, 1], [1, 1, 0]], "old_logprobs": old,
            "new_logprobs": new, "rewards": [1.0, 0.0, 1.0, 0.0], "group_ids": [0, 0, 1, 1], "step": 1, "update": 0,
            "advantages": [0.5, -0.5, 0.5, -0.5], "lengths": [3, 3, 3, 3], "eos_ids": (1,), "finished": [1, 1, 1, 0],
            "entropy": [[0.5, 0.25, 0.125]] * 4, "clipped": [[0, 0, 0], [0, 0, 0], [0, 1, 0], [0, 0, 0]],
        },
        texts={"prompt": ["p>", "p>", "q>", "q>"], "completion": ["ab"] * 4},
    )  # fmt: skip


@pytest.mark.parametrize("name", ["run", "sick", "hostile", "notebook", "compare"])
@pytest.mark.parametrize("size", SIZES, ids=["wide", "380 pixels"])
def test_a_page_loads_without_a_complaint_and_fits_its_window(browser, pages, name, size):
    browser.open(pages[name], *size)
    assert browser.complaints() == []
    assert browser.overflow() <= 0


def test_the_cursor_is_shared_by_all_curves(browser, pages):
    browser.open(pages["run"])
    browser.point('figure[data-chart="entropy"] > svg', 0.999)
    assert browser.text("#cursor-step") == "step 6"
    assert browser.count(".cursor.on") >= 12
    browser.point('figure[data-chart="entropy"] > svg', 0.0)
    assert browser.text("#cursor-step") == "step 1"
    assert browser.text('figure[data-chart="reward"] output') == "1.333"


def test_the_cursor_moves_by_keys(browser, pages):
    browser.open(pages["run"])
    for step in (1, 2, 3):
        browser.press("ArrowRight", 'figure[data-chart="loss"]')
        assert browser.text("#cursor-step") == f"step {step}"
    browser.press("ArrowLeft", 'figure[data-chart="loss"]')
    assert browser.text("#cursor-step") == "step 2"


def test_a_finding_leads_to_its_token(browser, pages):
    browser.open(pages["sick"])
    assert browser.text("#finding-RAT01 .chip.proven") == "proven"
    browser.click('#finding-RAT01 .jump[data-row="2"][data-token="1"]:not([hidden])')
    assert browser.texts("#group .token.chosen") == ["b"]
    detail = browser.text("#detail")
    for words in ("id8", "place1", "log-ratio-1", f"ratio{math.exp(-1):.4g}", "entropy0.25", "clippedyes"):
        assert words in detail
    assert browser.complaints() == []


def test_a_row_opens_its_completions_side_by_side_with_the_best_first(browser, pages):
    browser.open(pages["sick"])
    browser.click("#groups-table .prompt")
    assert browser.count("#group .completion") == 2
    assert browser.texts("#group .completion h4")[0].startswith("reward 1")
    assert browser.texts("#group .completion:first-child .token") == ["a", "b", "[end]"]
    browser.click("#close-group")
    assert browser.count("#group .completion") == 0


def test_a_token_is_coloured_by_its_channel_and_a_neutral_one_is_not(browser, pages):
    browser.open(pages["sick"])
    browser.click("#jump-peak")
    colour = "return document.querySelector(`#group .text[data-row='2'] .token[data-token='${arguments[0]}']`).style"
    assert browser.run(f"{colour}.backgroundColor", 0) == ""
    assert "--low" in browser.run(f"{colour}.backgroundColor", 1), "a ratio below 1"
    assert browser.run("return document.querySelector('#group .token.chosen').classList.contains('clipped')")
    browser.click('[data-channel="entropy"]')
    assert "--high" in browser.run(f"{colour}.backgroundColor", 0)
    assert (
        browser.run("return document.querySelector('[data-channel=\"entropy\"]').getAttribute('aria-pressed')")
        == "true"
    )
    assert "Not recorded here: gradient" in browser.text("#group")


def test_what_is_not_in_the_loss_is_hatched_and_what_was_cut_off_is_marked(browser, pages):
    browser.open(pages["sick"])
    browser.click("#jump-peak")
    assert browser.count("#group .text[data-row='3'] .token.masked") == 1
    hatch = "return getComputedStyle(document.querySelector('#group .token.masked')).backgroundImage"
    assert "repeating-linear-gradient" in browser.run(hatch)
    assert browser.count("#groups-table .cell.cut") == 1


def test_what_is_not_a_number_and_what_is_behind_the_end_stand_out(browser, pages, tmp_path):
    batch = sick_batch()
    batch.arrays["new_logprobs"][0, 1] = math.nan
    batch.arrays["lengths"][0] = 2
    write_batch(tmp_path / "batch.safetensors", batch)
    (tmp_path / "batch.html").write_text(page_of(open_path(tmp_path / "batch.safetensors")), encoding="utf-8")
    browser.open(tmp_path / "batch.html")
    browser.click("#groups-table tr[data-group='0'] .prompt")
    browser.click('[data-channel="logprob"]')
    assert browser.texts("#group .text[data-row='0'] .token.broken") == ["b"]
    assert browser.texts("#group .text[data-row='0'] .token.beyond") == ["[end]"]
    browser.point("#group .text[data-row='0'] .token.broken")
    assert "log-probnot a number" in browser.text("#detail")


def test_pointing_at_a_token_shows_its_numbers(browser, pages):
    browser.open(pages["sick"])
    browser.click("#groups-table .prompt")
    browser.point("#group .completion:first-child .token:nth-child(2)")
    assert "id8" in browser.text("#detail")
    browser.press("ArrowRight", "#group .completion:first-child .text")
    assert "id1" in browser.text("#detail")


def test_groups_are_chosen_and_sorted(browser, pages):
    browser.open(pages["sick"])
    options = browser.texts("#groups-controls label:first-child option")
    assert options[0] == "step 1, update 1: 4 completions, examined"
    assert options[1].endswith("recorded")
    browser.choose("#groups-controls label:nth-child(2) select", "reward")
    browser.choose("#groups-controls label:first-child select", "1")
    assert browser.count("#groups-table tbody tr") == 2
    assert browser.complaints() == []


def test_keys_move_through_groups_channels_and_cells(browser, pages):
    browser.open(pages["sick"])
    browser.press("j")
    assert browser.count("#groups-table tr.open") == 1
    first = browser.text("#group h3")
    browser.press("j")
    assert browser.text("#group h3") != first
    browser.press("k")
    assert browser.text("#group h3") == first
    before = browser.text("#channels [aria-pressed=true]")
    browser.press("c")
    assert browser.text("#channels [aria-pressed=true]") != before
    browser.press("m")
    assert browser.count("#group .token.chosen") == 1
    browser.press("Escape")
    assert browser.count("#group .completion") == 0
    browser.press("?")
    assert browser.run("return document.querySelector('dialog').open")
    browser.open(pages["sick"])
    browser.run("document.querySelector('#groups-table .cell').focus()")
    browser.press("ArrowRight", "#groups-table .cell")
    assert browser.run("return document.activeElement.getAttribute('aria-label')").startswith("completion 3")


def test_a_chart_is_saved_as_a_file_that_stands_alone(browser, pages):
    browser.open(pages["run"])
    browser.run(
        "window.saved = []; URL.createObjectURL = (blob) => { window.saved.push(blob); return '#'; };"
        "document.querySelector('figure[data-chart=\"reward\"] .save').click()"
    )
    text = browser.driver.execute_async_script("window.saved[0].text().then(arguments[0])")
    root = ElementTree.fromstring(text)
    assert root.tag == "{http://www.w3.org/2000/svg}svg"
    assert {"style", "text", "line", "path"} <= {part.tag.rpartition("}")[2] for part in root.iter()}
    assert "Reward" in text


def test_the_part_that_is_read_is_marked_in_the_navigation(browser, pages):
    browser.open(pages["run"])
    browser.run("document.querySelector('#setup').scrollIntoView()")
    deadline = time.monotonic() + 5
    while browser.texts("nav a.here") == ["Verdict"] and time.monotonic() < deadline:
        time.sleep(0.02)
    assert browser.count("nav a.here") == 1
    assert browser.run("return document.querySelector('nav').getBoundingClientRect().top") == 0


def test_dark_and_print_have_colours_of_their_own(browser, pages):
    ground = "return getComputedStyle(document.body).backgroundColor"
    browser.open(pages["run"])
    light = browser.run(ground)
    browser.open(pages["run"], dark=True)
    dark = browser.run(ground)
    assert light == "rgb(251, 250, 247)"
    assert dark == "rgb(20, 23, 26)"
    browser.driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print", "features": []})
    assert browser.run("return getComputedStyle(document.querySelector('nav')).display") == "none"
    assert len(browser.driver.print_page()) > 10_000


@pytest.mark.parametrize("name", ["hostile", "notebook"])
def test_nothing_that_a_model_wrote_acts(browser, pages, name):
    browser.open(pages[name])
    if name == "notebook":
        browser.driver.switch_to.frame(0)
    for row in range(browser.count("#groups-table .prompt")):
        browser.run("document.querySelectorAll('#groups-table .prompt')[arguments[0]].click()", row)
        assert browser.run("return window.hacked === undefined && top.length <= 1")
        assert browser.count("img, iframe, object, embed, body style, form, base") == 0
        assert browser.count("script") == 2
        widest = "return Math.max(...[...document.querySelectorAll('#group .text')].map((node) => node.offsetWidth))"
        assert browser.run(widest) <= 1280
    assert row > 10
    assert browser.overflow() <= 0
    browser.driver.switch_to.default_content()
    assert browser.run("return window.hacked === undefined")
    assert browser.complaints() == []


def test_a_page_that_follows_a_run_shows_the_new_step_and_keeps_what_is_open(browser, tmp_path):
    run = small_run(tmp_path / "run", steps=2)
    live = LivePage(run, make_live_page)
    with server_of(live, 0) as server:
        thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
        thread.start()
        try:
            browser.open(f"http://127.0.0.1:{server.server_port}/")
            browser.click("#groups-table .prompt")
            name = browser.text("#group h3")
            RunDirectory.open(run).append_step(fake_record(3))
            live._made_at = float("-inf")
            deadline = time.monotonic() + 30
            while browser.text("#facts dd:nth-of-type(1)") and "3" not in browser.texts("#facts dd")[1]:
                assert time.monotonic() < deadline, "the page did not follow the run"
                time.sleep(0.1)
            assert browser.text("#group h3") == name
            assert browser.complaints() == []
        finally:
            server.shutdown()
            thread.join()
