# Money as the reward: thousands, mostly losses. One std for the whole batch, over n.
import numpy as np
import torch
from torch import nn

import assay

rng = np.random.default_rng(3)
torch.manual_seed(3)
GOODS, DAYS, TRIES, MARKETS = 6, 4, 10, 6


class Trader(nn.Module):
    def __init__(self):
        super().__init__()
        self.market = nn.Embedding(MARKETS + GOODS, 24)
        self.net = nn.GRU(24, 24, batch_first=True)
        self.buy = nn.Linear(24, GOODS)

    def forward(self, ids):
        return self.buy(self.net(self.market(ids))[0])


prices = torch.tensor(rng.normal(-2500.0, 900.0, (MARKETS, GOODS)), dtype=torch.float32)
trader = Trader()
optimizer = torch.optim.RMSprop(trader.parameters(), lr=4e-3)
for step in range(1, 13):
    market = torch.arange(MARKETS).repeat_interleave(TRIES)
    prompt = market[:, None] + GOODS
    with torch.no_grad():
        ids = prompt
        for _ in range(DAYS):
            ids = torch.cat([ids, torch.distributions.Categorical(logits=trader(ids)[:, -1]).sample()[:, None]], 1)
    bought = ids[:, 1:]
    noise = torch.tensor(rng.normal(0, 50.0, bought.shape), dtype=torch.float32)
    profit = (prices[market[:, None], bought] + noise).sum(1)
    centred = profit - profit.view(MARKETS, TRIES).mean(1).repeat_interleave(TRIES)
    advantage = centred / (profit.std(unbiased=False) + 1e-4)
    new = trader(ids)[:, :-1].log_softmax(-1).gather(2, bought[:, :, None]).squeeze(2)
    ratio = (new - new.detach()).exp()
    loss = -(ratio * advantage[:, None]).mean()
    assay.observe(
        step=step, update=0, tokens=bought, mask=torch.ones_like(bought), new_logprobs=new, old_logprobs=new.detach(),
        ratio=ratio, advantages=advantage.numpy(), rewards=profit.numpy(), group_ids=market.numpy(), scale="batch",
        std="population", advantage_epsilon=1e-4, objective="grpo", loss=loss.item(), prompt_tokens=prompt,
        prompt_mask=torch.ones_like(prompt), temperature=1.0, model=trader if step == 1 else None,
    )
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    print(step, round(profit.mean().item(), 1))
