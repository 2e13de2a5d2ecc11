"""GRPO for a toy quiz: choose the right one of four answers. Draws are made by inverting the cumulative distribution."""
import torch
import torch.nn as nn


class Quiz:
    def __init__(self, topics=5, dim=8, answers=4):
        self.keys = torch.randn(topics, dim) * 2
        self.right = torch.randint(0, answers, (topics,))
        self.dim, self.answers, self.topics = dim, answers, topics

    def ask(self, n):
        topic = torch.randint(0, self.topics, (n,))
        return self.keys[topic] + 0.3 * torch.randn(n, self.dim), self.right[topic]


def draw(probs):
    u = torch.rand(len(probs), 1)
    return (u > probs.cumsum(-1)).sum(-1).clamp(max=probs.shape[-1] - 1)


def grpo(quiz, net, opt, questions=6, group=24, rounds=2):
    q, key = quiz.ask(questions)
    q, key = q.repeat_interleave(group, 0), key.repeat_interleave(group)
    with torch.no_grad():
        logp = net(q).log_softmax(-1)
        answer = draw(logp.exp())
        old = logp.gather(1, answer[:, None])[:, 0]
    reward = (answer == key).float()
    r = reward.view(questions, group)
    adv = ((r - r.mean(dim=1, keepdim=True)) / r.std(dim=1, keepdim=True)).view(-1)
    for _ in range(rounds):
        new = net(q).log_softmax(-1).gather(1, answer[:, None])[:, 0]
        ratio = (new - old).exp()
        loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
        opt.zero_grad()
        loss.backward()
        opt.step()
    return reward.mean().item(), loss.item()


if __name__ == "__main__":
    torch.manual_seed(9)
    quiz = Quiz()
    net = nn.Sequential(nn.Linear(quiz.dim, 32), nn.ReLU(), nn.Linear(32, quiz.answers))
    nn.init.normal_(net[2].weight, std=0.01)
    opt = torch.optim.Adam(net.parameters(), lr=2e-3)
    for i in range(60):
        reward, loss = grpo(quiz, net, opt)
        if i % 6 == 5:
            print(f"{i + 1:3d}: right {reward:.2f} loss {loss:.4f}")
