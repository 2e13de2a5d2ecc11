"""assay.observe in a loop: it tells a finding once, keeps the batch if asked, and leaves everything as it was."""

import gc
import re
import subprocess
import weakref
from pathlib import Path

import numpy as np
import pytest
import torch

import assay
from assay import observation
from assay.doctor.catalogue import by_code as catalogue_by_code
from assay.doctor.examples import healthy_batch
from assay.record.batch import BatchError
from assay.record.batch_file import read_batch
from assay.verdict import Confidence, State

ROOT = Path(__file__).parent.parent


@pytest.fixture(autouse=True)
def _nothing_told_yet():
    observation._doctor.cache_clear()


def fields(**changes):
    batch = healthy_batch()
    return {**batch.arrays, **batch.numbers, **batch.settings, **changes}


def with_ratio_off():
    sick = catalogue_by_code("RAT01").sick().batches[0]
    return {**sick.arrays, **sick.numbers, **sick.settings}


def sick(code):
    batch = catalogue_by_code(code).sick().batches[0]
    return {**batch.arrays, **batch.numbers, **batch.settings}


def test_a_cause_of_an_earlier_batch_does_not_silence_a_later_one(capsys):
    """Repaired and run again in the same notebook: the second bug is printed, although the first could explain it."""
    assert "ADV01" in catalogue_by_code("ADV02").explains
    assay.observe(**sick("ADV02"))
    assert "ADV01" not in capsys.readouterr().err.replace("follows from it: ADV01", "")
    assay.observe(**sick("ADV01"))
    assert "ADV01" in capsys.readouterr().err


def test_a_finding_is_told_once(capsys):
    for step in (1, 2):
        diagnosis = assay.observe(**{**with_ratio_off(), "step": step})
        assert "RAT01" in [word.code for word in diagnosis.findings]
    told = capsys.readouterr()
    assert told.out == ""
    assert len(re.findall(r"^assay: RAT01 ratio_not_one \(harmful, proven\) at step 1", told.err, re.MULTILINE)) == 1
    assert "step 2" not in told.err
    assert "assay explain RAT01" in told.err


def test_a_healthy_batch_is_silent(capsys):
    assert assay.observe(**fields()).findings == []
    assert capsys.readouterr().err == ""


def test_missing_fields_are_named_not_passed():
    diagnosis = assay.observe(mask=[[1]], update=0)
    words = {word.code: word.verdict for word in diagnosis.words}
    assert words["RAT01"].state is State.NOT_ENOUGH_DATA
    assert "new_logprobs" in words["RAT01"].message


def test_an_unknown_field_is_an_error_with_the_nearest():
    with pytest.raises(BatchError, match="did you mean old_logprobs"):
        assay.observe(old_logprob=[[0.0]])


def test_the_batch_is_kept_if_asked(tmp_path):
    path = tmp_path / "new" / "b.safetensors"
    assay.observe(**fields(completion=["x"] * 16), write=path)
    kept = read_batch(path)
    assert kept.texts == {"completion": ["x"] * 16}
    np.testing.assert_array_equal(kept.arrays["tokens"], healthy_batch().arrays["tokens"])


class Bigrams(torch.nn.Module):
    """A model whose log-probs are known: the logits of the next token depend on the last one alone."""

    def __init__(self):
        super().__init__()
        self.table = torch.nn.Embedding(5, 5)
        self.dropout = torch.nn.Dropout(0.5)

    def forward(self, ids):
        return self.dropout(self.table(ids))


def test_with_a_model_logprobs_are_computed_again_and_nothing_is_disturbed():
    torch.manual_seed(0)
    model = Bigrams().train()
    state = torch.get_rng_state()
    tokens, mask = [[3, 1, 0], [2, 4, 4]], [[1, 1, 0], [1, 1, 1]]
    given = {"tokens": tokens, "mask": mask, "prompt_tokens": [[0, 2], [1, 2]], "prompt_mask": [[0, 1], [1, 1]]}
    asked = observation._with_plain_logprobs(observation.Batch.of({**given, "temperature": 0.5}), model)
    table = model.table.weight.detach()

    def by_hand(temperature):
        steps = [[(2, 3), (3, 1)], [(2, 2), (2, 4), (4, 4)]]
        return [[(table[last] / temperature).log_softmax(0)[token].item() for last, token in row] for row in steps]

    for name, temperature in (("plain_logprobs", 0.5), ("plain_raw_logprobs", 1.0)):
        for row, expected in enumerate(by_hand(temperature)):
            np.testing.assert_allclose(asked.arrays[name][row, : len(expected)], expected, atol=1e-6)
    assert model.training
    assert model.dropout.training
    assert torch.equal(torch.get_rng_state(), state)
    with pytest.raises(BatchError, match="needs prompt_tokens, prompt_mask, temperature too"):
        assay.observe(tokens=tokens, mask=mask, model=model)


def test_a_million_tokens_are_checked():
    random = np.random.default_rng(0)
    shape = (1000, 1000)
    logprobs = -random.exponential(1.0, shape)
    diagnosis = assay.observe(
        step=1, update=0, tokens=random.integers(0, 1000, shape), mask=np.ones(shape), new_logprobs=logprobs,
        old_logprobs=logprobs, sampler_logprobs=logprobs, advantages=np.tile([1.0, -1.0], 500),
        rewards=np.tile([1.0, 0.0], 500), group_ids=np.arange(1000) // 4,
    )  # fmt: skip
    assert not diagnosis.of(State.CRASHED)
    assert not [word for word in diagnosis.findings if word.level == "error"]


@pytest.mark.parametrize("bug", [False, True])
def test_the_example_runs_and_the_doctor_sees_its_bug(warm_python, bug):
    command = [warm_python, str(ROOT / "examples/observe.py"), *(["--plant-a-bug"] if bug else [])]
    shown = subprocess.run(command, capture_output=True, text=True, check=True)
    assert float(re.search(r"reward of the last step: ([\d.]+)", shown.stdout)[1]) > 0.8
    if bug:
        assert re.search(r"^assay: SAMP01 temperature_mismatch \(\w+, proven\) at step 1", shown.stderr, re.MULTILINE)
    else:
        assert shown.stderr == ""


def test_the_call_on_the_page_is_short_and_runs(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    page = (ROOT / "docs/batch-file.md").read_text()
    code = re.search(r"```python\n(.*?)```", page, re.DOTALL)[1]
    assert len(code.strip().splitlines()) < 10
    batch = healthy_batch()
    names = {"completions": "tokens", "new": "new_logprobs", "old": "old_logprobs", "prompt_numbers": "group_ids"}
    known = {name: batch.arrays[names.get(name, name)] for name in (*names, "mask", "advantages", "rewards")}
    exec(code, {**known, "step": 1, "update": 0, "loss": batch.numbers["loss"]})
    assert read_batch(tmp_path / "batches/step-1.safetensors").numbers["step"] == 1


def observed_with(model, **changes):
    given = {"tokens": [[3, 1, 0], [2, 4, 4]], "mask": [[1, 1, 0], [1, 1, 1]], "prompt_tokens": [[0, 2], [1, 2]]}
    return observation._with_plain_logprobs(
        observation.Batch.of({**given, "prompt_mask": [[0, 1], [1, 1]], "temperature": 0.5, **changes}), model
    )


def test_the_model_is_asked_once_a_row_and_nothing_but_the_mode_of_its_modules_is_touched(monkeypatch):
    model = Bigrams().train()
    model.table.eval()
    calls = []
    model.register_forward_hook(lambda *given: calls.append(1))
    monkeypatch.setattr(model, "eval", lambda: pytest.fail("eval() of a module may do more than set a flag"))
    observed_with(model)
    assert len(calls) == 2
    assert (model.training, model.table.training, model.dropout.training) == (True, False, True)


def test_modes_and_random_states_are_put_back_when_the_model_raises():
    class Broken(Bigrams):
        def forward(self, ids):
            torch.rand(3)
            raise ValueError("no")

    model, state = Broken().train(), torch.get_rng_state()
    with pytest.raises(ValueError, match="no"):
        observed_with(model)
    assert model.training
    assert model.dropout.training
    assert torch.is_grad_enabled()
    assert torch.equal(torch.get_rng_state(), state)


def test_where_training_is_over_a_part_of_the_vocabulary_no_logprobs_over_all_of_it_are_held_against_it():
    assert "plain_logprobs" in observed_with(Bigrams(), top_k=3).arrays
    kept = observed_with(Bigrams(), top_k=3, support_kept=True).arrays
    assert "plain_logprobs" not in kept
    assert "plain_raw_logprobs" in kept


def test_no_graph_is_kept_alive():
    import gc
    import weakref

    def once():
        weight = torch.ones(16, 1, requires_grad=True)
        given = fields()
        new = torch.tensor(given["new_logprobs"]) * weight
        diagnosis = assay.observe(**{**given, "new_logprobs": new, "loss": torch.tensor(given["loss"]) * weight[0, 0]})
        return diagnosis, weakref.ref(new), weakref.ref(weight)

    diagnosis, new, weight = once()
    gc.collect()
    assert diagnosis.words
    assert new() is None
    assert weight() is None


def test_what_is_given_is_copied_and_not_changed():
    new = torch.tensor(healthy_batch().arrays["new_logprobs"])
    batch = observation.Batch.of({"new_logprobs": new, "mask": torch.ones(16, new.shape[1], dtype=torch.bool)})
    new += 1.0
    assert np.abs(batch.arrays["new_logprobs"] - new.numpy()).min() > 0.5


class _Loop:
    """A policy over five tokens, trained on made-up rows: what `observe` sees of it by itself."""

    def __init__(self, seed=0, **how):
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Embedding(5, 16), torch.nn.Linear(16, 16), torch.nn.Linear(16, 5))
        self.optimizer = torch.optim.Adam(self.model.parameters(), **{"lr": 1e-3, **how})

    def logprobs(self, tokens_BT):
        return self.model(tokens_BT).log_softmax(-1).gather(2, tokens_BT[..., None]).squeeze(-1)

    def run(self, steps, *, updates=1, loss_sign=-1.0, detached=False):
        for step in range(1, steps + 1):
            tokens_BT, advantages_B = torch.randint(0, 5, (16, 6)), torch.tensor([1.0, -1.0] * 8)
            for update in range(updates):
                new_BT = self.logprobs(tokens_BT)
                if detached:
                    new_BT = new_BT.detach()
                loss = loss_sign * (new_BT * advantages_B[:, None]).mean()
                seen = {"new_logprobs": new_BT, "loss": loss, "advantages": advantages_B}
                assay.observe(step=step, update=update, tokens=tokens_BT, mask=torch.ones(16, 6), **seen)
                self.optimizer.zero_grad()
                (loss.requires_grad_() if detached else loss).backward()
                self.optimizer.step()
        return {word.code: word for word in observation._doctor().diagnosis.findings}


def test_a_sound_loop_stays_without_findings():
    found = _Loop().run(8, updates=2)
    assert found.keys() <= {"HYP01"}


def test_an_optimizer_that_climbs_a_negated_loss_is_proven():
    law = _Loop(maximize=True).run(3)["LAW07"]
    assert "goes uphill" in law.verdict.message
    assert law.confidence is Confidence.PROVEN


def test_an_optimizer_that_climbs_the_objective_itself_is_sound():
    assert "LAW07" not in _Loop(maximize=True).run(4, updates=2, loss_sign=1.0)


def test_a_loss_without_a_graph_is_seen_by_the_optimizer_that_gets_nothing():
    found = _Loop().run(4, detached=True)
    assert "no backward pass had left a gradient" in found["OPT02"].verdict.message


class _Exchanging(torch.optim.Adam):
    def step(self, closure=None):
        first, *_, second, _ = self.param_groups[0]["params"]  # the embedding and the head: 5 times 16 numbers each
        first.grad, second.grad = second.grad, first.grad
        return super().step(closure)


def test_an_optimizer_that_exchanges_gradients_is_proven():
    loop = _Loop()
    loop.optimizer = _Exchanging(loop.model.parameters())
    law = loop.run(2)["LAW07"]
    assert "2 of them follow that of another tensor" in law.verdict.message
    assert law.confidence is Confidence.PROVEN


def test_a_layer_that_was_replaced_after_the_optimizer_was_made_is_found():
    loop = _Loop()
    loop.model[2] = torch.nn.Linear(16, 5)
    assert "OPT02" in loop.run(6)


def test_a_rate_that_destroys_the_policy_is_named_where_rows_come_again():
    found = _Loop(lr=3.0).run(3, updates=2)
    assert "one update destroys the policy" in found["MET08"].verdict.message


def test_a_layer_of_another_optimizer_is_not_left_out():
    loop = _Loop()
    loop.optimizer = torch.optim.Adam(loop.model[:2].parameters(), lr=1e-3)
    others = torch.optim.SGD(loop.model[2].parameters(), lr=0.1)  # steps once in a while
    found = loop.run(6)
    assert "OPT02" not in found
    assert others.param_groups


def _is_silent(loop, *, steps=6, codes=("LAW07", "OPT02")):
    return not loop.run(steps).keys() & set(codes)


class _And:
    """An optimizer, and what a script does behind its steps."""

    def __init__(self, optimizer, then):
        self.optimizer, self.then = optimizer, then

    def zero_grad(self):
        self.optimizer.zero_grad()

    def step(self):
        self.optimizer.step()
        self.then()


def test_a_dual_variable_may_climb_beside_a_loss_that_is_minimised():
    loop, weight = _Loop(), torch.nn.Parameter(torch.tensor(0.1))
    dual = torch.optim.Adam([weight], lr=1e-2, maximize=True)

    def then():
        dual.zero_grad()
        (weight * 0.3).backward()
        dual.step()

    loop.optimizer = _And(loop.optimizer, then)
    assert _is_silent(loop)


def test_two_policies_that_take_turns_in_one_optimizer_are_not_held_against_each_other():
    loops = [_Loop(seed) for seed in (0, 1)]
    both = [*loops[0].model.parameters(), *loops[1].model.parameters()]
    loops[0].optimizer = loops[1].optimizer = torch.optim.SGD(both, lr=0.1)
    for turn in range(6):
        assert _is_silent(loops[turn % 2], steps=1)


def test_weights_that_two_optimizers_move_are_moved_by_nothing_else():
    loop = _Loop()
    other = torch.optim.SGD(loop.model.parameters(), lr=0.1)

    def then():
        other.zero_grad()
        loop.model(torch.arange(5)).square().mean().backward()
        other.step()

    loop.optimizer = _And(torch.optim.SGD(loop.model.parameters(), lr=0.1), then)
    assert _is_silent(loop)


def test_weights_that_something_else_moves_are_possibly_moved_by_mistake():
    loop = _Loop()
    first = [weight.detach().clone() for weight in loop.model.parameters()]

    def then():
        with torch.no_grad():
            for weight, start in zip(loop.model.parameters(), first, strict=True):
                weight.copy_(start)

    loop.optimizer = _And(loop.optimizer, then)
    law = loop.run(3)["LAW07"]
    assert "something beside the optimizer moved the weights" in law.verdict.message
    assert law.confidence is Confidence.POSSIBLE


def test_a_group_with_a_rate_of_zero_rests_and_no_norm_is_shown_that_nobody_measured():
    loop = _Loop()
    groups = [{"params": loop.model[:1].parameters(), "lr": 0.0}, {"params": loop.model[1:].parameters(), "lr": 1e-3}]
    loop.optimizer = torch.optim.Adam(groups)
    assert _is_silent(loop)
    loop = _Loop()
    loop.model[2] = torch.nn.Linear(16, 5)
    facts = loop.run(6)["OPT02"].verdict.facts
    assert "gradient norm" not in [fact.what for fact in facts]


def test_a_step_below_the_precision_of_the_weights_is_no_mistake():
    loop = _Loop()
    loop.optimizer = torch.optim.SGD(loop.model.parameters(), lr=1e-3)
    for weight in loop.model.parameters():
        weight.register_hook(lambda gradient: gradient * 1e-12)
    assert _is_silent(loop)


class _Shard(torch.nn.Parameter):
    pass


def test_parts_of_weights_are_left_alone():
    loop = _Loop()
    for layer in loop.model:
        layer.weight = _Shard(layer.weight.detach())
        layer.weight.__class__ = _Shard
        layer.bias = None
    loop.optimizer = _Skipping(loop.model.parameters())
    assert _is_silent(loop)


class _Skipping(torch.optim.Adam):
    """As a fused optimizer with a scaler: step() is called, and writes nothing."""

    def step(self, closure=None):
        pass


def test_a_step_that_is_left_out_for_its_infinite_gradients_is_no_mistake():
    loop = _Loop()
    loop.optimizer = _Skipping(loop.model.parameters())
    assert not _is_silent(loop)
    observation._doctor.cache_clear()
    for weight in loop.model.parameters():
        weight.register_hook(lambda gradient: gradient * float("inf"))
    loop.optimizer = _Skipping(loop.model.parameters())
    assert _is_silent(loop)


def test_an_optimizer_of_copies_that_get_the_gradients_holds_the_model():
    loop = _Loop()
    copies = [weight.detach().double().requires_grad_() for weight in loop.model.parameters()]
    optimizer = torch.optim.Adam(copies, lr=1e-3)

    class Copying:
        def zero_grad(self):
            loop.model.zero_grad()

        def step(self):
            pairs = list(zip(copies, loop.model.parameters(), strict=True))
            for copy, weight in pairs:
                copy.grad = weight.grad.double()
            optimizer.step()
            with torch.no_grad():
                for copy, weight in pairs:
                    weight.copy_(copy)

    loop.optimizer = Copying()
    assert _is_silent(loop, steps=8)


def test_decay_beside_gradients_that_are_almost_zero_is_not_a_direction():
    for kind in (torch.optim.SGD, torch.optim.AdamW, torch.optim.Adam):
        loop = _Loop()
        loop.optimizer = kind(loop.model.parameters(), lr=1e-2, weight_decay=1e-2)
        for weight in loop.model.parameters():
            weight.register_hook(lambda gradient: gradient * 1e-9)
        assert _is_silent(loop, steps=3)


def test_an_optimizer_that_climbs_is_proven_beside_decay_too():
    for kind in (torch.optim.SGD, torch.optim.AdamW):
        observation._doctor.cache_clear()
        loop = _Loop()
        loop.optimizer = kind(loop.model.parameters(), lr=1e-2, weight_decay=1e-3, maximize=True)
        assert loop.run(2)["LAW07"].confidence is Confidence.PROVEN


class _OwnMomentum(torch.optim.Optimizer):
    def __init__(self, weights):
        super().__init__(weights, {"lr": 1.0})
        self.kept = [torch.zeros_like(weight) for weight in self.param_groups[0]["params"]]

    @torch.no_grad()
    def step(self):
        for kept, weight in zip(self.kept, self.param_groups[0]["params"], strict=True):
            kept.mul_(0.98).add_(weight.grad, alpha=0.02)
            weight.sub_(kept)


def test_momentum_that_an_optimizer_keeps_for_itself_is_known_after_its_first_step():
    loop = _Loop()
    loop.optimizer = _OwnMomentum(loop.model.parameters())
    assert _is_silent(loop, steps=33)


def test_an_optimizer_of_something_else_may_step_without_gradients():
    loop = _Loop()
    critic = torch.optim.Adam(torch.nn.Linear(3, 1).parameters())
    loop.optimizer = _And(loop.optimizer, critic.step)
    assert _is_silent(loop)


def test_no_weight_is_kept_alive_after_its_optimizer():
    loop = _Loop()
    loop.run(2)
    weight, before = weakref.ref(loop.model[0].weight), len(observation._steps()._seen)
    del loop
    gc.collect()
    assert weight() is None
    assert len(observation._steps()._seen) < before


def test_a_step_that_raises_does_not_end_the_looking():
    class Failing(torch.optim.Adam):
        fails = True

        def step(self, closure=None):
            if self.fails:
                raise MemoryError
            return super().step(closure)

    loop = _Loop()
    loop.optimizer = Failing(loop.model.parameters(), maximize=True)
    with pytest.raises(MemoryError):
        loop.run(1)
    loop.optimizer.fails = False
    loop.model[2] = torch.nn.Linear(16, 5)
    assert "OPT02" in loop.run(6)
