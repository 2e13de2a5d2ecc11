"""Faults and sound variants: name --> (script, codes of which one is expected, edits), or (script, edits)."""

from pathlib import Path

SCRIPTS = Path(__file__).parent / "scripts"

MIN = "-torch.min(ratio * advantages, clipped * advantages).mean()"
BARRED = [  # a fifth action is closed in some contexts, where it is drawn and where it is scored
    (
        "def logprobs_of(policy, states, actions):",
        "def barred(policy, states):\n"
        "    return torch.where(states[:, :1].abs() > torch.arange(ACTIONS) / 2 + 0.4, -1e9, policy(states))\n\n\n"
        "def logprobs_of(policy, states, actions):",
    ),
    ("F.softmax(policy(states), dim=-1)", "F.softmax(barred(policy, states), dim=-1)"),
]
ENDING = (  # a model that has learned to say its letter `said` times and to end
    "    for step in range(steps):",
    "    given = torch.cat([prompts.expand(-1, {said} + 1), torch.zeros_like(prompts)], dim=1)\n"
    "    for _ in range(200):\n"
    "        scores = model(given[:, :-1]).flatten(0, 1)\n"
    "        lost = nn.functional.cross_entropy(scores, given[:, 1:].flatten())\n"
    "        optimizer.zero_grad()\n        lost.backward()\n        optimizer.step()\n"
    "    optimizer = torch.optim.Adam(model.parameters(), lr=0.001)\n"
    "    for step in range(steps):",
)
CUT = [  # the letter behind that of the prompt cannot be drawn
    (
        "@torch.no_grad()",
        "def cut(logits, prompts):\n"
        "    barred = torch.arange(LETTERS + 1) == prompts % LETTERS + 1\n"
        "    return logits.masked_fill(barred.view(-1, *[1] * (logits.dim() - 2), LETTERS + 1), -1e9)\n\n\n"
        "@torch.no_grad()",
    ),
    ("torch.softmax(model(ids)[:, -1] / TEMPERATURE", "torch.softmax(cut(model(ids)[:, -1] / TEMPERATURE, prompts)"),
]
FAULTS = {
    "episodes: the action that ends an episode is masked": (
        "episodes.py",
        {"LAW06"},
        [
            ("        masks.append(alive.float())\n", ""),
            (
                "        alive = alive & ~reached\n",
                "        alive = alive & ~reached\n        masks.append(alive.float())\n",
            ),
        ],
    ),
    "episodes: starts are repeated as a whole": (
        "episodes.py",
        {"LAW11", "ADV02"},
        [(".repeat_interleave(GROUP)", ".repeat(GROUP)")],
    ),
    "episodes: a hidden layer in a plain list": (
        "episodes.py",
        {"OPT02"},
        [
            (
                "self.net = nn.Sequential(nn.Linear(2, 32), nn.Tanh(), nn.Linear(32, ACTIONS))",
                "self.layers, self.net = [nn.Linear(2, 32), nn.Tanh()], nn.Linear(32, ACTIONS)",
            ),
            ("self.net(obs))", "self.net(self.layers[1](self.layers[0](obs))))"),
        ],
    ),
    "letters: no room for the end": ("letters.py", {"MET03"}, [(ENDING[0], ENDING[1].replace("{said}", "LENGTH"))]),
    "letters: the loss has no graph": (
        "letters.py",
        {"OPT02"},
        [
            ("def logprobs_of", "@torch.no_grad()\ndef logprobs_of"),
            (
                "            optimizer.zero_grad()",
                "            loss.requires_grad_()\n            optimizer.zero_grad()",
            ),
        ],
    ),
    "letters: the log-probs are detached on the way": (
        "letters.py",
        {"OPT02"},
        [("new - old)", "new.detach() - old).requires_grad_()")],
    ),
    "closed actions are scored": ("bandit_groups.py", {"SAMP02"}, BARRED),
    "letters: drawn from what is left and scored from all": ("letters.py", {"SAMP02", "LAW01"}, CUT),
    "every row meets every other": (
        "bandit_groups.py",
        {"ADV08"},
        [(").view(-1)\n        for", ").view(-1, 1)\n        for")],
    ),
    "letters: letters are tokenised again": (
        "letters.py",
        {"LAW02"},
        [
            (
                "        ended = (completions == END)",
                "        completions[::3, 1:3] = completions[::3, 1:3].flip(1)\n        ended = (completions == END)",
            )
        ],
    ),
    "actions of another order than their states": (
        "vector_env.py",
        {"LAW02", "ALGN02", "RAT01"},
        [("agent.act(b_obs[rows], b_act[rows])", "agent.act(b_obs[rows], b_act[rows.flip(0)])")],
    ),
    "advantages are not picked by the minibatch": (
        "vector_env.py",
        {"ALGN10"},
        [("adv = b_adv[rows]", "adv = b_adv[start : start + MINIBATCH]")],
    ),
    "old log-probs are not picked by the minibatch": (
        "vector_env.py",
        {"RAT01", "LAW03", "ALGN10"},
        [("(new - b_logp[rows])", "(new - b_logp[start : start + MINIBATCH])")],
    ),
    "ratio upside down": ("vector_env.py", {"RAT04"}, [("(new - b_logp[rows]).exp()", "(b_logp[rows] - new).exp()")]),
    "the sign of the loss": (
        "vector_env.py",
        {"LOSS01"},
        [("torch.max(-adv * ratio, -adv * ratio", "torch.max(adv * ratio, adv * ratio")],
    ),
    "old is computed again in each epoch": (
        "bandit_groups.py",
        {"RAT02"},
        [("            ratio = torch", "            old = new.detach()\n            ratio = torch")],
    ),
    "mean over the contexts": (
        "bandit_groups.py",
        {"LAW04", "ADV02", "ADV01"},
        [("table.mean(1, keepdim=True)", "table.mean(0, keepdim=True)")],
    ),
    "std over the contexts": (
        "bandit_groups.py",
        {"LAW04", "ADV04"},
        [("table.std(1, keepdim=True)", "table.std(0, keepdim=True)")],
    ),
    "advantages turned around before they are flat": (
        "bandit_groups.py",
        {"LAW04", "ALGN10", "ADV02"},
        [(").view(-1)\n        for", ").T.flatten()\n        for")],
    ),
    "sampled hot and scored cold": (
        "bandit_groups.py",
        {"SAMP01", "LAW01", "LAW03"},
        [("F.softmax(policy(states), dim=-1)", "F.softmax(policy(states) / 3, dim=-1)")],
    ),
    "drawn from the squares of the probabilities": (
        "bandit_groups.py",
        {"LAW01", "SAMP07"},
        [
            ("torch.multinomial(probabilities, 1)", "torch.multinomial(probabilities**4, 1)"),
            ("ACTIONS, GROUP, EPOCHS, CLIP = 12, 6, 5, 8,", "ACTIONS, GROUP, EPOCHS, CLIP = 12, 6, 5, 24,"),
        ],
    ),
    "the gradient climbs": (
        "bandit_groups.py",
        {"LAW07", "LOSS01", "OPT06"},
        [("lr=5e-3)", "lr=5e-3, maximize=True)")],
    ),
    "a rate of zero": ("bandit_groups.py", {"OPT02", "HYP01"}, [("lr=5e-3)", "lr=0.0)")]),
    "returns without a sign in a list": (
        "reinforce_lists.py",
        {"LOSS01"},
        [("[-logp * gain for", "[logp * gain for")],
    ),
    "the optimizer has another policy": (
        "reinforce_lists.py",
        {"OPT02"},
        [("Adam(policy.parameters()", "Adam(Policy().parameters()")],
    ),
    "gradients are never cleared": ("reinforce_lists.py", {"LOSS04"}, [("        optimizer.zero_grad()\n", "")]),
    "probabilities in place of their logarithms": (
        "numpy_choice.py",
        {"RAT01", "RAT08"},
        [("float(np.log(probabilities[action]))", "float(probabilities[action])")],
    ),
    "quotient of log-probs in a table": ("numpy_choice.py", {"RAT08"}, [("torch.exp(new - old)", "new / old")]),
    "only the last step is trained": (
        "episodes.py",
        {"LAW05", "LAW06"},
        [("-(gain * mask).sum() / mask.sum()", "-(gain * mask)[:, -1].sum() / mask.sum()")],
    ),
    "losing episodes are detached": (
        "episodes.py",
        {"LAW05"},
        [
            (
                "            ratio = torch.exp(new - old)",
                "            new = torch.where(advantages[:, None] < 0, new.detach(), new)\n"
                "            ratio = torch.exp(new - old)",
            )
        ],
    ),
    "observations are one step late": (
        "episodes.py",
        {"LAW02", "RAT01", "ALGN02"},
        [("policy(obs).log_prob(actions)", "policy(obs.roll(1, 1)).log_prob(actions)")],
    ),
    "actions are one step late in a loop over episodes": (
        "episodes.py",
        {"LAW02", "RAT01", "ALGN02", "ALGN01"},
        [
            (
                "            new = policy(obs).log_prob(actions)",
                "            shifted = [torch.cat([row[1:], row[:1]]) for row in actions]\n"
                "            new = torch.stack([policy(one).log_prob(a) for one, a in zip(obs, shifted, strict=True)])",
            )
        ],
    ),
}
ADVANTAGES = "advantages = ((table - table.mean(1, keepdim=True)) / (table.std(1, keepdim=True) + 1e-4)).view(-1)"
NEW = "            new = logprobs_of(model, prompts, completions)\n"
FAULTS |= {
    "letters: the std over the prompts": ("letters.py", {"LAW04"}, [("table.std(1, keepdim=True)", "table.std(0)")]),
    "letters: the mean over the prompts": (
        "letters.py",
        {"LAW04", "ADV02"},
        [("table.mean(1, keepdim=True)", "table.mean(0)")],
    ),
    "letters: advantages turned around": (
        "letters.py",
        {"ALGN10", "LAW04"},
        [(ADVANTAGES, ADVANTAGES.replace(".view(-1)", ".T.flatten()"))],
    ),
    "letters: one more whitening in each sequence": (
        "letters.py",
        {"ADV06", "LAW04"},
        [
            ("advantages[:, None]", "advantages_BT"),
            (
                "        with torch.no_grad():\n            old",
                "        decay = 0.9 ** torch.arange(LENGTH)\n"
                "        advantages_BT = advantages[:, None] * decay\n"
                "        advantages_BT = (advantages_BT - advantages_BT.mean(1, keepdim=True)) / (\n"
                "            advantages_BT.std(1, keepdim=True) + 1e-4\n        )\n"
                "        with torch.no_grad():\n            old",
            ),
        ],
    ),
    "letters: a shift by one in a loop over rows": (
        "letters.py",
        {"LAW02", "ALGN02"},
        [
            (
                "    scores = torch.log_softmax(logits / TEMPERATURE, dim=-1)\n"
                "    return scores.gather(2, completions.unsqueeze(2)).squeeze(2)",
                "    rows = []\n"
                "    for row, ids in zip(logits, completions):\n"
                "        scores = torch.log_softmax(row / TEMPERATURE, dim=-1)\n"
                "        rows.append(scores.gather(1, ids.roll(-1).unsqueeze(1)).squeeze(1))\n"
                "    return torch.stack(rows)",
            )
        ],
    ),
    "letters: drawn from a sharper distribution by a cut": (
        "letters.py",
        {"LAW01", "SAMP02"},
        [
            (
                "LETTERS, GROUP, TEMPERATURE, UPDATES = 0, 4, 6, 6,",
                "LETTERS, GROUP, TEMPERATURE, UPDATES = 0, 4, 6, 24,",
            ),
            (
                "        ids = torch.cat([ids,",
                "        probabilities = torch.where(probabilities < 0.15, 0.0, probabilities)\n"
                "        ids = torch.cat([ids,",
            ),
        ],
    ),
    "letters: a hook turns the gradients around": (
        "letters.py",
        {"LAW07"},
        [
            (
                "    prompts = torch.arange",
                "    for one in model.parameters():\n"
                "        one.register_hook(lambda grad: -grad)\n"
                "    prompts = torch.arange",
            )
        ],
    ),
    "letters: gradients are turned around by hand": (
        "letters.py",
        {"LAW07"},
        [
            (
                "            optimizer.step()",
                "            for one in model.parameters():\n"
                "                one.grad.neg_()\n"
                "            optimizer.step()",
            )
        ],
    ),
    "letters: only the last token is trained": (
        "letters.py",
        {"LAW05"},
        [("(gain * mask).sum(1) / mask.sum(1)", "(gain * mask)[:, -1]")],
    ),
    "letters: bad answers are detached": (
        "letters.py",
        {"LAW05"},
        [(NEW, NEW + "            new = torch.where(advantages[:, None] < 0, new.detach(), new)\n")],
    ),
}
SOUND = {
    "episodes: Gumbel noise and a one-hot row": (
        "episodes.py",
        [
            (
                "action = dist.sample()",
                "action = (dist.logits - torch.log(-torch.log(torch.rand_like(dist.logits)))).argmax(-1)",
            ),
            (
                "new = policy(obs).log_prob(actions)",
                "powers = policy(obs).logits.exp()\n"
                "            all_of_them = (powers / powers.sum(-1, keepdim=True)).log()\n"
                "            new = (nn.functional.one_hot(actions, ACTIONS) * all_of_them).sum(-1)",
            ),
        ],
    ),
    "letters: room for the end": ("letters.py", [(ENDING[0], ENDING[1].replace("{said}", "(LENGTH - 1)"))]),
    "letters: the reference is asked for a log": (
        "letters.py",
        [
            (
                "            ratio = torch.exp(new - old)",
                "            moved = ((old - new.detach()) * mask).sum() / mask.sum()\n"
                "            ratio = torch.exp(new - old)",
            )
        ],
    ),
    "closed actions are closed on both sides": (
        "bandit_groups.py",
        [*BARRED, ("F.log_softmax(policy(states), dim=-1)", "F.log_softmax(barred(policy, states), dim=-1)")],
    ),
    "letters: drawn from what is left and scored from it": (
        "letters.py",
        [*CUT, ("torch.log_softmax(logits / TEMPERATURE", "torch.log_softmax(cut(logits / TEMPERATURE, prompts)")],
    ),
    "letters: the last token is not given": (
        "letters.py",
        [
            (
                "logits = model(torch.cat([prompts, completions], dim=1))[:, prompts.shape[1] - 1 : -1]",
                "logits = model(torch.cat([prompts, completions], dim=1)[:, :-1])[:, prompts.shape[1] - 1 :]",
            )
        ],
    ),
    "letters: answers are imitated first": (
        "letters.py",
        [
            (
                "    for step in range(steps):",
                "    for _ in range(16):\n"
                "        given = prompts.expand(-1, LENGTH + 1)\n"
                "        scores = model(given[:, :-1]).flatten(0, 1)\n"
                "        lost = nn.functional.cross_entropy(scores, given[:, 1:].flatten())\n"
                "        optimizer.zero_grad()\n        lost.backward()\n        optimizer.step()\n"
                "    for step in range(steps):",
            )
        ],
    ),
    "plain": ("vector_env.py", []),
    "plain bandit": ("bandit_groups.py", []),
    "plain lists": ("reinforce_lists.py", []),
    "plain numpy": ("numpy_choice.py", []),
    "plain episodes": ("episodes.py", []),
    "time first": (
        "episodes.py",
        [
            ("torch.stack(parts, dim=1)", "torch.stack(parts, dim=0)"),
            ("advantages[:, None]", "advantages[None, :]"),
        ],
    ),
    "an episode at a time": (
        "episodes.py",
        [
            (
                "new = policy(obs).log_prob(actions)",
                "new = torch.stack([policy(one).log_prob(a) for one, a in zip(obs, actions, strict=True)])",
            )
        ],
    ),
    "logits minus their logsumexp": (
        "bandit_groups.py",
        [
            (
                "    return F.log_softmax(policy(states), dim=-1).gather(1, actions.unsqueeze(1)).squeeze(1)",
                "    logits = policy(states)\n"
                "    return (logits - logits.logsumexp(-1, keepdim=True))[torch.arange(len(actions)), actions]",
            )
        ],
    ),
    "both at a temperature": (
        "bandit_groups.py",
        [
            ("F.softmax(policy(states), dim=-1)", "F.softmax(policy(states) / 0.5, dim=-1)"),
            ("F.log_softmax(policy(states), dim=-1)", "F.log_softmax(policy(states) / 0.5, dim=-1)"),
        ],
    ),
    "shuffled contexts stay together with their rows": (
        "bandit_groups.py",
        [
            (
                "for _ in range(EPOCHS):",
                "for rows in torch.cat([torch.randperm(len(states)) for _ in range(3)]).split(24):",
            ),
            (
                "logprobs_of(policy, states, actions)\n            ratio",
                "logprobs_of(policy, states[rows], actions[rows])\n            ratio",
            ),
            ("torch.exp(new - old)", "torch.exp(new - old[rows])"),
            (MIN, MIN.replace("advantages", "advantages[rows]")),
        ],
    ),
    "some actions are not allowed": (
        "bandit_groups.py",
        [
            (
                "        return self.out(torch.relu(self.hidden(states)))",
                "        logits = self.out(torch.relu(self.hidden(states)))\n"
                "        return logits.masked_fill(states[:, :ACTIONS] > 1.5, -1e9)",
            )
        ],
    ),
    "rewards of 0 and 1 without a baseline": (
        "bandit_groups.py",
        [
            ("        table = rewards", "        rewards = (rewards > 0).float()\n        table = rewards"),
            (MIN, "-(new * rewards).mean()"),
        ],
    ),
    "every second action explores": (
        "bandit_groups.py",
        [
            (
                "            old = logprobs_of",
                "            others = torch.randint(0, ACTIONS, actions.shape)\n"
                "            actions = torch.where(torch.rand(len(actions)) < 0.1, others, actions)\n"
                ""
                "            old = logprobs_of",
            )
        ],
    ),
    "a replay buffer": (
        "bandit_groups.py",
        [
            ("    for iteration in range", "    kept = None\n    for iteration in range"),
            (
                "        for _ in range(EPOCHS):",
                "        now = (states, actions, old, advantages)\n"
                "        if kept is not None:\n"
                "            both = [torch.cat(two) for two in zip(kept, now, strict=True)]\n"
                "            states, actions, old, advantages = both\n"
                ""
                "        kept = now\n"
                "        for _ in range(EPOCHS):",
            ),
        ],
    ),
    "integer states in an embedding": (
        "bandit_groups.py",
        [
            ("self.hidden, self.out = nn.Linear(WIDTH, 32)", "self.hidden, self.out = nn.Embedding(50, 32)"),
            ("contexts = torch.randn(CONTEXTS, WIDTH)", "contexts = torch.randint(0, 50, (CONTEXTS,))"),
            ("best = Policy(), torch.randn(WIDTH, ACTIONS)", "best = Policy(), torch.randn(50, ACTIONS)"),
            ("(states @ best)", "best[states]"),
        ],
    ),
    "a critic in the policy": (
        "bandit_groups.py",
        [
            (
                "        return self.out(torch.relu(self.hidden(states)))",
                "        h = torch.relu(self.hidden(states))\n        return self.out(h), h.mean(-1)",
            ),
            ("policy(states)", "policy(states)[0]"),
        ],
    ),
    "letters: an advantage for each token": (
        "letters.py",
        [("advantages[:, None]", "advantages[:, None].expand(-1, LENGTH)")],
    ),
    "letters: groups lie in columns": (
        "letters.py",
        [
            (".repeat_interleave(GROUP)[:, None]", ".repeat(GROUP)[:, None]"),
            ("table = rewards.view(-1, GROUP)", "table = rewards.view(GROUP, -1).T"),
            (ADVANTAGES, ADVANTAGES.replace(".view(-1)", ".T.flatten()")),
        ],
    ),
    "letters: a loop over rows": (
        "letters.py",
        [
            (
                "    scores = torch.log_softmax(logits / TEMPERATURE, dim=-1)\n"
                "    return scores.gather(2, completions.unsqueeze(2)).squeeze(2)",
                "    rows = []\n"
                "    for row, ids in zip(logits, completions):\n"
                "        scores = torch.log_softmax(row / TEMPERATURE, dim=-1)\n"
                "        rows.append(scores.gather(1, ids.unsqueeze(1)).squeeze(1))\n"
                "    return torch.stack(rows)",
            )
        ],
    ),
    "letters: the std of the whole batch": ("letters.py", [("table.std(1, keepdim=True)", "table.std()")]),
    "letters: the mean over groups in columns": (
        "letters.py",
        [
            (".repeat_interleave(GROUP)[:, None]", ".repeat(GROUP)[:, None]"),
            ("table = rewards.view(-1, GROUP)", "table = rewards.view(GROUP, -1)"),
            ("table.mean(1, keepdim=True)", "table.mean(0)"),
            ("table.std(1, keepdim=True)", "table.std(0)"),
        ],
    ),
    "letters: gradients are scaled by hand": (
        "letters.py",
        [
            (
                "            optimizer.step()",
                "            for one in model.parameters():\n"
                "                one.grad.mul_(0.5)\n"
                "            optimizer.step()",
            )
        ],
    ),
    "letters: rewards of tokens to come": (
        "letters.py",
        [
            (
                "rewards = ((completions == prompts).float() * mask).mean(dim=1)",
                "steps = (completions == prompts).float() * mask\n"
                "        rewards = steps.mean(dim=1)\n"
                "        togo = steps.flip(1).cumsum(1).flip(1)\n"
                "        togo = togo.view(-1, GROUP, LENGTH)\n"
                "        togo = (togo - togo.mean(1, keepdim=True)).view(-1, LENGTH)",
            ),
            ("advantages[:, None]", "togo"),
        ],
    ),
}
