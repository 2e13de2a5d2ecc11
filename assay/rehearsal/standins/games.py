"""gymnasium and gym where they are absent: a pole on a cart for every name with discrete actions, a pendulum for the
others."""

from __future__ import annotations

import functools
import math
import random
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

from assay.rehearsal.stage import Stage
from assay.rehearsal.standins.missing import provide

_CONTINUOUS = ("pendulum", "continuous", "cheetah", "hopper", "walker", "ant-", "humanoid", "reacher", "swimmer")
_LONGEST = 200


def install(stage: Stage) -> None:
    for name in ("gymnasium", "gym"):
        provide(name, functools.partial(_gym, stage, is_old=name == "gym"))


class Discrete:
    def __init__(self, n: int) -> None:
        self.n, self.shape, self._random = n, (), random.Random(0)

    def sample(self) -> int:
        return self._random.randrange(self.n)

    def seed(self, seed: int | None = None) -> None:
        self._random.seed(seed)

    def contains(self, action: Any) -> bool:
        return 0 <= int(action) < self.n


class Box:
    def __init__(self, low: Any, high: Any, shape: Any = None, dtype: Any = None) -> None:
        import numpy

        self.dtype = dtype or numpy.float32
        self.shape = tuple(shape) if shape is not None else numpy.asarray(low).shape
        self.low = numpy.broadcast_to(numpy.asarray(low, self.dtype), self.shape)
        self.high = numpy.broadcast_to(numpy.asarray(high, self.dtype), self.shape)
        self._random = numpy.random.default_rng(0)

    def sample(self) -> Any:
        return self._random.uniform(self.low.clip(-10), self.high.clip(None, 10)).astype(self.dtype)

    def seed(self, seed: int | None = None) -> None:
        import numpy

        self._random = numpy.random.default_rng(seed)


class Env:
    """`reset` -> observation, info; `step` -> observation, reward, terminated, truncated, info."""

    metadata: dict[str, Any] = {}  # noqa: RUF012
    render_mode: Any = None
    reward_range = (-math.inf, math.inf)
    spec: Any = None
    observation_space: Any
    action_space: Any

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        return None

    def close(self) -> None:
        pass

    def render(self, *args: Any, **kwargs: Any) -> None:
        pass

    def seed(self, seed: int | None = None) -> list[int | None]:
        return [seed]

    @property
    def unwrapped(self) -> Any:
        return self


class CartPole(Env):
    """The equations of the classic task: gravity 9.8, a cart of 1 kg, a pole of 0.1 kg and 1 m, 0.02 s per step."""

    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(-4.8, 4.8, (4,)), Discrete(2)
        self._random, self._state, self._steps = random.Random(0), [0.0] * 4, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._random.seed(seed)
        self._state, self._steps = [self._random.uniform(-0.05, 0.05) for _ in range(4)], 0
        return self._seen(), {}

    def _seen(self) -> Any:
        import numpy

        return numpy.array(self._state, dtype=numpy.float32)

    def step(self, action: Any) -> Any:
        x, speed, angle, turn = self._state
        force = 10.0 if int(action) == 1 else -10.0
        sine, cosine = math.sin(angle), math.cos(angle)
        push = (force + 0.05 * turn**2 * sine) / 1.1
        pull = (9.8 * sine - cosine * push) / (0.5 * (4.0 / 3.0 - 0.1 * cosine**2 / 1.1))
        gain = push - 0.05 * pull * cosine / 1.1
        self._state = [x + 0.02 * speed, speed + 0.02 * gain, angle + 0.02 * turn, turn + 0.02 * pull]
        self._steps += 1
        is_over = abs(self._state[0]) > 2.4 or abs(self._state[2]) > 12 * math.pi / 180
        return self._seen(), 1.0, is_over, self._steps >= _LONGEST, {}


class Pendulum(Env):
    def __init__(self) -> None:
        self.observation_space, self.action_space = Box(-8.0, 8.0, (3,)), Box(-2.0, 2.0, (1,))
        self._random, self._angle, self._speed, self._steps = random.Random(0), 0.0, 0.0, 0

    def reset(self, *, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self._random.seed(seed)
        self._angle, self._speed = self._random.uniform(-math.pi, math.pi), self._random.uniform(-1, 1)
        self._steps = 0
        return self._seen(), {}

    def _seen(self) -> Any:
        import numpy

        return numpy.array([math.cos(self._angle), math.sin(self._angle), self._speed], dtype=numpy.float32)

    def step(self, action: Any) -> Any:
        import numpy

        torque = float(numpy.clip(numpy.asarray(action).reshape(-1)[0], -2, 2))
        angle = (self._angle + math.pi) % (2 * math.pi) - math.pi
        cost = angle**2 + 0.1 * self._speed**2 + 0.001 * torque**2
        self._speed = max(-8.0, min(8.0, self._speed + (15.0 * math.sin(angle) + 3.0 * torque) * 0.05))
        self._angle += self._speed * 0.05
        self._steps += 1
        return self._seen(), -cost, False, self._steps >= _LONGEST, {}


class Wrapper(Env):
    def __init__(self, env: Any, *args: Any, **kwargs: Any) -> None:
        self.env = env

    def __getattr__(self, name: str) -> Any:
        if name == "env":
            raise AttributeError(name)
        return getattr(self.env, name)

    def reset(self, **kwargs: Any) -> Any:
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        return self.env.step(action)

    @property
    def unwrapped(self) -> Any:
        return self.env.unwrapped


class RecordEpisodeStatistics(Wrapper):
    def reset(self, **kwargs: Any) -> Any:
        self._return, self._length = 0.0, 0
        return self.env.reset(**kwargs)

    def step(self, action: Any) -> Any:
        *seen, info = self.env.step(action)
        self._return, self._length = self._return + float(seen[1]), self._length + 1
        if any(seen[2:]):
            info = {**info, "episode": {"r": self._return, "l": self._length}}
        return (*seen, info)


class SyncVectorEnv:
    """Several at once; one that ended begins again."""

    def __init__(self, makers: list[Callable[[], Any]], **how: Any) -> None:
        self.envs = [make() for make in makers]
        self.num_envs = len(self.envs)
        self.single_observation_space = self.envs[0].observation_space
        self.single_action_space = self.action_space = self.envs[0].action_space
        self.observation_space = self.single_observation_space

    def reset(self, *, seed: int | None = None, **how: Any) -> Any:
        import numpy

        seeds = [None if seed is None else seed + number for number in range(self.num_envs)]
        return numpy.stack([env.reset(seed=one)[0] for env, one in zip(self.envs, seeds, strict=True)]), {}

    def step(self, actions: Any) -> Any:
        import numpy

        seen, rewards, ends, cuts, infos = zip(
            *(env.step(action) for env, action in zip(self.envs, actions, strict=True)), strict=True
        )
        fresh = [
            env.reset()[0] if over or cut else one
            for env, one, over, cut in zip(self.envs, seen, ends, cuts, strict=True)
        ]
        final = [info if over or cut else None for info, over, cut in zip(infos, ends, cuts, strict=True)]
        info = {"final_info": final} if any(final) else {}
        return numpy.stack(fresh), numpy.array(rewards), numpy.array(ends), numpy.array(cuts), info

    def close(self) -> None:
        pass


def _gym(stage: Stage, module: Any, *, is_old: bool) -> None:
    def make(name: Any, *args: Any, **kwargs: Any) -> Any:
        is_continuous = any(word in str(name).lower() for word in _CONTINUOUS)
        stage.replaced("data", name, "a pendulum" if is_continuous else "a pole on a cart")
        env = Pendulum() if is_continuous else CartPole()
        env.spec = SimpleNamespace(id=name, max_episode_steps=_LONGEST, reward_threshold=_LONGEST - 5)
        return env

    module.make, module.Env, module.Wrapper = make, Env, Wrapper
    module.ObservationWrapper = module.RewardWrapper = module.ActionWrapper = Wrapper
    module.spaces = SimpleNamespace(Discrete=Discrete, Box=Box)
    module.vector = SimpleNamespace(SyncVectorEnv=SyncVectorEnv, AsyncVectorEnv=SyncVectorEnv)
    module.wrappers = SimpleNamespace(
        RecordEpisodeStatistics=RecordEpisodeStatistics, RecordVideo=Wrapper, ClipAction=Wrapper, TimeLimit=Wrapper
    )
    module.register = lambda *args, **kwargs: None
    module.__version__ = "0.26.2" if is_old else "1.0.0"
