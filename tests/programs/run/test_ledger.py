"""What the ledger writes down of gradients, on real tensors: it judges nothing."""

import torch
from fixtures.made_run import place
from torch import nn

from assay.programs.graph import Context, Value
from assay.programs.run.gradients import Bypass, KeptGraphs, LeftOut, SharedStep
from assay.programs.run.observe.ledger import GradientLedger
from assay.programs.run.sight import Sight
from assay.programs.run.watched import WatchedRun, WatchedUpdate

ZERO, BACKWARD, STEP = place(1), place(2), place(3)


class Script:
    """A loop that tells the ledger what it does, as the observer would."""

    def __init__(self, *modules):
        self.ledger = GradientLedger(WatchedRun("script.py"))
        self.history = self.ledger.run.gradients
        self.modules = modules
        self.optimizers = [torch.optim.SGD(module.parameters(), lr=0.1) for module in modules]

    def zero(self, number=0):
        self.ledger.happened("zero_grad", ZERO)
        self.optimizers[number].zero_grad()

    def backward(self, module=None, at=BACKWARD):
        loss = (module or self.modules[0])(torch.ones(1, 2)).sum()
        self.ledger.backward(at, loss)
        loss.backward()
        self.ledger.after_backward()

    def step(self, number=0, at=STEP, trained=()):
        optimizer = self.optimizers[number]
        held = [one for group in optimizer.param_groups for one in group["params"]]
        self.ledger.stepping(optimizer, held, trained, at)
        optimizer.step()
        order = len(self.ledger.run.updates)
        self.ledger.run.updates.append(WatchedUpdate(order, 0, at, 10 * order, 0.1, 0.0, ()))
        self.ledger.stepped(optimizer, at, [])
        return self.history.steps[-1]


def test_a_plain_loop_is_clean_and_reached():
    script = Script(nn.Linear(2, 1))
    for number in range(2):
        script.zero()
        script.backward()
        step = script.step()
        assert [move.kind for move in step.moves] == ["zero_grad", "backward"]
        assert (step.is_first, step.emptied_at, step.lost) == (number == 0, None, ())
    assert (step.was_reached, step.began_clean) == (True, True)


def test_gradients_that_nobody_clears_are_there_when_the_next_backward_begins():
    script = Script(nn.Linear(2, 1))
    for _ in range(2):
        script.backward()
        step = script.step()
    assert (step.was_reached, step.began_clean) == (True, False)


def test_gradients_that_a_script_copies_to_weights_of_its_own_replace_the_last_ones():
    script = Script(nn.Linear(2, 1))
    policy = nn.Linear(2, 1)
    for _ in range(6):
        policy.zero_grad()
        script.backward(policy)
        for master, weight in zip(script.modules[0].parameters(), policy.parameters(), strict=True):
            master.grad = weight.grad.clone()
        step = script.step(trained=[policy])
        policy.load_state_dict(script.modules[0].state_dict())
    assert (step.was_reached, step.emptied_at, step.lost) == (False, None, ())
    assert script.history.left_out is None


def test_gradients_that_are_cleared_before_the_step():
    script = Script(nn.Linear(2, 1))
    script.backward()
    script.zero()
    assert script.step().emptied_at == ZERO


def test_gradients_that_are_cleared_between_two_backwards_are_lost():
    script = Script(nn.Linear(2, 1))
    script.backward()
    script.step()
    for _ in range(3):
        script.zero()
        script.backward()
    assert script.step().lost == (BACKWARD, BACKWARD)


def test_two_optimizers_that_step_with_the_same_gradients():
    body = nn.Linear(2, 1)
    script = Script(body, body)
    script.backward()
    script.step(0, at=place(3))
    script.step(1, at=place(4))
    assert script.history.shared == [SharedStep(2, place(4), place(3))]
    script.backward()
    script.step(1)
    assert len(script.history.shared) == 1


class Wrapper(nn.Module):
    def __init__(self, module):
        super().__init__()
        self.module = module


def test_gradients_made_without_a_pass_through_the_wrapper():
    inner = nn.Linear(2, 1)
    wrapper = Wrapper(inner)
    script = Script(inner)
    script.ledger.wrapped(wrapper)
    script.ledger.passed(wrapper)
    script.backward()
    script.step()
    assert (script.history.bypasses, script.history.is_wrapped) == ([], True)
    script.backward()
    script.step()
    assert script.history.bypasses == [Bypass("Linear", "Wrapper", BACKWARD, STEP)]


def test_tensors_with_a_gradient_that_no_optimizer_holds():
    policy, other = nn.Linear(2, 1), nn.Linear(2, 1)
    script = Script(other)
    script.backward(policy)
    script.step(trained=[policy])
    assert script.history.left_out == LeftOut(2, 2, STEP)
    script.step(trained=[other])
    assert script.history.left_out is None


def test_a_scheduler_counts_only_before_the_first_step():
    script = Script(nn.Linear(2, 1))
    script.step()
    script.ledger.happened("scheduler", place(8))
    assert script.history.scheduler_before_steps is None
    early = Script(nn.Linear(2, 1))
    early.ledger.happened("scheduler", place(8))
    early.ledger.happened("scheduler", place(9))
    assert early.history.scheduler_before_steps == place(8)


def test_numbers_of_earlier_updates_that_live_on_with_their_graphs():
    script = Script(nn.Linear(2, 1))
    for _ in range(4):
        script.step()
    made = [script.modules[0](torch.ones(1, 2)).sum() for _ in range(3)]
    values = [Value("sum", {}, place(5), Context(), order) for order in (1, 11, 21)]
    for value in values:
        value.thing = Sight((), "float32", requires_grad=True)
    alive = [(lambda tensor=tensor: tensor, value, 0) for tensor, value in zip(made, values, strict=True)]
    script.ledger.stepped(script.optimizers[0], STEP, alive)
    assert script.history.kept == [KeptGraphs(3, place(5))]
    script.ledger.stepped(script.optimizers[0], STEP, [(lambda: made[0].detach(), values[0], 0)])
    assert len(script.history.kept) == 1


def test_layers_of_a_plain_list_that_the_loss_reaches_are_left_out():
    hidden, head = [nn.Linear(2, 2)], nn.Linear(2, 1)
    script = Script(head)

    def train():
        script.optimizers[0].zero_grad()
        loss = head(hidden[0](torch.ones(1, 2))).sum()
        script.ledger.backward(BACKWARD, loss)
        loss.backward()
        script.ledger.after_backward()
        script.step(trained=[head])

    for _ in range(6):
        train()
    assert script.history.left_out == LeftOut(2, 4, STEP)
    for _ in range(6):  # by hand, as some do
        train()
        hidden[0].weight.data -= 0.1 * hidden[0].weight.grad
        hidden[0].bias.data -= 0.1 * hidden[0].bias.grad
    assert script.history.left_out is None


def test_layers_of_an_optimizer_that_has_not_stepped_yet_are_not_left_out():
    body, head = nn.Linear(2, 2), nn.Linear(2, 1)
    script = Script(head)
    later = torch.optim.SGD(body.parameters(), lr=0.1)
    for _ in range(6):
        loss = head(body(torch.ones(1, 2))).sum()
        script.ledger.backward(BACKWARD, loss)
        loss.backward()
        script.ledger.after_backward()
        script.step(trained=[head])
    assert script.history.left_out is None
    assert later.param_groups
