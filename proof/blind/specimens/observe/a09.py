import torch
from peft import LoraConfig, get_peft_model
from transformers import LlamaConfig, LlamaForCausalLM

import assay

EOS, LIMIT = 1, 6
HP = dict(group=6, prompts=5, tau_pos=1.0, tau_neg=1.05, beta=0.02, rank=4, lr=1e-2, updates=2, steps=10, temp=1.1)


def build():
    torch.manual_seed(17)
    cfg = LlamaConfig(vocab_size=14, hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
                      num_key_value_heads=2, max_position_embeddings=32, initializer_range=0.2, bos_token_id=None,
                      eos_token_id=EOS, pad_token_id=EOS)  # fmt: skip
    base = LlamaForCausalLM(cfg)
    adapters = LoraConfig(r=HP["rank"], lora_alpha=8, lora_dropout=0.0, target_modules=["q_proj", "v_proj", "up_proj", "down_proj"])
    return get_peft_model(base, adapters)


def logprobs(model, ids, n):
    logits = model(input_ids=ids).logits[:, -n - 1 : -1] / HP["temp"]
    return torch.log_softmax(logits, -1).gather(2, ids[:, -n:, None])[:, :, 0]


@torch.no_grad()
def reference_logprobs(model, ids, n):
    with model.disable_adapter():
        return logprobs(model, ids, n)


@torch.no_grad()
def complete(model, prompts):
    ids = prompts
    over = torch.zeros(len(ids), 1, dtype=torch.bool)
    valid = []
    for _ in range(LIMIT):
        token = torch.distributions.Categorical(logits=model(input_ids=ids).logits[:, -1] / HP["temp"]).sample()[:, None]
        token = token.masked_fill(over, EOS)
        valid.append(~over)
        over = over | (token == EOS)
        ids = torch.cat([ids, token], 1)
    return ids, torch.cat(valid, 1), over[:, 0]


def reward_fn(prompts, answers, valid):
    """How many different even tokens the answer has, minus those that stand in the prompt."""
    out = []
    for p, a, v in zip(prompts.tolist(), answers.tolist(), valid.tolist()):
        said = {t for t, ok in zip(a, v) if ok and t > 1}
        out.append(float(sum(t % 2 == 0 for t in said) - len(said & set(p))))
    return torch.tensor(out)


def z(rewards):
    t = rewards.view(HP["prompts"], HP["group"])
    return ((t - t.mean(1, keepdim=True)) / (t.std(1, keepdim=True) + 1e-4)).view(-1)


def sapo_loss(new, old, ref, adv, m):
    r = torch.exp(new - old)
    a = adv[:, None].expand_as(r)
    tau = torch.where(a > 0, HP["tau_pos"], HP["tau_neg"])
    gate = torch.sigmoid(tau * (r - 1)) * 4 / tau
    kl = torch.exp(ref - new) - (ref - new) - 1
    per_token = -gate * a + HP["beta"] * kl
    return ((per_token * m).sum(1) / m.sum(1)).mean(), r, kl


def run():
    model = build()
    weights = [p for p in model.parameters() if p.requires_grad]
    opt = torch.optim.AdamW(weights, lr=HP["lr"], weight_decay=0.0)
    for step in range(1, HP["steps"] + 1):
        prompts = torch.randint(2, 14, (HP["prompts"], 3)).repeat_interleave(HP["group"], 0)
        ids, valid, ended = complete(model, prompts)
        answers = ids[:, 3:]
        rewards = reward_fn(prompts, answers, valid)
        adv = z(rewards)
        ref = reference_logprobs(model, ids, LIMIT)
        with torch.no_grad():
            old = logprobs(model, ids, LIMIT)
        for update in range(HP["updates"]):
            new = logprobs(model, ids, LIMIT)
            loss, ratio, kl = sapo_loss(new, old, ref, adv, valid)
            opt.zero_grad()
            loss.backward()
            size = torch.nn.utils.clip_grad_norm_(weights, 1.0)
            assay.observe(
                step=step, update=update, tokens=answers, mask=valid, new_logprobs=new.detach(), old_logprobs=old,
                ref_logprobs=ref, ratio=ratio.detach(), kl=kl.detach(), rewards=rewards, advantages=adv,
                group_ids=torch.arange(HP["prompts"]).repeat_interleave(HP["group"]), loss=loss.detach(),
                gradient_norm=float(size), clip_norm=1.0, learning_rate=HP["lr"], lora_rank=HP["rank"], objective="sapo",
                sapo_positive=HP["tau_pos"], sapo_negative=HP["tau_neg"], kl_coef=HP["beta"], kl_estimator="k3",
                kl_placement="loss", temperature=HP["temp"], std="sample", advantage_epsilon=1e-4, finished=ended,
                eos_ids=[EOS], pad_id=EOS, updates_per_rollout=HP["updates"], prompt_tokens=prompts,
                prompt_mask=torch.ones_like(prompts), model=model if step == 2 else None,
            )  # fmt: skip
            opt.step()
        print(step, float(rewards.mean()))


run()
