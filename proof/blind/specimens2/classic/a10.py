"""Exploration by a mixture: with 15 % the action is uniform. The mixture IS the policy: its log-prob is stored and trained."""
import torch


def mixture_logp(logits, action, eps=0.15):
    p = (1 - eps) * torch.softmax(logits, -1) + eps / logits.shape[-1]
    return torch.log(p.gather(-1, action.unsqueeze(-1)).squeeze(-1))


def mixture_sample(logits, eps=0.15):
    probs = torch.softmax(logits, -1)
    greedy_draw = torch.multinomial(probs.flatten(0, -2), 1).view(probs.shape[:-1])
    uniform_draw = torch.randint(0, logits.shape[-1], greedy_draw.shape)
    return torch.where(torch.rand(greedy_draw.shape) < eps, uniform_draw, greedy_draw)


class Maze:
    """four rooms in a ring, doors named by colours; the right colour depends on the room and on the day"""

    def __init__(self, n_rooms=4, n_colours=5, days=3):
        g = torch.Generator().manual_seed(0)
        self.right = torch.randint(0, n_colours, (days, n_rooms), generator=g)
        self.rooms, self.colours, self.days = n_rooms, n_colours, days

    def walk(self, room, day, colour):
        ok = self.right[day, room] == colour
        return torch.where(ok, (room + 1) % self.rooms, room), ok.float()


def main():
    torch.manual_seed(6)
    torch.set_num_threads(1)
    maze = Maze()
    table = torch.zeros(maze.days, maze.rooms, maze.colours, requires_grad=True)
    opt = torch.optim.Adam([table], lr=0.1)
    for step in range(80):
        day = torch.randint(0, maze.days, (5, 1)).expand(5, 10)
        room = torch.randint(0, maze.rooms, (5, 1)).expand(5, 10)
        visited, acts, logps, gain = [], [], [], torch.zeros(5, 10)
        with torch.no_grad():
            for _ in range(6):
                z = table[day, room]
                c = mixture_sample(z)
                visited.append(room), acts.append(c), logps.append(mixture_logp(z, c))
                room, ok = maze.walk(room, day, c)
                gain += ok
        adv = (gain - gain.mean(1, keepdim=True)) / (gain.std(1, keepdim=True) + 1e-4)
        old, act, vis = torch.stack(logps), torch.stack(acts), torch.stack(visited)
        for _ in range(2):
            new = mixture_logp(table[day.expand_as(vis), vis], act)
            ratio = torch.exp(new - old)
            loss = -torch.min(ratio * adv, ratio.clamp(0.8, 1.2) * adv).mean()
            opt.zero_grad()
            loss.backward()
            opt.step()
        if step % 16 == 15:
            print(step + 1, "doors", round(gain.mean().item(), 2))


main()
