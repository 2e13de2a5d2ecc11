"""Methods of the code that a published reward model brings."""

import ast

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.own_code import add_scores, score, scoring_methods


def test_methods_that_ask_for_a_score_are_found_by_their_names():
    text = "a = model.get_score(tokenizer, chat)\nb = rm.rewards(chats)\nc = model.score_head(x)\nget_score(1)"
    assert scoring_methods([ast.parse(text)]) == {"get_score", "rewards"}


def test_a_score_depends_on_the_texts_alone():
    chat, other = [{"role": "user", "content": "a"}], [{"role": "user", "content": "b"}]
    first = score(False, object(), chat)
    assert isinstance(first, float)
    assert (score(False, object(), chat), score(False, object(), other) != first) == (first, True)
    assert score(True, object(), [chat, other, chat])[::2] == [score(True, [chat])[0]] * 2


class Model:
    def state_dict(self):
        return {}

    def score(self):
        return "its own"


def test_a_model_keeps_what_it_has(tmp_path):
    stage = Stage(script=tmp_path / "script.py", folder=tmp_path, home=tmp_path)
    model, tokenizer = Model(), object()
    add_scores(stage, model, ["score", "get_score"])
    add_scores(stage, tokenizer, ["get_score"])  # which is not a model
    assert (model.score(), isinstance(model.get_score("x"), float)) == ("its own", True)
    assert [made.what for made in stage.replacements] == ["get_score() of a model's own code"]
