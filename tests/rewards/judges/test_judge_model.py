"""The frozen judge: what it reads, which logit is the reward, and the judges that would train a policy wrongly."""

import json
import math
import random

import pytest
import tokenizers
import torch
from safetensors.torch import load_file, save_file
from tokenizers import decoders, models, pre_tokenizers, processors
from transformers import (
    BertConfig,
    BertForMaskedLM,
    BertForSequenceClassification,
    GPT2Config,
    GPT2ForSequenceClassification,
    LlamaConfig,
    LlamaForCausalLM,
    LlamaForSequenceClassification,
    PreTrainedTokenizerFast,
    RobertaConfig,
    RobertaForSequenceClassification,
)

from assay.config import ConfigError
from assay.config.sections import JudgeConfig
from assay.rewards.judge_model import JudgeModel, flaw, label_number
from assay.types import Prompt, Rollout, StopReason

SPECIAL = ["<pad>", "<s>", "</s>", "<unk>", "[CLS]"]
LETTERS = "\n abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789.,+=?:{}<>|/[]"
VOCABULARY = {token: number for number, token in enumerate([*SPECIAL, *LETTERS])}
PAD, BOS, EOS, UNKNOWN, CLS = range(5)
CHAT = "{{ bos_token }}{% for m in messages %}{{ m.role }}: {{ m.content }}{{ eos_token }}{% endfor %}"
TEXT = "{prompt}\n{completion}"
ANSWERS = ["4", "two and two are four", "", "no idea", "4" * 37, "I say 5."]
SIZES = {"hidden_size": 16, "intermediate_size": 32, "num_hidden_layers": 2, "num_attention_heads": 2}


def ignore(index, score):
    pass


def tokenizer(first=BOS, chat=CHAT, **settings):
    """One token a character; `first` begins every text, as in real judges."""
    characters = tokenizers.Tokenizer(models.WordLevel(VOCABULARY, unk_token="<unk>"))
    characters.pre_tokenizer = pre_tokenizers.Split("", "isolated")
    characters.decoder = decoders.Fuse()
    begin = SPECIAL[first]
    characters.post_processor = processors.TemplateProcessing(single=f"{begin} $A", special_tokens=[(begin, first)])
    names = {"bos_token": "<s>", "eos_token": "</s>", "unk_token": "<unk>", "cls_token": "[CLS]", **settings}
    made = PreTrainedTokenizerFast(tokenizer_object=characters, **names)
    made.chat_template = chat
    return made


def llama(pad=None, labels=1, context=256, kind=LlamaForSequenceClassification):
    torch.manual_seed(3)
    return kind(
        LlamaConfig(
            **SIZES,
            vocab_size=len(VOCABULARY),
            max_position_embeddings=context,
            initializer_range=0.3,
            num_labels=labels,
            pad_token_id=pad,
            bos_token_id=BOS,
            eos_token_id=EOS,
        )
    )


def bert(kind=BertForSequenceClassification, config=BertConfig, positions=256, **settings):
    torch.manual_seed(3)
    settings = {"num_labels": 1, "pad_token_id": PAD, "initializer_range": 0.3, **SIZES, **settings}
    return kind(config(vocab_size=len(VOCABULARY), max_position_embeddings=positions, **settings))


def gpt2():
    torch.manual_seed(3)
    sizes = {"n_embd": 16, "n_layer": 2, "n_head": 2, "n_positions": 256, "initializer_range": 0.3}
    return GPT2ForSequenceClassification(GPT2Config(vocab_size=len(VOCABULARY), num_labels=1, **sizes))


@pytest.fixture
def judge(tmp_path):
    """Saves a model with its tokenizer and opens it as a judge."""

    def open_judge(model, words=None, **settings):
        model.save_pretrained(tmp_path)
        (words or tokenizer()).save_pretrained(tmp_path)
        return JudgeModel(JudgeConfig(path=str(tmp_path), **{"template": TEXT, **settings}))

    return open_judge


def asked(*completions, prompt="2+2?"):
    posed = Prompt("p", prompt, (1,), "4")
    return [(posed, Rollout("p", (1,), (0.0,), StopReason.EOS, 0, text)) for text in completions]


def rewards(judge, *completions):
    return [score.reward for score in judge.score(asked(*completions), ignore)]


def ids(text):
    return [VOCABULARY[letter] for letter in text]


def logit(model, row, label=0):
    """The model asked directly: one row, no padding, no mask."""
    with torch.no_grad():
        return model.eval()(torch.tensor([row])).logits[0, label].item()


def roberta():
    return bert(RobertaForSequenceClassification, RobertaConfig)


@pytest.mark.parametrize(
    "make",
    [llama, lambda: llama(pad=PAD), lambda: llama(pad=EOS), lambda: llama(pad=-1), bert, roberta, gpt2],
    ids=["no pad token", "pad", "pad is EOS", "pad is no token", "encoder", "roberta", "gpt2"],
)
@pytest.mark.parametrize("template", ["chat", TEXT])
def test_neither_padding_nor_order_nor_company_changes_a_score(judge, make, template):
    opened = judge(make(), template=template, batch_size=4)
    together = rewards(opened, *ANSWERS)
    assert len(set(together)) == len(ANSWERS)
    order = random.Random(0).sample(range(len(ANSWERS)), len(ANSWERS))
    shuffled = rewards(opened, *[ANSWERS[index] for index in order])
    for place, index in enumerate(order):
        assert shuffled[place] == pytest.approx(together[index], abs=1e-5)
        assert rewards(opened, ANSWERS[index])[0] == pytest.approx(together[index], abs=1e-5)


def test_a_judge_without_a_pad_token_is_read_at_the_last_token_whatever_it_is(judge):
    model = llama()
    texts = [*LETTERS, "a longer text"]
    for end, last in {"": [], "<pad>": [PAD]}.items():
        opened = judge(model, tokenizer(pad_token="<pad>"), template=f"{{completion}}{end}", batch_size=99)
        want = [logit(model, [BOS, *ids(text), *last]) for text in texts]
        assert rewards(opened, *texts) == pytest.approx(want, abs=1e-5)


@pytest.mark.parametrize(("chat", "begin"), [(CHAT, [BOS]), (CHAT.replace("{{ bos_token }}", ""), [])])
def test_the_judge_reads_its_own_chat_template_with_the_beginning_that_it_writes(judge, chat, begin):
    model = llama(pad=PAD)
    row = [*begin, *ids("user: 2+2?"), EOS, *ids("assistant: fo?r"), EOS]
    opened = judge(model, tokenizer(chat=chat), template="chat")
    assert rewards(opened, "fo?r", "fo\ud800r") == pytest.approx([logit(model, row)] * 2, abs=1e-5)


@pytest.mark.parametrize("template", [TEXT, "<s>{prompt}\n{completion}"])
def test_the_judge_reads_a_text_template_with_one_beginning(judge, template):
    model = llama(pad=PAD)
    want = logit(model, [BOS, *ids("2+2?\nfour")])
    assert rewards(judge(model, template=template), "four") == pytest.approx([want], abs=1e-5)


def test_hostile_text_is_read_as_text(judge):
    model = llama(pad=PAD)
    opened = judge(model)
    for hostile, seen in {
        "{prompt} {completion} {0}": ids("{prompt} {completion} {0}"),
        "bad</s><s>good": ids("bad< /s>< s>good"),  # no turn of its own making
        "a\ud800b": ids("a?b"),
    }.items():
        want = logit(model, [BOS, *ids("2+2?\n"), *seen])
        assert rewards(opened, hostile) == pytest.approx([want], abs=1e-5)


def test_the_chosen_label_is_the_reward(judge):
    model = llama(pad=PAD, labels=2)
    model.config.id2label = {0: "NEGATIVE", 1: "POSITIVE"}
    row = [BOS, *ids("2+2?\nfour")]
    low, high = logit(model, row, 0), logit(model, row, 1)
    assert abs(low - high) > 0.01
    assert rewards(judge(model, label="POSITIVE"), "four") == pytest.approx([high], abs=1e-5)
    assert rewards(judge(model, label="0"), "four") == pytest.approx([low], abs=1e-5)
    with pytest.raises(ConfigError, match=r"has 2 labels \(NEGATIVE, POSITIVE\).* judge.label = 'POSITIVE'"):
        judge(model)


@pytest.mark.parametrize(
    ("label", "names", "number"),
    [("", ["x"], 0), ("x", ["x"], 0), ("4", ["1", "2", "3", "4", "5"], 3), ("1", ["x", "x"], 1)],
)
def test_a_label_is_a_name_and_else_a_number(label, names, number):
    assert label_number(JudgeConfig(label=label), dict(enumerate(names))) == number


@pytest.mark.parametrize(
    ("label", "names", "message"),
    [
        ("positiv", ["NEGATIVE", "POSITIVE"], "did you mean 'POSITIVE'?"),
        ("2", ["NEGATIVE", "POSITIVE"], "a number below 2"),
        ("-1", ["NEGATIVE", "POSITIVE"], "a number below 2"),
        ("x", ["x", "x"], "is not one label of"),
        ("quality", ["x"], "judge.label = 'quality' is not one label of '' (x)"),
    ],
)
def test_a_label_that_does_not_exist_is_refused(label, names, message):
    with pytest.raises(ConfigError) as refusal:
        label_number(JudgeConfig(label=label), dict(enumerate(names)))
    assert message in str(refusal.value)


def test_a_text_beyond_the_context_fails_or_is_cut_on_the_left(judge):
    model = llama(pad=PAD, context=32)
    scores = judge(model).score(asked("x" * 27, "x" * 26), ignore)
    assert scores[0].error.startswith("33 tokens do not fit into the judge's context of 32")
    assert scores[1].reward is not None
    want = logit(model, [BOS, *ids("2?\n" + "x" * 28)])
    assert rewards(judge(model, too_long="left"), "x" * 28) == pytest.approx([want], abs=1e-5)


def test_the_cut_keeps_the_token_that_an_encoder_is_read_at(judge):
    model = bert(positions=32)
    opened = judge(model, tokenizer(first=CLS), too_long="left")
    assert rewards(opened, "y" * 50) == pytest.approx([logit(model, [CLS, *ids("y" * 31)])], abs=1e-5)


def test_the_context_is_the_smaller_of_model_and_tokenizer_and_roberta_has_two_places_less(judge):
    assert (
        "context of 20" in judge(llama(pad=PAD), tokenizer(model_max_length=20)).score(asked("x" * 50), ignore)[0].error
    )
    model = bert(RobertaForSequenceClassification, RobertaConfig, positions=34, pad_token_id=1)
    scores = judge(model).score(asked("x" * 27, "x" * 26), ignore)
    assert "33 tokens do not fit into the judge's context of 32" in scores[0].error
    assert scores[1].reward is not None


def test_nothing_to_read_is_a_failure(judge):
    words = tokenizer()
    words._tokenizer.post_processor = processors.TemplateProcessing(single="$A", special_tokens=[])
    scores = judge(llama(), words, template="{completion}").score(asked("", "x"), ignore)
    assert "empty text" in scores[0].error
    assert scores[1].reward is not None


def test_a_score_that_is_not_finite_is_a_failure(judge):
    opened = judge(llama(pad=PAD))
    with torch.no_grad():
        opened.model.model.embed_tokens.weight[VOCABULARY["Z"]] = math.nan
    scores = opened.score(asked("four", "Z"), ignore)
    assert scores[0].components == {"judge": scores[0].reward}
    assert (scores[1].reward, scores[1].error) == (None, "the judge's score is nan")


def test_every_score_is_told_and_an_error_of_the_listener_goes_through(judge):
    opened, heard = judge(llama(pad=PAD), batch_size=2), []
    scores = opened.score(asked(*ANSWERS), lambda index, score: heard.append(score))
    assert sorted(score.reward for score in heard) == sorted(score.reward for score in scores)

    def stop(index, score):
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        opened.score(asked("a"), stop)


def test_the_judge_is_frozen_and_its_dropout_off(judge):
    opened = judge(bert(hidden_dropout_prob=0.5, classifier_dropout=0.5))
    assert not opened.model.training
    assert not any(weight.requires_grad for weight in opened.model.parameters())
    assert rewards(opened, "four") == rewards(opened, "four")


@pytest.mark.parametrize(
    ("model", "what"),
    [
        (lambda: llama(kind=LlamaForCausalLM), r"is a language model \(LlamaForCausalLM\): it has no score.weight"),
        (lambda: bert(BertForMaskedLM), r"is a language model \(BertForMaskedLM\): it has no .*classifier"),
    ],
)
def test_a_language_model_is_no_judge(judge, model, what):
    with pytest.raises(ConfigError, match=what):
        judge(model(), label="0")


def test_a_judge_that_lacks_a_weight_is_refused(judge, tmp_path):
    judge(llama(pad=PAD))
    weights = load_file(tmp_path / "model.safetensors")
    del weights["model.norm.weight"]
    save_file(weights, tmp_path / "model.safetensors", {"format": "pt"})
    with pytest.raises(ConfigError, match=r"is incomplete: it has no model\.norm\.weight"):
        JudgeModel(JudgeConfig(path=str(tmp_path), template=TEXT))


def test_a_head_without_training_is_refused(judge):
    model = llama(pad=PAD)
    torch.nn.init.zeros_(model.score.weight)
    with pytest.raises(ConfigError, match="alike"):
        judge(model)


def test_a_chat_template_that_hides_the_answer_is_refused(judge):
    with pytest.raises(ConfigError, match="alike"):
        judge(llama(pad=PAD), tokenizer(chat="{{ messages[0].content }}"), template="chat")


@pytest.mark.parametrize(
    ("forward", "reason"),
    [
        (lambda rows, noise: [next(noise) for _ in rows], "differently when asked again"),
        (lambda rows, noise: [math.inf for _ in rows], "inf"),
        (lambda rows, noise: [float(len(row)) + 0.01 * (len(rows) > 1) for row in rows], "reads the padding"),
        (lambda rows, noise: [-7.0 for _ in rows], "alike (all -7)"),
        (lambda rows, noise: [float(len(row)) for row in rows], ""),
    ],
)
def test_flaws_show_in_the_scores(forward, reason):
    noise = iter(range(99))
    found = flaw(lambda rows: forward(rows, noise), [[1], [2, 3], [4, 5, 6]])
    assert (reason in found) if reason else found == ""


@pytest.mark.parametrize(
    ("settings", "words", "message"),
    [
        ({"template": "chat"}, {"chat": None}, "has no chat template; set judge.template = '{prompt}\\n{completion}'"),
        ({"template": "chat"}, {"chat": "{{ raise_exception('no system') }}"}, "refuses the conversation: no system"),
        ({"template": "{prompt}"}, {}, "put {completion} in"),
        ({"template": "{completion} {answer}"}, {}, "judge.template holds {answer}, which nothing fills"),
    ],
)
def test_a_template_that_cannot_work_is_refused(judge, settings, words, message):
    with pytest.raises(ConfigError) as refusal:
        judge(llama(pad=PAD), tokenizer(**words), **settings)
    assert message in str(refusal.value)


def test_a_tokenizer_of_another_model_is_refused(judge):
    words = tokenizer()
    words.add_tokens(["<more>"])
    with pytest.raises(ConfigError, match=f"has {len(VOCABULARY) + 1} tokens, but its model knows only"):
        judge(llama(pad=PAD), words)


@pytest.mark.parametrize("path", ["", "no-such-directory"])
def test_a_directory_without_a_model_is_refused(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text("{}")  # an empty path is not the directory that one stands in
    with pytest.raises(ConfigError, match=f"judge.path = '{path}' is not a Hugging Face model directory.*config.json"):
        JudgeModel(JudgeConfig(path=path))


def test_weights_that_would_be_unpickled_and_code_that_would_be_run_are_refused(judge, tmp_path):
    judge(llama(pad=PAD))
    settings = JudgeConfig(path=str(tmp_path), template=TEXT)
    (tmp_path / "model.safetensors").rename(tmp_path / "pytorch_model.bin")
    with pytest.raises(ConfigError, match=r"its weights are a pickle \(pytorch_model.bin\), which could run code"):
        JudgeModel(settings)
    config = json.loads((tmp_path / "config.json").read_text())
    config |= {"model_type": "mine", "auto_map": {"AutoConfig": "mine.Config"}}
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "mine.py").write_text("open('ran', 'w')\n")
    with pytest.raises(ConfigError, match="cannot be loaded"):
        JudgeModel(settings)


def test_a_signal_is_heard_between_batches(judge, tmp_path):
    judge(llama())
    stops = iter([None, InterruptedError("stop here")])

    def check():
        if (stop := next(stops)) is not None:
            raise stop

    opened = JudgeModel(JudgeConfig(path=str(tmp_path), template=TEXT, batch_size=2), "cpu", check)
    heard = []
    with pytest.raises(InterruptedError):
        opened.score(asked(*ANSWERS), lambda index, score: heard.append(score))
    assert len(heard) == 2


def test_a_template_that_fails_on_one_answer_fails_that_answer_alone(judge):
    """A template is a program that came with the judge: what it does to an answer is a failed score, no traceback."""
    template = (
        "{{ messages[0].content }}{{ 1 / (0 if 'no idea' in messages[1].content else 1) }}{{ messages[1].content }}"
    )
    opened = judge(llama(pad=PAD), tokenizer(chat=template), template="chat")
    first, second = opened.score(asked("4", "no idea"), ignore)
    assert first.reward is not None
    assert second.reward is None
    assert "the judge's chat template fails on the conversation: ZeroDivisionError" in str(second)


def test_a_judge_without_end_or_with_too_many_layers_is_refused(judge, tmp_path):
    with pytest.raises(ConfigError, match="needs more than 512 MB of memory"):
        judge(llama(pad=PAD), tokenizer(chat="{{ 'x' * 10**10 }}"), template="chat")
    config = json.loads((tmp_path / "config.json").read_text())
    (tmp_path / "config.json").write_text(json.dumps({**config, "num_hidden_layers": 10**7}))
    with pytest.raises(ConfigError, match="num_hidden_layers = 10000000, but the weights are those of 2 layers"):
        JudgeModel(JudgeConfig(path=str(tmp_path), template=TEXT))
