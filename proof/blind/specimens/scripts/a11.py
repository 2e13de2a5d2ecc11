from transformers import GPT2Config, GPT2LMHeadModel, set_seed
import torch

set_seed(4)
WORDS = ["red", "blue", "green", "one", "two", "three", "cat", "dog", "cow", "sun", "moon", "star", "up", "down"]
EOS = len(WORDS)
PAD = EOS                      # GPT-2 has no padding token of its own
COLOURS, NUMBERS = {0, 1, 2}, {3, 4, 5}

model = GPT2LMHeadModel(GPT2Config(vocab_size=len(WORDS) + 1, n_positions=32, n_embd=64, n_layer=2, n_head=2, resid_pdrop=0, embd_pdrop=0,
                                   attn_pdrop=0, eos_token_id=EOS, bos_token_id=EOS, pad_token_id=PAD))
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)


class GRPO:
    def __init__(self, model, num_prompts=5, num_generations=10, max_completion=9, num_iterations=2, epsilon=0.2):
        self.model, self.n, self.g = model, num_prompts, num_generations
        self.max_completion, self.num_iterations, self.epsilon = max_completion, num_iterations, epsilon

    def sample_prompts(self):
        p = torch.randint(0, EOS, (self.n, 3))
        return p.repeat_interleave(self.g, 0)

    @torch.no_grad()
    def generate(self, prompts):
        full = self.model.generate(prompts, attention_mask=torch.ones_like(prompts), do_sample=True, top_k=0, top_p=1.0,
                                   max_new_tokens=self.max_completion, pad_token_id=PAD, eos_token_id=EOS)
        return full[:, prompts.shape[1]:]

    def reward(self, prompt, words):
        """Few words, and about the prompt's kind."""
        kind = COLOURS if prompt[0] < 7 else NUMBERS
        hits = len([w for w in words if w in kind])
        return min(hits, 3) - 0.25 * len(words)

    def per_token_logps(self, prompts, comp, mask):
        ids = torch.cat([prompts, comp], 1)
        att = torch.cat([torch.ones_like(prompts), mask], 1)
        logits = self.model(ids, attention_mask=att).logits[:, prompts.shape[1] - 1:-1]
        return torch.log_softmax(logits, -1).gather(-1, comp[..., None])[..., 0]

    def train_step(self):
        prompts = self.sample_prompts()
        self.model.eval()
        comp = self.generate(prompts)
        self.model.train()
        mask = (comp != PAD).long()
        rewards = torch.tensor([self.reward(p, [w for w in c if w != EOS]) for p, c in zip(prompts.tolist(), comp.tolist())])
        by_group = rewards.view(self.n, self.g)
        adv = (by_group - by_group.mean(1, keepdim=True)) / (by_group.std(1, keepdim=True) + 1e-4)
        adv = adv.view(-1, 1)
        with torch.no_grad():
            old = self.per_token_logps(prompts, comp, mask)
        for _ in range(self.num_iterations):
            lp = self.per_token_logps(prompts, comp, mask)
            ratio = torch.exp(lp - old)
            loss = -torch.min(ratio * adv, torch.clamp(ratio, 1 - self.epsilon, 1 + self.epsilon) * adv)
            loss = (loss * mask).sum() / mask.sum().clamp(min=1)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
        return rewards.mean().item(), mask.sum(1).float().mean().item()


trainer = GRPO(model)
for step in range(15):
    reward, length = trainer.train_step()
    if step % 3 == 0:
        print(f"{step:3d} reward {reward:+.3f} length {length:.2f}")
print("end", reward)
