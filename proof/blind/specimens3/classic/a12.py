"""Actor / learner split in one process.

The learner owns the parameters, the actor works on its own copy which is refreshed through a small weight store.
Task: steer a noisy thermostat (heater off / low / high) to the temperature on the note.
"""
import torch
import torch.nn as nn
import torch.nn.functional as F


class WeightStore:
    def __init__(self):
        self.blob, self.version = None, -1

    def put(self, module, version):
        self.blob = {k: v.detach().clone() for k, v in module.state_dict().items()}
        self.version = version


def build():
    return nn.Sequential(nn.Linear(3, 32), nn.Tanh(), nn.Linear(32, 3))


class Actor:
    def __init__(self, store, rooms=5, copies=8, minutes=12):
        self.net = build().requires_grad_(False)
        self.store = store
        self.rooms, self.copies, self.minutes = rooms, copies, minutes
        self.version = None

    def refresh(self):
        if self.version != self.store.version:
            self.net.load_state_dict(self.store.blob)
            self.version = self.store.version

    def generate(self):
        self.refresh()
        goal = (torch.rand(self.rooms) * 8 + 16).repeat_interleave(self.copies)
        temp = (torch.rand(self.rooms) * 12 + 10).repeat_interleave(self.copies)
        obs, act = [], []
        cost = torch.zeros_like(goal)
        for m in range(self.minutes):
            o = torch.stack([(goal - temp) / 5, (temp - 18) / 5, torch.full_like(goal, m / self.minutes)], 1)
            a = torch.multinomial(F.softmax(self.net(o), -1), 1).squeeze(1)
            temp = temp + torch.tensor([-0.8, 0.3, 1.6])[a] + 0.15 * torch.randn_like(temp)
            cost += (temp - goal).abs()
            obs.append(o)
            act.append(a)
        return {"obs": torch.stack(obs, 1), "act": torch.stack(act, 1), "reward": -cost / self.minutes}


class Learner:
    def __init__(self, store, lr=8e-3):
        self.net = build()
        self.opt = torch.optim.Adam(self.net.parameters(), lr=lr)
        self.store = store
        self.step = 0
        self.best = -float("inf")
        store.put(self.net, 0)

    def logp(self, batch):
        return F.log_softmax(self.net(batch["obs"]), -1).gather(-1, batch["act"].unsqueeze(-1)).squeeze(-1)

    def train_on(self, batch, copies, epochs=2, eps=0.2):
        r = batch["reward"].view(-1, copies)
        adv = ((r - r.mean(1, keepdim=True)) / (r.std(1, keepdim=True) + 1e-4)).view(-1, 1)
        with torch.no_grad():
            old = self.logp(batch)
        for _ in range(epochs):
            ratio = torch.exp(self.logp(batch) - old)
            loss = -torch.minimum(ratio * adv, torch.clamp(ratio, 1 - eps, 1 + eps) * adv).mean()
            self.opt.zero_grad(set_to_none=True)
            loss.backward()
            self.opt.step()
        self.step += 1
        score = batch["reward"].mean().item()
        if score > self.best:
            self.best = score
            self.store.put(self.net, self.step)
        return {"step": self.step, "reward": score, "loss": loss.item()}


def main():
    torch.manual_seed(31)
    store = WeightStore()
    learner, actor = Learner(store), Actor(store)
    log = []
    for _ in range(48):
        batch = actor.generate()
        log.append(learner.train_on(batch, actor.copies))
        if len(log) % 6 == 0:
            last = log[-6:]
            print(f"step {log[-1]['step']:3d} reward {sum(x['reward'] for x in last) / 6:+.3f} loss {log[-1]['loss']:+.4f}")
    return log


if __name__ == "__main__":
    main()
