# Dr. GRPO with pairs: two samples per prompt, no std, constant length divisor, temperature 0.7,
# one pad/eos token, answers travel as text between the sampler and the trainer.
import random
import torch
from transformers import GPT2Config, GPT2LMHeadModel

random.seed(4)
torch.manual_seed(4)

ALPHABET = "abcdefghijklmnopqrstuvwxyz "
END = len(ALPHABET)                      # also the padding
enc = lambda s: [ALPHABET.index(c) for c in s]
dec = lambda ids: "".join(ALPHABET[i] for i in ids)

TEMP, MAX_NEW, PAIRS, MICRO = 0.7, 8, 12, 6

lm = GPT2LMHeadModel(GPT2Config(vocab_size=len(ALPHABET) + 1, n_positions=40, n_embd=48, n_layer=2, n_head=3,
                                resid_pdrop=0, embd_pdrop=0, attn_pdrop=0,
                                bos_token_id=END, eos_token_id=END, pad_token_id=END))
lm.train()
opt = torch.optim.RMSprop(lm.parameters(), lr=1e-3, alpha=0.95, eps=1e-6)


def left(rows):
    w = max(map(len, rows))
    ids = torch.tensor([[END] * (w - len(r)) + r for r in rows])
    att = torch.tensor([[0] * (w - len(r)) + [1] * len(r) for r in rows])
    return ids, att


def ask(questions):
    """Two answers per question, as (text, stopped)."""
    ids, att = left([enc(q) for q in questions])
    with torch.no_grad():
        out = lm.generate(ids, attention_mask=att, num_return_sequences=2, do_sample=True, temperature=TEMP,
                          top_k=0, top_p=1.0, max_new_tokens=MAX_NEW, eos_token_id=END, pad_token_id=END)
    answers = []
    for row in out[:, ids.shape[1]:].tolist():
        stopped = END in row
        answers.append((dec(row[:row.index(END)] if stopped else row), stopped))
    return answers


def grade(q, a):
    vowels = sum(c in "aeiou" for c in a)
    shared = sum(c in q for c in a)
    return 2.0 * vowels + 1.0 * shared


for step in range(18):
    questions = ["".join(random.choices(ALPHABET[:26], k=random.randint(3, 8))) for _ in range(PAIRS)]
    answers = ask(questions)
    scores = torch.tensor([grade(questions[i // 2], a) for i, (a, _) in enumerate(answers)])
    edge = scores - scores.view(-1, 2).mean(1).repeat_interleave(2)

    opt.zero_grad()
    for lo in range(0, 2 * PAIRS, MICRO):
        part = range(lo, lo + MICRO)
        heads = [enc(questions[i // 2]) for i in part]
        tails = [enc(answers[i][0]) + [END] * answers[i][1] for i in part]
        ids, att = left([h + t for h, t in zip(heads, tails)])
        pos = (att.cumsum(1) - 1).clamp(min=0)
        logits = lm(ids, attention_mask=att, position_ids=pos).logits[:, :-1] / TEMP
        lp = logits.log_softmax(-1).gather(-1, ids[:, 1:, None]).squeeze(-1)
        for j, i in enumerate(part):
            n = len(tails[j])
            loss = -edge[i] * lp[j, -n:].sum() / (MAX_NEW * 2 * PAIRS)
            loss.backward(retain_graph=j < MICRO - 1)
    torch.nn.utils.clip_grad_norm_(lm.parameters(), 0.5)
    opt.step()
    if step % 4 == 3:
        print(f"step {step + 1}: score {scores.mean():.2f} pair gap {edge.abs().mean():.2f} sample {questions[0]!r} -> {answers[0][0]!r}")
