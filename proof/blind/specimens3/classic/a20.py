import math, torch
torch.manual_seed(42); torch.set_num_threads(1)

# nine slot machines, pay-outs in the thousands; which are good depends on the weekday
DAYS, ARMS, FLOOR = 7, 9, 0.08
pay = torch.randn(DAYS, ARMS) * 2500 + 9000
noise = 1500.0

theta = torch.zeros(DAYS, ARMS, requires_grad=True)
momentum = torch.zeros(DAYS, ARMS)
lr, beta = 0.12, 0.8


def policy(w, day):
    # every machine keeps at least FLOOR / ARMS of the mass: this mixture *is* the policy
    return (1 - FLOOR) * torch.softmax(w[day], -1) + FLOOR / ARMS


def leave_one_out(r):
    k = r.shape[1]
    return r - (r.sum(1, keepdim=True) - r) / (k - 1)


def play(day, arm):
    return pay[day, arm] + noise * torch.randn(arm.shape)


seen = []
for round_ in range(400):
    day = torch.randint(DAYS, (14,))
    with torch.no_grad():
        arm = torch.multinomial(policy(theta, day), 3, replacement=True)      # 3 pulls per visit
    r = play(day[:, None].expand_as(arm), arm)
    adv = leave_one_out(r) / 3000.0
    objective = (policy(theta, day).gather(1, arm).log() * adv).sum()
    grad, = torch.autograd.grad(objective, theta)
    momentum.mul_(beta).add_(grad)
    with torch.no_grad():
        theta.add_(lr * (1 - beta) * momentum)     # uphill: objective, not loss
    seen.append(r.mean().item())
    if (round_ + 1) % 50 == 0:
        with torch.no_grad():
            reach = (policy(theta, torch.arange(DAYS)) * pay).sum(1).mean().item()
        print("round %4d  pay %.0f  expected %.0f  best possible %.0f" % (
            round_ + 1, sum(seen[-50:]) / 50, reach, pay.max(1).values.mean().item()))
