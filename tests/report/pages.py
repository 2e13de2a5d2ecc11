"""What a page holds, as a browser would parse it, and runs to make pages of."""

import base64
import json
import re
from dataclasses import dataclass, field
from html.parser import HTMLParser

import numpy as np
from fixtures.fake_records import fake_group, fake_record, new_run

from assay import config as configuration
from assay.record import RunDirectory, describe_environment
from assay.types import Score

HOSTILE = {
    "end of a script": "</script><script>window.hacked=1</script>",
    "end of a style": "</style></textarea></title><script>window.hacked=1</script>",
    "event handler": '<img src=x onerror="window.hacked=1"><body onload=window.hacked=1>',
    "attribute": '" onmouseover="window.hacked=1" x=\'',
    "link": "<a href=javascript:window.hacked=1>click</a> javascript:window.hacked=1",
    "style": "<style>*{display:none}</style><p style='position:fixed;inset:0'>",
    "drawing": "<svg onload=window.hacked=1><script>window.hacked=1</script></svg>",
    "frame": "<iframe srcdoc='<script>parent.hacked=1</script>'></iframe><object data=x><embed src=x>",
    "comment": "<!--<script>--><![CDATA[ ]]> <!-- --!>",
    "templates": "{{constructor.constructor('window.hacked=1')()}} ${window.hacked=1} <%= 1 %> #{1} {% raw %}",
    "right to left": "abc\u202egnp.exe\u202c \u2066x\u2069 \u05d0\u05d1\u05d2 \u200f\u200e",
    "control": "a\x00b\x1b[2J\x07\x9b31m\r\n\x0b\x7f",
    "lone surrogate": "a\ud800b\udfffc",
    "line separators": "a\u2028b\u2029c",
    "entities": "&lt;script&gt; &#60;script&#62; &amp;lt;",
    "tall": "Z" + "\u0301" * 400 + "\ufdfd" * 50,
    "long": "x" * 1_000_000,
    "workflow": "::error::x\n##vso[task] x",
    "markdown": "[x](javascript:window.hacked=1) ![x](http://example.org/x.png) | a | b |",
}


@dataclass
class Parsed:
    """Elements of a page in their order, and the texts of some."""

    elements: list[tuple[str, dict[str, str | None]]] = field(default_factory=list)
    text: str = ""
    scripts: list[str] = field(default_factory=list)
    styles: list[str] = field(default_factory=list)

    def named(self, name):
        return [attributes for element, attributes in self.elements if element == name]

    def ids(self):
        return [attributes["id"] for _, attributes in self.elements if "id" in attributes]

    @property
    def data(self):
        return json.loads(self.scripts[0])


class _Reader(HTMLParser):
    def __init__(self):
        super().__init__(convert_charrefs=True)
        self.found, self._inside = Parsed(), ""

    def handle_starttag(self, tag, attrs):
        self.found.elements.append((tag, dict(attrs)))
        if tag in ("script", "style"):
            self._inside = tag
            (self.found.scripts if tag == "script" else self.found.styles).append("")

    def handle_endtag(self, tag):
        if tag == self._inside:
            self._inside = ""

    def handle_data(self, data):
        if self._inside == "script":
            self.found.scripts[-1] += data
        elif self._inside == "style":
            self.found.styles[-1] += data
        else:
            self.found.text += data


def parsed(page):
    reader = _Reader()
    reader.feed(page)
    reader.close()
    return reader.found


def policy_of(page):
    """The content security policy by directive."""
    (meta,) = [one for one in parsed(page).named("meta") if one.get("http-equiv")]
    return dict(part.strip().split(" ", 1) for part in meta["content"].split(";"))


def halves(text):
    """Packed numbers of a channel."""
    return np.frombuffer(base64.b64decode(text), dtype="<f2")


def whole_config(**settings):
    names = [f"{name.replace('__', '.')}={value}" for name, value in settings.items()]
    return configuration.to_toml(configuration.load(None, names), meanings=False)


def hostile_run(path):
    """A run in which prompts, completions, names of problems, errors and events are hostile."""
    run = RunDirectory.create(path, whole_config(run__steps=3), describe_environment(1))
    run.append_event("start", steps=3, parameters=10)
    texts = list(HOSTILE.values())
    groups = tuple(
        fake_group(number, [Score.of({"exact": 1.0}), Score.failed(f"raised {text[:300]}")], text)
        for number, text in enumerate(texts)
    )
    run.append_step(fake_record(1, groups))
    for text in texts:
        run.append_event("failed", reason=text[:2000])
    return run.path


def small_run(path, steps=3, **settings):
    """A run with a whole config and the made steps of fake_records."""
    made = new_run(path, 0)
    (made.path / "config.toml").write_text(whole_config(run__steps=max(steps, 1), **settings))
    (made.path / "checksums.jsonl").unlink()
    for step in range(1, steps + 1):
        made.append_step(fake_record(step))
    return made.path


def sentence_in(page, words):
    return re.search(re.escape(words), " ".join(parsed(page).text.split())) is not None
