"""One tool. After <call> the environment writes <result> and a digit into the answer; then the policy goes on."""

import torch
from torch import nn

import assay

END, CALL, RESULT, BLANK = 10, 11, 12, 13  # 0..9 are digits
LIMIT, GROUP, QUESTIONS = 7, 8, 6


class Policy(nn.Module):
    def __init__(self):
        super().__init__()
        self.look = nn.Embedding(14, 32)
        self.cell = nn.GRU(32, 48, num_layers=2, batch_first=True)
        self.head = nn.Linear(48, 14)

    def forward(self, ids):
        logits = self.head(self.cell(self.look(ids))[0])
        never = torch.zeros(14)
        never[RESULT] = never[BLANK] = -1e4  # only the environment writes these
        return logits + never


@torch.no_grad()
def interact(policy, questions):
    ids, n = questions, len(questions)
    waiting = [[] for _ in range(n)]
    called, over = [False] * n, [False] * n
    written, forced = [], []
    for _ in range(LIMIT):
        draw = torch.multinomial(torch.softmax(policy(ids)[:, -1], -1), 1)[:, 0].tolist()
        column, from_tool = [], []
        for i in range(n):
            if over[i]:
                column.append(BLANK), from_tool.append(False)
                continue
            if waiting[i]:
                column.append(waiting[i].pop(0)), from_tool.append(True)
                continue
            token = draw[i]
            column.append(token), from_tool.append(False)
            if token == CALL and not called[i]:
                called[i] = True
                waiting[i] = [RESULT, (int(questions[i, 0]) * 3 + int(questions[i, 1])) % 10]
            over[i] = token == END
        written.append(column), forced.append(from_tool)
        ids = torch.cat([ids, torch.tensor(column)[:, None]], 1)
    return torch.tensor(written).T, torch.tensor(forced).T, torch.tensor(over)


def judge(question, answer):
    """1 for the right digit before the end; a quarter for using the tool, a quarter for ending."""
    words = [t for t in answer if t != BLANK]
    goal = (question[0] * 3 + question[1]) % 10
    value = 0.25 * (CALL in words) + 0.25 * (END in words)
    if END in words and len(words) > 1 and words[-2] == goal:
        value += 1.0
    return value


def rewards_for(questions, answers, over):
    return torch.tensor([judge(q, a) for q, a in zip(questions.tolist(), answers.tolist())])


def logprobs(policy, questions, answers):
    logits = policy(torch.cat([questions, answers], 1))[:, questions.shape[1] - 1 : -1]
    return torch.log_softmax(logits, -1).gather(2, answers[:, :, None]).squeeze(2)


torch.manual_seed(31)
policy = Policy()
optimizer = torch.optim.Adam(policy.parameters(), lr=0.003)
for step in range(1, 16):
    questions = torch.randint(0, 10, (QUESTIONS, 2)).repeat_interleave(GROUP, 0)
    answers, forced, over = interact(policy, questions)
    rewards = rewards_for(questions, answers, over)
    table = rewards.view(QUESTIONS, GROUP)
    advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).flatten()
    from_tool = torch.cat([forced[:, 1:], forced[:, -1:]], 1)
    mask = (answers != BLANK) & ~from_tool
    with torch.no_grad():
        old = logprobs(policy, questions, answers)
    for update in range(2):
        new = logprobs(policy, questions, answers)
        ratio = torch.exp(new - old).where(mask, 1.0)
        a = advantages[:, None]
        token_loss = -torch.minimum(ratio * a, ratio.clamp(0.8, 1.28) * a)
        loss = (token_loss * mask).sum() / mask.sum()
        optimizer.zero_grad()
        loss.backward()
        before = torch.cat([p.detach().flatten() for p in policy.parameters()])
        without = sum(p.grad is None or not p.grad.any() for p in policy.parameters())
        optimizer.step()
        after = torch.cat([p.detach().flatten() for p in policy.parameters()])
        assay.observe(
            step=step, update=update, tokens=answers, forced=forced, mask=mask, new_logprobs=new.detach(),
            old_logprobs=old, advantages=advantages, rewards=rewards, loss=loss.item(), finished=over,
            group_ids=torch.arange(QUESTIONS).repeat_interleave(GROUP), prompt_tokens=questions,
            prompt_mask=torch.ones_like(questions), update_norm=(after - before).norm().item(),
            tensors=len(list(policy.parameters())), tensors_without_gradient=int(without), learning_rate=0.003,
            token_loss=token_loss.detach(), objective="dapo", clip_low=0.2, clip_high=0.28, temperature=1.0,
            std="sample", advantage_epsilon=1e-4, eos_ids=[END], pad_id=BLANK, max_tokens=LIMIT,
        )  # fmt: skip
    print(step, round(rewards.mean().item(), 3))
