import torch
import torch.nn as nn
import torch.nn.functional as F


class PolicyNet(nn.Module):
    """Bag of the last three tokens -> next token."""

    def __init__(self, vocab_size, hidden):
        super().__init__()
        self.embedding = nn.Embedding(vocab_size, hidden)
        self.layer1 = nn.Linear(3 * hidden, 2 * hidden)
        self.layer2 = nn.Linear(2 * hidden, vocab_size)

    def forward(self, window):
        return self.layer2(torch.tanh(self.layer1(self.embedding(window).flatten(-2))))


class GRPOAgent:
    def __init__(self, vocab_size=15, hidden=24, lr=5e-3, kl_coef=0.1, clip=0.2, group_size=8, update_epochs=3):
        self.vocab_size = vocab_size
        self.policy = PolicyNet(vocab_size, hidden)
        self.policy_old = PolicyNet(vocab_size, hidden)
        self.policy_ref = PolicyNet(vocab_size, hidden)
        self.policy_old.load_state_dict(self.policy.state_dict())
        self.policy_ref.load_state_dict(self.policy.state_dict())
        for p in list(self.policy_old.parameters()) + list(self.policy_ref.parameters()):
            p.requires_grad_(False)
        self.optimizer = torch.optim.Adam(self.policy.parameters(), lr=lr)
        self.kl_coef, self.clip, self.group_size, self.update_epochs = kl_coef, clip, group_size, update_epochs
        self.iterations = 0

    def sync(self):
        for net in (self.policy_old, self.policy_ref):
            net.load_state_dict(self.policy.state_dict())

    def rollout(self, prompts, length):
        tokens = prompts.repeat_interleave(self.group_size, dim=0)
        logps = []
        for _ in range(length):
            dist = torch.distributions.Categorical(logits=self.policy_old(tokens[:, -3:]))
            action = dist.sample()
            logps.append(dist.log_prob(action))
            tokens = torch.cat([tokens, action.unsqueeze(1)], dim=1)
        return tokens, torch.stack(logps, dim=1)

    def evaluate(self, net, tokens):
        windows = tokens.unfold(1, 3, 1)[:, :-1]
        logp = F.log_softmax(net(windows), dim=-1)
        return logp.gather(-1, tokens[:, 3:].unsqueeze(-1)).squeeze(-1)

    def update(self, tokens, old_logps, rewards):
        r = rewards.view(-1, self.group_size)
        adv = ((r - r.mean(dim=1, keepdim=True)) / (r.std(dim=1, keepdim=True) + 1e-8)).view(-1, 1)
        with torch.no_grad():
            ref_logps = self.evaluate(self.policy_ref, tokens)
        for _ in range(self.update_epochs):
            logps = self.evaluate(self.policy, tokens)
            ratio = torch.exp(logps - old_logps)
            surrogate = torch.min(ratio * adv, torch.clamp(ratio, 1 - self.clip, 1 + self.clip) * adv)
            log_r = ref_logps - logps
            kl = torch.exp(log_r) - log_r - 1.0
            loss = (-surrogate + self.kl_coef * kl).mean()
            self.optimizer.zero_grad()
            loss.backward()
            self.optimizer.step()
        self.iterations += 1
        self.sync()
        return loss.item(), kl.mean().item()


def reward_function(tokens, prompt_len):
    answers = tokens[:, prompt_len:]
    target = tokens[:, prompt_len - 1].unsqueeze(1)
    return -((answers - target).abs().float() / 5.0).mean(dim=1)


if __name__ == "__main__":
    torch.manual_seed(100)
    torch.set_num_threads(1)
    agent = GRPOAgent()
    for episode in range(60):
        prompts = torch.randint(0, agent.vocab_size, (5, 3))
        tokens, old_logps = agent.rollout(prompts, 6)
        rewards = reward_function(tokens, 3)
        loss, kl = agent.update(tokens, old_logps, rewards)
        if episode % 10 == 0:
            print(f"Episode {episode}, Reward: {rewards.mean().item():.4f}, Loss: {loss:.4f}, KL: {kl:.4f}")
