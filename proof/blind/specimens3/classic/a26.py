# Actors that lag behind on purpose.
# A numpy player uses weights that are refreshed only every LAG updates (as on a slow link). Each move is stored with the
# probability under the weights it was really drawn from; the learner weighs it by the truncated ratio new / drawn-from.
import collections
import numpy as np
import torch

torch.set_num_threads(1)
torch.manual_seed(6)
R = np.random.RandomState(6)
LAG, GROUP, TASKS, CAP = 4, 10, 12, 2.0

Sample = collections.namedtuple("Sample", "ctx act mu reward")

# two-step bandit: pick a box, see its colour, pick a lever; the pay-out depends on the customer, box and lever
CUSTOMERS, BOXES, LEVERS = 5, 3, 4
truth = R.rand(CUSTOMERS, BOXES, LEVERS)

W_box = torch.zeros(CUSTOMERS, BOXES, requires_grad=True)
W_lev = torch.zeros(CUSTOMERS * BOXES, LEVERS, requires_grad=True)
opt = torch.optim.SGD([W_box, W_lev], lr=3.0)


def snapshot():
    return W_box.detach().numpy().copy(), W_lev.detach().numpy().copy()


def soft(z):
    e = np.exp(z - z.max())
    return e / e.sum()


def play(weights, customer):
    box_w, lev_w = weights
    p = soft(box_w[customer].astype(np.float64))
    b = R.choice(BOXES, p=p)
    q = soft(lev_w[customer * BOXES + b].astype(np.float64))
    l = R.choice(LEVERS, p=q)
    pay = truth[customer, b, l] + 0.1 * R.randn()
    return Sample(customer, (b, l), (np.log(p[b]), np.log(q[l])), pay)


curve = []
for update in range(192):
    if update % LAG == 0:
        held = snapshot()
    batch, adv = [], []
    for customer in R.randint(CUSTOMERS, size=TASKS):
        g = [play(held, customer) for _ in range(GROUP)]
        pay = np.array([s.reward for s in g])
        batch += g
        adv += list(pay - pay.mean())
    c = torch.tensor([s.ctx for s in batch])
    b = torch.tensor([s.act[0] for s in batch])
    l = torch.tensor([s.act[1] for s in batch])
    mu = torch.tensor([s.mu for s in batch], dtype=torch.float32)
    A = torch.tensor(adv, dtype=torch.float32)
    lp = torch.stack([torch.log_softmax(W_box[c], 1)[torch.arange(len(c)), b],
                      torch.log_softmax(W_lev[c * BOXES + b], 1)[torch.arange(len(c)), l]], 1)
    # ratio of the whole trajectory, it is only two moves long
    rho = (lp.sum(1) - mu.sum(1)).exp().detach().clamp(max=CAP)
    loss = -(rho * A * lp.sum(1)).mean()
    opt.zero_grad()
    loss.backward()
    opt.step()
    curve.append(np.mean([s.reward for s in batch]))
    if update % 24 == 23:
        print("update", update + 1, "pay %.3f" % np.mean(curve[-24:]), "mean ratio %.3f" % rho.mean().item(),
              "best %.3f" % truth.max((1, 2)).mean())
