"""Chat templates: the same text as transformers renders, within limits of time, memory and length."""

import os
import signal

import jinja2.sandbox
import pytest
from fixtures.compared import byte_tokenizer
from transformers.utils import chat_template_utils

from assay.foreign.template import TemplateFault, TemplateLimit, TemplateWorker, render_chat
from assay.foreign.template_worker import environment
from assay.policy.codec import PromptRefused, TokenizerCodec

# what the templates in use are made of: namespaces, macros, loop controls, filters, tests, slices, whitespace control
TEMPLATES = [
    "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{{ eos_token }}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}",
    "{%- set ns = namespace(found=false, n=0) %}\n{%- for m in messages %}\n  {%- if m.role == 'system' %}\n    "
    "{%- set ns.found = true %}{% continue %}\n  {%- endif %}\n{% set ns.n = ns.n + 1 %}{{ ns.n }}:"
    "{{ m['content'] | trim }}\n{%- endfor %}\n{{ ns.found }} {{ ns.n }}",
    "{% macro show(m) -%}[{{ m.role|upper }}] {{ m.content }}{%- endmacro %}"
    "{% for m in messages[::-1] %}{{ show(m) }}{% if loop.index == 2 %}{% break %}{% endif %}{% endfor %}",
    "{{ messages | tojson(indent=2) }}{{ {'a': '\u00e4<', 'b': [1, none, true]} | tojson }}",
    "{% if tools is none %}no tools{% endif %}{% if documents is not defined %}?{% else %}!{% endif %}"
    "{{ messages[0].tool_calls is defined }}{{ messages[-1].content.split('+')[0] }}",
    "a{% generation %}{{ messages[0].content }}{% set x = 1 %}{% endgeneration %}{{ x }}b",
    "{{ bos_token }}|{{ pad_token }}|{{ strftime_now('%Y') }}|{{ range(3) | list }}|{{ 'x' ~ 1 }}|{{ '%s' % 'y' }}",
    "{% filter upper %}{% for m in messages %}  {{ m.content }}\n{% endfor %}{% endfilter %}",
]
MESSAGES = [
    {"role": "system", "content": 'Be "brief".\n'},
    {"role": "user", "content": " 1+1? \U0001f600 \u00e4 \ud800 "},
    {"role": "assistant", "content": "<b>2</b>"},
]


def words(template):
    made = byte_tokenizer()
    made.add_special_tokens({"bos_token": "<bos>"})
    made.chat_template = template
    return made


@pytest.mark.parametrize("template", TEMPLATES)
@pytest.mark.parametrize("wanted", [True, False])
def test_the_text_is_the_one_that_transformers_renders(template, wanted):
    tokenizer = words(template)
    expected = tokenizer.apply_chat_template(MESSAGES, add_generation_prompt=wanted, tokenize=False)
    assert render_chat(tokenizer, MESSAGES, add_generation_prompt=wanted) == expected


def test_the_environment_is_the_one_of_transformers():
    theirs, ours = chat_template_utils._compile_jinja_template("").environment, environment()
    assert isinstance(ours, jinja2.sandbox.ImmutableSandboxedEnvironment)
    for name in ("filters", "tests", "globals"):
        assert getattr(ours, name).keys() == getattr(theirs, name).keys()
    for name in (
        "trim_blocks",
        "lstrip_blocks",
        "keep_trailing_newline",
        "autoescape",
        "undefined",
        "newline_sequence",
    ):
        assert getattr(ours, name) == getattr(theirs, name)
    tags = [{tag for extension in made.extensions.values() for tag in extension.tags} for made in (ours, theirs)]
    assert tags[0] == tags[1]


@pytest.mark.parametrize(
    ("template", "words_of_it"),
    [
        ("{{ 'x' * 10**10 }}", "needs more than 512 MB of memory"),
        ("{% set ns = namespace(x='ab') %}{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}", "512 MB"),
        ("{{ '%1000000000d' % 1 }}", "512 MB"),
        ("{{ 'x' * 3000000 }}", "makes 3000000 characters of it, more than"),
    ],
)
def test_a_template_that_takes_too_much_is_refused(template, words_of_it):
    with pytest.raises(TemplateLimit, match=words_of_it):
        render_chat(words(template), MESSAGES[:2], add_generation_prompt=True)


@pytest.mark.parametrize(
    ("template", "sentence"),
    [
        ("{{ raise_exception('roles must\n alternate') }}", "refuses the conversation: roles must alternate"),
        ("a\n{% for %}", r"refuses the conversation: .* \(line 2\)"),
        ("{{ 1 / 0 }}", "fails on the conversation: ZeroDivisionError"),
        ("{{ 1 + 'a' }}", "fails on the conversation: TypeError"),
        ("{{ messages.x.y }}", "refuses the conversation: .* has no attribute 'x'"),
        ("{{ ''.__class__.__mro__ }}", "refuses the conversation: access to attribute '__class__'"),
        ("{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}", "fails on the conversation: RecursionError"),
        ("{% include 'x' %}", "fails on the conversation: TypeError: no loader"),
    ],
)
def test_a_template_that_fails_is_refused_with_its_reason(template, sentence):
    with pytest.raises(TemplateFault, match=sentence) as caught:
        render_chat(words(template), MESSAGES[:2], add_generation_prompt=True)
    assert "\n" not in str(caught.value)
    with pytest.raises(PromptRefused, match="the model's chat template " + sentence):
        TokenizerCodec(words(template)).chat(MESSAGES[:2])


@pytest.mark.parametrize("template", [7, {"other": "x"}, ["x"]])
def test_what_is_not_a_template_is_refused(template):
    tokenizer = words("x")
    tokenizer.chat_template = template
    with pytest.raises(TemplateFault):
        render_chat(tokenizer, MESSAGES[:2], add_generation_prompt=True)


def test_a_tokenizer_with_code_of_its_own_renders_conversations_itself():
    """Such code is run only if model.trust_remote_code says so."""
    tokenizer = words("not used")

    class Own(type(tokenizer)):
        def apply_chat_template(self, conversation, *, add_generation_prompt, tokenize):
            return f"own {len(conversation)} {add_generation_prompt} {tokenize}"

    tokenizer.__class__ = Own
    assert render_chat(tokenizer, MESSAGES, add_generation_prompt=True) == "own 3 True False"


def test_a_long_prompt_is_rendered_whole():
    """A prompt that is too long for the model is said to be too long, which a run may skip."""
    message = {"role": "user", "content": "\u00e4" * 3_000_000}
    assert message["content"] in render_chat(words(TEMPLATES[0]), [message], add_generation_prompt=True)


def test_the_process_is_started_again_when_something_ended_it():
    worker = TemplateWorker()
    assert worker.render("{{ a }}", {"a": 1}) == "1"
    first = worker._process
    os.kill(first.pid, signal.SIGKILL)
    first.wait()
    assert worker.render("{{ a }}", {"a": 2}) == "2"
    assert worker._process.pid != first.pid
    worker.close()


def test_the_process_ends_with_its_parent():
    worker = TemplateWorker()
    worker.render("x", {})
    process = worker._process
    process.stdin.close()  # as the kernel does it when this process is gone
    assert process.wait(timeout=60) == 0
    process.stdout.close()


def test_a_forked_process_has_a_worker_of_its_own():
    worker = TemplateWorker()
    worker.render("x", {})
    parent = worker._process.pid
    result, answer = os.pipe()
    child = os.fork()
    if child == 0:
        text = worker.render("{{ a }}", {"a": "forked"})
        os.write(answer, f"{text} {worker._process.pid}".encode())
        worker.close()
        os._exit(0)
    os.close(answer)
    os.waitpid(child, 0)
    with os.fdopen(result) as stream:
        text, process = stream.read().split()
    assert text == "forked"
    assert int(process) != parent
    assert worker.render("{{ a }}", {"a": "mine"}) == "mine"
    worker.close()
