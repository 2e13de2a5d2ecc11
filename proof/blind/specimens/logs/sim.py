"""The simulator behind make.py: rows are drawn (prompts, groups, lengths, rewards) and every logged number is computed
from them, so that the numbers of one step agree with each other."""
import math
import numpy as np

sig = lambda x: 1.0 / (1.0 + np.exp(-x))


def token_sample(rng, H, n=700, T=1.0, top_p=1.0, top_k=0, drift=0.0, noise=0.012, train_T=1.0, bad_share=0.0):
    """n positions with mean entropy about H: log-prob by the sampler (processed) and by the trainer of the drawn token."""
    z = rng.gumbel(size=(n, 48)) * np.exp(rng.normal(1.0, 0.9, size=(n, 1)))
    lo, hi = 0.02, 60.0
    for _ in range(14):
        mid = math.sqrt(lo * hi)
        y = z * mid
        y = y - y.max(1, keepdims=True)
        p = np.exp(y); p /= p.sum(1, keepdims=True)
        h = -(p * np.log(p + 1e-30)).sum(1).mean()
        lo, hi = (mid, hi) if h > H else (lo, mid)
    y = z * mid
    def lsm(a):
        a = a - a.max(1, keepdims=True)
        return a - np.log(np.exp(a).sum(1, keepdims=True))
    ls = lsm(y / T)
    if top_k:
        kth = np.sort(ls, 1)[:, -top_k][:, None]
        ls = lsm(np.where(ls < kth, -1e9, ls))
    if top_p < 1:
        o = np.argsort(-ls, 1); ps = np.take_along_axis(np.exp(ls), o, 1)
        cut = np.cumsum(ps, 1) - ps > top_p
        m = np.zeros_like(cut); np.put_along_axis(m, o, cut, 1)
        ls = lsm(np.where(m, -1e9, ls))
    u = rng.random((n, 1)); c = np.cumsum(np.exp(ls), 1)
    a = np.minimum((u > c).sum(1), 47)
    yt = y + noise * rng.standard_t(4, size=y.shape) * np.abs(y).clip(0, 6) * 0.4
    if drift:
        yt = yt + drift * rng.normal(size=y.shape) * np.minimum(1.0, np.exp(rng.normal(0, 0.5, size=(n, 1))))
    if bad_share:
        bad = rng.random(n) < bad_share
        yt[bad] += rng.normal(0, 2.2, size=(int(bad.sum()), 48))
    lt = lsm(yt / train_T)
    i = np.arange(n)
    return ls[i, a], lt[i, a]


class Sim:
    def __init__(self, seed, steps, P=32, G=8, lr=1e-6, lr_ref=1e-6, sched=None, max_len=2048, len0=420, H0=0.45, s0=-0.4,
                 n_prompts=7000, gain=0.05, cap=2.6, beta=0.0, updates=1, loss="grpo", gn0=0.35, hk=0.006, lenrate=0.0,
                 lo=0.0, hi=1.0, fmt=None, adv="std", dspread=1.3, kl_rate=1.0, noise_m=0.012, tok={}, hook=None, Hfloor=0.06,
                 clip=(0.2, 0.2), sig_r=0.035, wd_kl=None, H_drift=0.0, val=0, eval_n=500, len_sigma=0.42, continuous=False):
        self.__dict__.update(locals()); del self.__dict__["self"]
        self.rng = np.random.default_rng(seed)
        self.d = self.rng.normal(0, dspread, n_prompts)
        self.q = list(self.rng.permutation(n_prompts))
        self.s, self.s_samp, self.H, self.D, self.ll, self.f = s0, s0, H0, 0.0, math.log(len0), (fmt or 0.0)
        self.ns = 0.0; self.mis = 0.0; self.K = 0.0; self.frozen = False; self.stale = False; self.sign = 1.0
        self.tokens = 0; self.t = 0; self.trunc_force = 0.0; self.broken = 0.0
        self.sched = sched or (lambda t: lr)

    def draw(self, k):
        if len(self.q) < k:
            self.q = list(self.rng.permutation(self.n_prompts))
        out, self.q = self.q[:k], self.q[k:]
        return np.array(out)

    def rows(self, idx, G, s):
        r = self.rng
        d = self.d[idx][:, None]
        p = sig(1.5 * (s - d)) * (1 - self.broken)
        good = (r.random((len(idx), G)) < p)
        L = np.exp(self.ll + 0.10 * d + np.where(good, 0, 0.22) + r.normal(0, self.len_sigma, good.shape) + self.broken * 2.0)
        L = np.maximum(6, L.astype(int))
        tr = (L >= self.max_len) | (r.random(good.shape) < self.trunc_force)
        L = np.where(tr, self.max_len, L)
        good = good & ~(tr & (r.random(good.shape) < 0.97))
        return good, L, tr

    def step(self):
        self.t += 1; t = self.t; r = self.rng
        if self.hook: self.hook(self, t)
        c = {"step": t}
        lr = self.sched(t)
        idx = self.draw(self.P)
        good, L, tr = self.rows(idx, self.G, self.s_samp if self.stale else self.s)
        rew = np.where(good, self.hi, self.lo).astype(float)
        if self.continuous:
            rew = self.lo + (self.hi - self.lo) * np.clip(0.75 * good + 0.25 * r.beta(2, 2, good.shape) * (0.4 + 0.6 * good), 0, 1)
        fm = np.zeros_like(rew)
        if self.fmt is not None:
            fm = ((r.random(good.shape) < sig(self.f + 0.2 * r.normal())) & ~tr).astype(float)
        acc = rew
        tot = acc + (0.5 * fm if self.fmt is not None else 0)
        mu, sd = tot.mean(1, keepdims=True), tot.std(1, ddof=1, keepdims=True)
        A = tot - mu
        if self.adv == "std": A = A / (sd + 1e-4)
        if self.adv == "batch": A = A / (tot.std(ddof=1) + 1e-4)
        nz = (sd[:, 0] > 1e-9)
        span = (self.hi - self.lo)
        signal = float((np.where(good, 1, 0).std(1)).mean())
        rel = lr / self.lr_ref
        # measured before the update
        H = self.H * math.exp(r.normal(0, 0.035)) * (1 + 0.06 * self.d[idx].mean())
        kl = self.K * math.exp(r.normal(0, 0.10)) + abs(r.normal(0, 2e-6))
        w = L / L.sum()
        a_tok = float((A * w).sum())
        pg_seq = -float(A.mean()) + r.normal(0, 3e-9); pg_tok = -a_tok
        rm = math.sqrt(float((A ** 2).mean()))
        gn = self.gn0 * rm / (1.0 if self.adv == "std" else max(span, 1e-9) * 0.45 if self.adv != "batch" else 1.0) * math.exp(r.normal(0, 0.16)) * (max(H, 1e-3) / self.H0) ** 0.3
        gn *= math.sqrt(self.len0 / L.mean()) ** 0.5 * math.sqrt(256 / (self.P * self.G)) ** 0.6
        if r.random() < 0.012: gn *= r.uniform(1.8, 3.2)
        gn = math.hypot(gn, self.beta * 2.0 * math.sqrt(max(kl, 0)) * math.exp(r.normal(0, .1)))
        # ratios over the updates of this batch
        U = self.updates
        rm_, rmin, rmax, cl, ch, pgu, akl = 1.0, 1.0, 1.0, 0.0, 0.0, 0.0, 0.0
        if U > 1 and not self.frozen:
            rs = []; 
            for u in range(U):
                sd_r = self.sig_r * math.sqrt(u) * math.sqrt(max(rel, 1e-9)) if u else 0.0
                At = r.choice(A.ravel(), 1500, p=w.ravel())
                x = sd_r * r.standard_t(5, 1500) * np.minimum(2.5, H / 0.3 + 0.2) + 0.05 * sd_r * At * self.sign
                rr = np.exp(np.clip(x, -12, 12)); rs.append(rr)
                cl += ((rr < 1 - self.clip[0]) & (At < 0)).mean() / U; ch += ((rr > 1 + self.clip[1]) & (At > 0)).mean() / U
                pgu += -(np.minimum(rr * At, np.clip(rr, 1 - self.clip[0], 1 + self.clip[1]) * At)).mean() / U
                akl += (-x).mean() / U
            rs = np.concatenate(rs); rm_, rmin, rmax = rs.mean(), rs.min(), rs.max()
            pg_tok = pgu; pg_seq = pgu - pg_tok + pgu * 0.8
        pl = pg_seq if self.loss == "grpo" else pg_tok
        loss = pl + self.beta * kl
        ls, lt = token_sample(r, max(H, 0.02), drift=self.mis, noise=self.noise_m, **self.tok)
        dif = lt - ls
        tail = r.uniform(4.0, 9.0)  # the max is over some 100,000 tokens; 700 are drawn here
        self.tokens += int(L.sum()) + 140 * L.size
        term = L[~tr] if (~tr).any() else np.array([0])
        c.update(reward=tot.mean(), reward_std=tot.std(ddof=1), reward_gstd=sd.mean(), reward_min=tot.min(), reward_max=tot.max(), zero=1 - nz.mean(),
                 acc=acc.mean(), acc_std=acc.std(ddof=1), fmt=0.5 * fm.mean(), fmt_std=0.5 * fm.std(ddof=1), len=L.mean(), lmin=L.min(), lmax=L.max(), trunc=tr.mean(),
                 tmean=term.mean(), tmin=term.min(), tmax=term.max(), H=H, kl=kl, gn=gn, lr=lr, loss=loss, pl=pl, rm=rm_, rmin=rmin, rmax=rmax,
                 clip_low=cl, clip_high=ch, clip=cl + ch, akl=akl, amean=a_tok, amin=A.min(), amax=A.max(), mm=np.abs(dif).mean(), mstd=np.abs(dif).std(),
                 mx=np.abs(dif).max() * (1 + tail / 10), mkl=float(np.mean(np.exp(dif) - dif - 1)), isr=np.minimum(np.exp(dif), 2.0).mean(),
                 ismin=np.exp(dif.min() * 1.3), ismax=min(2.0, np.exp(dif.max() * 1.3)), mpe=np.exp(np.abs(dif)).mean(), tokens=self.tokens, ntok=int(L.sum()),
                 rows=int(L.size), none=float((tot.max(1) <= self.lo + 1e-9).mean()), all=float((good.all(1)).mean()), lgood=(L[good].mean() if good.any() else 0.0),
                 lbad=(L[~good].mean() if (~good).any() else 0.0), sec=20 + L.max() / 60 + r.gamma(4, 1.5), val=None, plen=118 + r.normal(0, 4))
        if self.val and (t % self.val == 0 or t == 1):
            c["val"] = float(r.binomial(self.eval_n, float(sig(1.5 * (self.s - self.d[:2000] - 0.15)).mean()) * (1 - self.broken)) / self.eval_n)
        # the update
        if not self.frozen:
            room = max(0.0, 1 - (self.s - self.s0) / self.cap)
            ds = self.sign * self.gain * rel * signal * 2 * room + r.normal(0, 0.012) * math.sqrt(max(rel, 0)) * math.sqrt(signal + .02)
            self.s += ds; self.D += abs(ds)
            if self.fmt is not None: self.f = min(5.0, self.f + self.sign * 0.09 * rel * float(fm.std()) * 2)
            self.H = max(self.Hfloor, self.H * (1 - self.sign * self.hk * min(rel, 5) * 2 * signal) + self.H_drift * min(rel, 5))
            self.K = self.kl_rate * 0.012 * self.D ** 1.5 / (1 + 12 * self.beta) + 0.2 * 0
            self.ll += self.lenrate * min(rel, 3) * (signal * 2) + r.normal(0, 0.003) * min(1, rel)
        return c

    def run(self):
        return [self.step() for _ in range(self.steps)]
