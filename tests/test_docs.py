"""The pages in docs/ point at pages that exist and count what there is."""

import re
from pathlib import Path

import pytest

from assay.doctor.catalogue import KINDS, illnesses_looking_at

ROOT = Path(__file__).parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_lead_to_files(page):
    text = page.read_text()
    links = [page.parent / link for link in re.findall(r"\]\((?!https?:)([^)#]+)", text)]
    links += [ROOT / name for name in re.findall(r"\bdocs/[a-z-]+\.md\b", text)]
    assert [str(link) for link in links if not link.exists()] == []


def test_messages_name_pages_that_exist():
    texts = [file.read_text() for file in (ROOT / "assay").rglob("*.py")]
    names = {name for text in texts for name in re.findall(r"\bdocs/[a-z-]+\.md\b", text)}
    assert len(names) > 5
    assert [name for name in sorted(names) if not (ROOT / name).exists()] == []


def test_the_example_of_the_doctor_counts_all_checks():
    (count,) = re.findall(r"^(\d+) checks: ", (ROOT / "docs/doctor.md").read_text(), flags=re.MULTILINE)
    assert int(count) == len(illnesses_looking_at(*KINDS))
