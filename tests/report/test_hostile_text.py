"""Whatever a model writes, no element, script or control code of it reaches a page, a terminal, Markdown or Jupyter."""

import html
import json
import re

import pytest
from report.pages import HOSTILE, hostile_run, parsed, policy_of
from typer.testing import CliRunner

from assay.cli import app
from assay.report.compare import compare_page, text_of
from assay.report.doctor_page import page_of_reports
from assay.report.markup import element, script_json
from assay.report.notebook import Run
from assay.report.opened import open_path
from assay.report.page import page_of

FORBIDDEN = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069\ud800-\udfff]")
ELEMENTS = {
    "a", "article", "b", "body", "button", "circle", "code", "dd", "details", "div", "dl", "dt", "figcaption", "figure",
    "footer", "g", "h1", "h2", "h3", "h4", "head", "header", "html", "li", "line", "link", "main", "meta", "nav",
    "noscript", "output", "p", "path", "pre", "rect", "script", "section", "span", "style", "summary", "svg", "table",
    "tbody", "td", "text", "th", "thead", "title", "tr", "ul",
}  # fmt: skip


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return hostile_run(tmp_path_factory.mktemp("hostile") / "run")


@pytest.fixture(scope="module")
def pages(run):
    opened = open_path(run)
    frame = Run(run)._repr_html_()
    return {
        "report": page_of(opened),
        "compare": compare_page([opened, opened]),
        "doctor": page_of_reports([opened.report]),
        "notebook": html.unescape(re.search(r'srcdoc="(.*?)" title', frame, re.DOTALL)[1]),
    }


@pytest.mark.parametrize("which", ["report", "compare", "doctor", "notebook"])
def test_a_page_has_only_elements_of_ours(pages, which):
    found = parsed(pages[which])
    assert {name for name, _ in found.elements} <= ELEMENTS
    assert len(found.scripts) == 2
    assert len(found.styles) == 1
    for _, attributes in found.elements:
        assert not [name for name in attributes if name.startswith("on") or name == "style"]
        assert not str(attributes.get("href", "")).lower().startswith("javascript")


@pytest.mark.parametrize("which", ["report", "compare", "doctor", "notebook"])
def test_no_text_can_end_the_data_or_turn_the_page_round(pages, which):
    found = parsed(pages[which])
    assert "<" not in found.scripts[0]
    assert not FORBIDDEN.search(pages[which])
    assert policy_of(pages[which])["default-src"] == "'none'"


def test_the_texts_are_all_there_to_be_read(pages):
    data = parsed(pages["report"]).data
    prompts = "".join(data["prompts"])
    for words in ("</script>", "onerror", "javascript:", "{{constructor", "\\u202e", "\\x00", "\\ud800"):
        assert words in prompts


def test_a_megabyte_without_a_space_does_not_make_the_page_large(pages):
    assert len(pages["report"]) < 1_000_000
    assert "characters left out" in json.dumps(parsed(pages["report"]).data)


def test_the_notebook_gets_a_frame_without_the_rights_of_the_notebook(run):
    frame = Run(run)._repr_html_()
    (attributes,) = parsed(frame).named("iframe")
    assert attributes["sandbox"].split() == ["allow-scripts", "allow-downloads"]
    assert [name for name, _ in parsed(frame).elements] == ["iframe"]


def test_the_terminal_gets_no_control_codes(run):
    shown = CliRunner().invoke(app, ["show", str(run)])
    assert shown.exit_code == 0
    for text in (shown.stdout, text_of([open_path(run), open_path(run)])):
        assert not FORBIDDEN.search(text)
        assert not re.search(r"(?m)^::|##vso\[", text)


def test_markdown_of_the_doctor_has_no_markup_of_a_model(run, tmp_path):
    out = tmp_path / "doctor.md"
    CliRunner().invoke(app, ["doctor", str(run), "--format", "md", "--out", str(out)])
    text = out.read_text()
    assert not FORBIDDEN.search(text)
    assert not re.search(r"<(script|img|svg|iframe|style|a )", text, re.IGNORECASE)
    assert not re.search(r"(?<!\\)\]\(", text)


@pytest.mark.parametrize("name", HOSTILE)
def test_markup_escapes_text_and_attributes(name):
    text = HOSTILE[name][:5000]
    found = parsed(element("p", text, title=text))
    assert [element_name for element_name, _ in found.elements] == ["p"]
    assert not FORBIDDEN.search(found.text)
    assert set(found.named("p")[0]) == {"title"}


@pytest.mark.parametrize("name", HOSTILE)
def test_data_in_a_script_comes_back_as_it_was(name):
    text = HOSTILE[name][:5000]
    packed = script_json({text: [text]})
    assert json.loads(packed) == {text: [text]}
    assert not re.search("[<>&\u2028\u2029]", packed)
