# Two tries per question, no more. The baseline of a pair is its mean, so the advantages are +d/2 and -d/2.
import torch

torch.manual_seed(42)
dim, n_arms, pairs = 12, 5, 48
teacher = torch.randn(dim, n_arms)

weights = torch.zeros(dim, n_arms, requires_grad=True)
bias = torch.zeros(n_arms, requires_grad=True)
sgd = torch.optim.SGD([weights, bias], lr=0.4, momentum=0.5, nesterov=True, maximize=True)

for step in range(1, 81):
    x = torch.randn(pairs, dim)
    scores = x @ weights + bias
    pi = torch.softmax(scores, dim=1)
    picks = torch.multinomial(pi.detach(), 2, replacement=True)            # pairs x 2
    truth = x @ teacher
    r = truth.gather(1, picks) - truth.max(dim=1, keepdim=True).values     # regret, at most 0
    a = r - r.mean(dim=1, keepdim=True)
    chosen = torch.log_softmax(scores, dim=1).gather(1, picks)
    objective = (a * chosen).mean()
    sgd.zero_grad()
    objective.backward()
    sgd.step()
    if step % 16 == 0:
        print(f"step {step}: regret {-r.mean().item():.3f}")
