"""A gradient bandit with one state and twenty arms, tabular softmax, the gradient written by hand.

The score function of a softmax is  d log pi(a) / d h = onehot(a) - pi.  With a group of 256 pulls and the group's mean as
baseline the estimate is  g = mean_i (r_i - mean r) (onehot(a_i) - pi). It goes into .grad with a minus; torch's optimizer does the rest.
"""
import torch

ARMS, GROUP = 20, 256
gen = torch.Generator().manual_seed(17)
value = torch.randn(ARMS, generator=gen) * 0.7

preferences = torch.nn.Parameter(torch.zeros(ARMS))
optimizer = torch.optim.SGD([preferences], lr=1.5)
schedule = torch.optim.lr_scheduler.StepLR(optimizer, step_size=40, gamma=0.5)

for pull in range(120):
    pi = torch.softmax(preferences.detach(), 0)
    arm = torch.multinomial(pi, GROUP, replacement=True, generator=gen)
    reward = value[arm] + 0.5 * torch.randn(GROUP, generator=gen)
    centred = reward - reward.mean()
    onehot = torch.nn.functional.one_hot(arm, ARMS).float()
    preferences.grad = -(centred[:, None] * (onehot - pi)).mean(0)
    optimizer.step()
    schedule.step()
    if pull % 20 == 19:
        print(f"{pull + 1:3d} mean reward {reward.mean():.3f} of {value.max():.3f}; p(best) {pi[value.argmax()]:.2f}")
