import torch
from transformers import GPTNeoXConfig, GPTNeoXForCausalLM

# Rotary positions only see differences, so left padding needs no position ids here as long as
# the attention mask hides the pads. The answers are cut at </s>.

class RotaryPolicy:
    pad = 0; eos = 1; size = 20

    def __init__(self, seed):
        torch.manual_seed(seed)
        cfg = GPTNeoXConfig(vocab_size=self.size, hidden_size=48, num_hidden_layers=2, num_attention_heads=4,
                            intermediate_size=96, max_position_embeddings=64, hidden_dropout=0.0, attention_dropout=0.0,
                            rotary_pct=1.0, bos_token_id=None, eos_token_id=self.eos, pad_token_id=self.pad)
        self.m = GPTNeoXForCausalLM(cfg)

    def speak(self, ids, att, n):
        self.m.eval()
        out = self.m.generate(input_ids=ids, attention_mask=att, max_new_tokens=n, do_sample=True,
                              temperature=1.0, top_k=0, top_p=1.0, use_cache=True)
        self.m.train()
        return out

    def logp(self, ids, att, n):
        lg = self.m(input_ids=ids, attention_mask=att).logits[:, -(n + 1):-1].double()
        want = ids[:, -n:]
        return lg.gather(2, want[:, :, None])[:, :, 0] - lg.logsumexp(2)


def batch(groups, k, rng):
    lens = torch.randint(1, 6, (groups,), generator=rng).tolist()
    W = max(lens)
    ids = torch.zeros(groups, W, dtype=torch.long); att = torch.zeros_like(ids)
    for i, L in enumerate(lens):
        ids[i, W - L:] = torch.randint(2, 20, (L,), generator=rng)
        att[i, W - L:] = 1
    return ids.repeat_interleave(k, 0), att.repeat_interleave(k, 0)


def main():
    torch.set_num_threads(1)
    pol = RotaryPolicy(2)
    rng = torch.Generator(); rng.manual_seed(77)
    opt = torch.optim.NAdam(pol.m.parameters(), lr=3e-3)
    groups, k, n = 4, 10, 5
    for it in range(25):
        ids, att = batch(groups, k, rng)
        out = pol.speak(ids, att, n)
        ans = out[:, ids.size(1):]
        n_now = ans.size(1)                      # generate stops early when every row is finished
        before = torch.nn.functional.pad((ans == pol.eos).cumsum(1)[:, :-1], (1, 0))
        live = before == 0                       # up to and with the first eos
        # reward: large tokens, and not repeating the prompt's last one
        score = (ans.double() / 20 * live).sum(1) / live.sum(1) - 0.5 * ((ans == ids[:, -1:]) & live).double().mean(1)
        S = score.view(groups, k)
        A = ((S - S.mean(1, True)) / (S.std(1, keepdim=True) + 1e-6)).view(-1, 1)
        full = torch.cat([att, live.long()], 1)
        lp = pol.logp(out, full, n_now)
        w = live.double() / live.sum(1, keepdim=True)
        loss = -(A * lp * w).sum(1).mean()
        opt.zero_grad(); loss.backward(); opt.step()
        if it % 4 == 0:
            print(it, float(score.mean()), int(live.sum()), loss.item())

main()
