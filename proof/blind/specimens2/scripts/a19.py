import torch
from torch import nn
from torch.nn.utils import clip_grad_norm_
from transformers import Qwen2Config, Qwen2ForCausalLM

torch.set_num_threads(1)


class GrpoTrainer:
    def __init__(self, model, reward_fn, prompt_fn, *, lr=2e-3, prompts=6, completions=6, micro_batch=12, length=5):
        self.model, self.reward_fn, self.prompt_fn = model, reward_fn, prompt_fn
        self.prompts, self.completions, self.micro_batch, self.length = prompts, completions, micro_batch, length
        self.optimizer = torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=0.0)
        self.accumulate = prompts * completions // micro_batch
        assert self.accumulate * micro_batch == prompts * completions

    def rollout(self):
        prompt = self.prompt_fn(self.prompts).repeat_interleave(self.completions, 0)
        ids = prompt
        self.model.eval()
        with torch.inference_mode():
            cache = None
            feed = ids
            for _ in range(self.length):
                out = self.model(input_ids=feed, past_key_values=cache, use_cache=True)
                cache = out.past_key_values
                feed = torch.multinomial(out.logits[:, -1].softmax(-1), 1)
                ids = torch.cat([ids, feed], 1)
        self.model.train()
        return ids.clone(), prompt.shape[1]

    def logps(self, ids, start):
        lg = self.model(input_ids=ids[:, :-1]).logits[:, start - 1:]
        return lg.log_softmax(-1).gather(-1, ids[:, start:].unsqueeze(-1)).squeeze(-1)

    def train_step(self):
        ids, start = self.rollout()
        rewards = self.reward_fn(ids[:, :start], ids[:, start:])
        grouped = rewards.view(self.prompts, self.completions)
        adv = grouped - grouped.mean(1, keepdim=True)
        adv = (adv / (grouped.std(1, keepdim=True) + 1e-4)).flatten()
        shuffle = torch.randperm(len(ids))
        for rows in shuffle.split(self.micro_batch):
            self.optimizer.zero_grad()
            lp = self.logps(ids[rows], start)
            loss = -(torch.exp(lp - lp.detach()) * adv[rows, None]).mean() / self.accumulate
            loss.backward()
        norm = clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        return rewards.mean().item(), norm.item()


def random_prompts(n):
    return torch.randint(0, 16, (n, 4))


def copy_reward(prompt, answer):
    """answer tokens should be in the prompt"""
    return (answer.unsqueeze(-1) == prompt.unsqueeze(1)).any(-1).float().mean(1) + (answer < 8).float().mean(1)


if __name__ == "__main__":
    torch.manual_seed(55)
    model = Qwen2ForCausalLM(Qwen2Config(vocab_size=16, hidden_size=32, intermediate_size=64, num_hidden_layers=2,
                                         num_attention_heads=4, num_key_value_heads=4, max_position_embeddings=32,
                                         bos_token_id=None, eos_token_id=None))
    trainer = GrpoTrainer(model, copy_reward, random_prompts)
    for step in range(25):
        r, n = trainer.train_step()
        if step % 5 == 0:
            print(f"{step}: reward {r:.3f} |g| {n:.3f}")
